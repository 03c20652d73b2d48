"""Does a Hugging Face model attend the way pages can serve: once a layer, over positions and nothing else?"""

from typing import Any

import torch

from phase08_paged_attention.attention_kernel import AttentionOptions
from shared.errors import SetupError
from shared.one_thread import one_thread

KINDS = {"full_attention", "sliding_attention"}  # of layers


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
    if kinds := set(getattr(config, "layer_types", None) or KINDS) - KINDS:
        raise SetupError(
            f"{family} has layers of {', '.join(sorted(kinds))}, which pages do not serve; phases 1 to 6 run it"
        )
    trial = Trial(model.device)
    with one_thread():
        model(input_ids=trial.slots[None], position_ids=trial.slots[None], use_cache=False, paged=trial)
    if [layer for layer, _ in trial.calls] != [*range(config.num_hidden_layers)]:
        raise SetupError(
            f"{family} does not attend once in each of its layers, as pages need it; phases 1 to 6 may run it"
        )
    window = getattr(config, "sliding_window", None)
    is_used = "sliding_attention" in (getattr(config, "layer_types", None) or ["sliding_attention"])
    if window and is_used and all(seen is None for _, seen in trial.calls):
        raise SetupError(f"{family} keeps to its sliding window in its masks alone; phases 1 to 6 run it")
