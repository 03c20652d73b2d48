"""How close the choice was at the step where two outputs part, and what rounding can do to it."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch

from shared.explain.drift import rounding_unit

TIE_ROUNDINGS = 32
HALF_TIE_ROUNDINGS = 4


@dataclass(frozen=True, slots=True)
class Choice:
    """What the reference had to choose from, in logits.

    margin: its best over its second. gap: its best over the token that the engine took; rank: that token's, 1 is best.
    noise: how far rounding may move one logit against another; largest: max |logit|, which it is relative to.
    """

    margin: float
    gap: float
    rank: int
    noise: float
    largest: float

    @property
    def is_near_tie(self) -> bool:
        """Rounding alone may turn it around. A reason to look at the layers, not to look away."""
        return self.gap <= self.noise


def choice_between(logits: torch.Tensor, expected: int, got: int, dtype: torch.dtype) -> Choice:
    """What `logits` [V] of a model of this dtype say about the token that was expected and the one that came."""
    best = float(logits[expected])
    others = torch.cat([logits[:expected], logits[expected + 1 :]])  # [V - 1]
    largest = float(logits.abs().max())
    return Choice(
        margin=best - float(others.max()),
        gap=best - float(logits[got]),
        rank=int((logits > logits[got]).sum()) + 1,
        noise=rounding_noise(dtype, largest),
        largest=largest,
    )


def smallest_margin(model: Any, prompt_token_ids: Seq[int], output_token_ids: Seq[int]) -> tuple[int, Choice]:
    """The closest of the choices that made an output: its index, and the choice between the best two."""
    token_ids = [*prompt_token_ids, *output_token_ids]
    with torch.inference_mode():
        logits = model(torch.tensor([token_ids], device=model.device), use_cache=False).logits[0]  # [T, V]
    at_outputs = logits[len(prompt_token_ids) - 1 : -1].to("cpu", torch.float64)  # [outputs, V]
    best = at_outputs.topk(2, dim=-1)  # [outputs, 2]
    step = int((best.values[:, 0] - best.values[:, 1]).argmin())
    first, second = best.indices[step].tolist()
    return step, choice_between(at_outputs[step], first, second, model.dtype)


def rounding_noise(dtype: torch.dtype, largest_logit: float) -> float:
    """How far rounding alone may move one logit against another: roundings * rounding_unit * largest logit.

    A logit is a sum of many products. In fp32 every addition rounds, and healthy engines showed 13 units
    of it; models in bf16 and fp16 sum in fp32 and round once an operation, 4 units. The factors are 32 and 4.
    """
    roundings = HALF_TIE_ROUNDINGS if torch.finfo(dtype).bits == 16 else TIE_ROUNDINGS
    return roundings * rounding_unit(dtype) * largest_logit
