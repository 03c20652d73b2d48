"""Natural log-probabilities of tokens, as a client sees them.

They are of the model's own distribution: its raw logits, before temperature, penalties and filters
(vLLM's default `logprobs_mode`). Every number is finite, for JSON has no infinity.
Letters: R rows, T prompt tokens, V vocabulary.
"""

from collections.abc import Sequence as Seq

import torch

from shared.output import TokenLogprobs
from shared.request import MAX_TOP_LOGPROBS

LEAST_LOGPROB = -9999.0  # OpenAI's number for "very unlikely"
MAX_ROWS = 64  # of [R, V] that are held in fp32 at a time


def token_logprobs(logits: torch.Tensor, token_ids: Seq[int], num_top: Seq[int]) -> list[TokenLogprobs]:
    """What the raw `logits` [R, V] say of the R tokens that were taken, with `num_top` alternatives for each.

    num_top: at most MAX_TOP_LOGPROBS; of equals, the lower id comes first.
    An impossible alternative (-inf) is left out; a taken token that was impossible gets LEAST_LOGPROB.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    logprobs = torch.log_softmax(logits.to(dtype), dim=-1)  # [R, V]
    taken_ids = torch.tensor(token_ids, device=logits.device).unsqueeze(-1)  # [R, 1]
    taken = logprobs.gather(-1, taken_ids).clamp_(min=LEAST_LOGPROB).squeeze(-1)  # [R]
    num_candidates = min(MAX_TOP_LOGPROBS if any(num_top) else 0, logits.shape[-1])  # K
    best = logprobs.topk(num_candidates)  # [R, K]; K is fixed, for it decides which of equals are taken
    columns = zip(token_ids, taken.tolist(), best.indices.tolist(), best.values.tolist(), num_top)
    return [TokenLogprobs(token_id, logprob, _top(ids, values, num)) for token_id, logprob, ids, values, num in columns]


def prompt_logprobs(logits: torch.Tensor, token_ids: Seq[int], num_top: int) -> list[TokenLogprobs | None]:
    """The logprobs of a prompt's own tokens, from the logits [T, V] of the whole prompt.

    Row t predicts token t + 1; nothing predicts the first token, so its entry is None.
    """
    result: list[TokenLogprobs | None] = [None]
    for start in range(0, len(token_ids) - 1, MAX_ROWS):
        taken = token_ids[start + 1 : start + 1 + MAX_ROWS]
        result += token_logprobs(logits[start : start + len(taken)], taken, [num_top] * len(taken))
    return result


def _top(token_ids: list[int], logprobs: list[float], num_top: int) -> dict[int, float]:
    ranked = sorted(zip(token_ids, logprobs), key=lambda pair: (-pair[1], pair[0]))[:num_top]
    return {token_id: logprob for token_id, logprob in ranked if logprob > -torch.inf}
