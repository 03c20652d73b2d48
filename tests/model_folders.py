"""Model folders on disk, and ways to spoil them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file


def saved(tmp_path: Path, model: Any) -> Path:
    folder = tmp_path / "T0"
    model.save_pretrained(folder)
    return folder


def edit_json(path: Path, **changes: Any) -> None:
    """A value of None takes the field out."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
