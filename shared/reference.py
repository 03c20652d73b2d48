"""The oracle: Hugging Face `generate()`, pinned to pure greedy decoding.

A checkpoint's generation_config.json can carry a repetition penalty that `generate()` applies even
with do_sample=False; here nothing of it counts. EOS ids are the caller's.
"""

from collections.abc import Collection, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from typing import Any

import torch
from transformers import GenerationConfig


def greedy_reference(
    model: Any, prompt_token_ids: Seq[int], max_tokens: int, eos_token_ids: Collection[int] = ()
) -> list[int]:
    """The tokens that `generate()` adds to one prompt, alone; the EOS id that ended them included.

    model: must not be shared with an engine, which may change its attention implementation.
    """
    prompt = torch.tensor([list(prompt_token_ids)], device=model.device)  # [1, T]
    with torch.inference_mode(), _own_generation_config(model, greedy_config(max_tokens, eos_token_ids)):
        output = model.generate(prompt, attention_mask=torch.ones_like(prompt))  # [1, T + new]
    return output[0, prompt.shape[1] :].tolist()


def greedy_config(max_tokens: int, eos_token_ids: Collection[int] = ()) -> GenerationConfig:
    """Pure greedy decoding up to `max_tokens` new tokens; without EOS ids, exactly so many.

    Meant to be set as the model's own: a checkpoint's would fill in what is left open, EOS and penalties among it.
    """
    return GenerationConfig(
        do_sample=False,
        num_beams=1,
        max_new_tokens=max_tokens,
        repetition_penalty=1.0,
        eos_token_id=sorted(eos_token_ids) or None,
        pad_token_id=0,
    )


def top2_margins(model: Any, prompt_token_ids: Seq[int], output_token_ids: Seq[int]) -> list[float]:
    """How far the best logit is ahead of the second, at each output position, teacher-forced.

    A margin near the rounding of the model's dtype is a near tie: another order of summation may flip it.
    """
    token_ids = [*prompt_token_ids, *output_token_ids]
    with torch.inference_mode():
        logits = model(torch.tensor([token_ids], device=model.device), use_cache=False).logits[0]  # [T, V]
    at_outputs = logits[len(prompt_token_ids) - 1 : -1]  # [outputs, V]
    best = at_outputs.topk(2, dim=-1).values  # [outputs, 2]
    return (best[:, 0] - best[:, 1]).tolist()


@contextmanager
def _own_generation_config(model: Any, config: GenerationConfig) -> Iterator[None]:
    """`generate(generation_config=...)` fills what is unset from the model's; this leaves nothing to fill from."""
    before, model.generation_config = model.generation_config, config
    try:
        yield
    finally:
        model.generation_config = before
