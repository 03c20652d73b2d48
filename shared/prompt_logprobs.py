"""Logprobs of a prompt's own tokens, taken on the way while the prompt is computed.

    prompt              [ t0  t1  t2 | t3  t4 ]
    tokens start .. end - 1 of a step predict the tokens start + 1 .. end

The last token of a chunk predicts the first of the next, so the chunks' results join without a gap.
Letters: T tokens of one sequence in this step, V vocabulary.
"""

from collections.abc import Callable

import torch

from shared.step import ScheduledSequence
from shared.token_logprobs import prompt_logprobs


def prompt_scorer(item: ScheduledSequence) -> Callable[[torch.Tensor], None] | None:
    """Keeps in the sequence what the logits [T, V] of this row say of its prompt; None where nobody asked.

    A row that runs again (after preemption) is noted again, in the same places.
    """
    seq, start = item.seq, item.num_computed_tokens
    num_top = seq.params.prompt_logprobs
    if num_top is None or start >= seq.num_prompt_tokens - 1:
        return None
    token_ids = seq.request.prompt_token_ids[start : start + item.num_tokens + 1]

    def score(logits: torch.Tensor) -> None:
        seq.prompt_logprobs[start + 1 :] = prompt_logprobs(logits, token_ids, num_top)[1:]

    return score
