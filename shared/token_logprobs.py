"""Natural log-probabilities of tokens, as a client sees them.

They are of the model's own distribution: its raw logits, before temperature, penalties and filters
(vLLM's default `logprobs_mode`). Every number is finite, for JSON has no infinity.
Letters: R rows, T prompt tokens, V vocabulary.
"""

from collections.abc import Sequence as Seq

import torch

from shared.output import TokenLogprobs

LEAST_LOGPROB = -9999.0  # OpenAI's number for "very unlikely"
MAX_ROWS = 64  # of [R, V] that are held in fp32 at a time


def token_logprobs(logits: torch.Tensor, token_ids: Seq[int], num_top: Seq[int]) -> list[TokenLogprobs]:
    """What the raw `logits` [R, V] say of the R tokens that were taken, with `num_top` alternatives for each.

    num_top: at most MAX_TOP_LOGPROBS; of equals, the lower id comes first.
    An impossible alternative (-inf) is left out; a taken token that was impossible gets LEAST_LOGPROB, and so does one
    whose logits are no numbers.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    logprobs = torch.log_softmax(logits.to(dtype), dim=-1)  # [R, V]
    taken_ids = torch.tensor(token_ids, device=logits.device).unsqueeze(-1)  # [R, 1]
    taken = logprobs.gather(-1, taken_ids).nan_to_num(nan=LEAST_LOGPROB).clamp_(min=LEAST_LOGPROB).squeeze(-1)  # [R]
    values, indices = _highest(logprobs, min(max(num_top, default=0), logits.shape[-1]))  # [R, K] each
    columns = zip(token_ids, taken.tolist(), indices.tolist(), values.tolist(), num_top)
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


def _highest(logprobs: torch.Tensor, num: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `num` highest of each row, [R, K], and their token ids.

    Of more equals at the edge than there is room for `topk` takes any; where that happens, a stable sort takes the
    lowest ids.
    """
    values, token_ids = logprobs.topk(num)
    if num and (crowded := (logprobs >= values[:, -1:]).sum(-1) > num).any():  # [R]
        ranked = logprobs[crowded].sort(dim=-1, descending=True, stable=True)
        values[crowded], token_ids[crowded] = ranked.values[:, :num], ranked.indices[:, :num]
    return values, token_ids


def _top(token_ids: list[int], logprobs: list[float], num_top: int) -> dict[int, float]:
    ranked = sorted(zip(token_ids, logprobs), key=lambda pair: (-pair[1], pair[0]))[:num_top]
    return {token_id: logprob for token_id, logprob in ranked if logprob > -torch.inf}
