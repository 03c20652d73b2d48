"""Does a Hugging Face model attend the way pages can serve: once a layer, over positions and nothing else?"""

from typing import Any

import torch

from phase08_paged_attention.attention_kernel import AttentionOptions
from shared.errors import SetupError
from shared.hf_forward import layer_kinds
from shared.one_thread import one_thread

SERVED = {"full_attention", "sliding_attention"}  # kinds of layers


class Trial:
    """In place of a step's pool and kernel. calls: the layer of each attention, and its window."""

    def __init__(self, device: torch.device) -> None:
        self.calls: list[tuple[int, int | None]] = []
        self.cache = self
        self.slots = torch.zeros(1, dtype=torch.long, device=device)

    def write(self, *_: Any) -> None:
        """Nothing is kept."""

    def attend(self, layer: int, query: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
        self.calls.append((layer, options.window))
        return query


@torch.inference_mode()
def check_attends_by_position(model: Any) -> None:
    """One token through the model. Raises SetupError, naming the family and what it has that pages have not."""
    family, config = type(model).__name__, model.config.get_text_config()
    kinds = layer_kinds(config)
    if others := kinds - SERVED:
        raise SetupError(
            f"{family} has layers of {', '.join(sorted(others))}, which pages do not serve; phases 1 to 6 run it"
        )
    trial = Trial(model.device)
    with one_thread():
        model(input_ids=trial.slots[None], position_ids=trial.slots[None], use_cache=False, paged=trial)
    if [layer for layer, _ in trial.calls] != [*range(config.num_hidden_layers)]:
        raise SetupError(
            f"{family} does not attend once in each of its layers, as pages need it; phases 1 to 6 may run it"
        )
    has_window = getattr(config, "sliding_window", None) and (not kinds or "sliding_attention" in kinds)
    if has_window and all(seen is None for _, seen in trial.calls):
        raise SetupError(f"{family} keeps to its sliding window in its masks alone; phases 1 to 6 run it")
