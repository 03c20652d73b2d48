"""Taking sampled tokens into a sequence, and knowing when it is over. Torch-free."""

import logging
from collections.abc import Sequence as Seq

from shared.output import StepOutput
from shared.sequence import Sequence
from shared.step import SampledToken

log = logging.getLogger(__name__)


def accept_tokens(seq: Sequence, tokens: Seq[SampledToken]) -> StepOutput:
    """Append tokens in order until one ends the sequence; what comes after the end is dropped.

    A token that is none, or that the tokenizer cannot read, ends its own sequence with "error" and no other.
    """
    accepted: list[SampledToken] = []
    text = ""
    error = None
    is_first = seq.num_output_tokens == 0
    for token in tokens:
        if (error := token.error) is None:
            seq.token_ids.append(token.token_id)
            accepted.append(token)
            piece, error = _text_or_error(seq, token.token_id)
            text += piece
        if error is not None:
            seq.finish("error")
        if seq.is_finished:
            break
    logprobs = [token.logprobs for token in accepted if token.logprobs is not None]
    seq.logprobs += logprobs
    return StepOutput(
        request_id=seq.request_id,
        index=seq.index,
        token_ids=[token.token_id for token in accepted],
        text=text,
        finish_reason=seq.finish_reason,
        logprobs=logprobs or None,
        prompt_logprobs=list(seq.prompt_logprobs) if is_first and seq.params.prompt_logprobs is not None else None,
        error=error,
        failed_alone=error is not None,
    )


def _text_or_error(seq: Sequence, token_id: int) -> tuple[str, str | None]:
    """The text that may go out after a token that has been appended; finishes the sequence where it is over."""
    try:
        text = _visible_text(seq, token_id)
        if reason := _finish_reason(seq, token_id):
            text += seq.text_stream.finish()
            seq.finish("stop" if seq.text_stream.stopped else reason)
        return text, None
    except Exception:  # whatever a tokenizer raises
        log.exception("token %d of %s cannot be read", token_id, seq.name)
        return "", f"the tokenizer cannot read token {token_id}"


def _visible_text(seq: Sequence, token_id: int) -> str:
    """The text that may go out after this token; an id that ends the output has none."""
    if _is_end_token(seq, token_id):
        return ""
    return seq.text_stream.push(token_id, check_stop=seq.num_output_tokens >= seq.params.min_tokens)


def _finish_reason(seq: Sequence, token_id: int) -> str | None:
    """The first thing in token order that ends the output decides."""
    if _is_end_token(seq, token_id) or seq.text_stream.stopped:
        return "stop"
    if len(seq.token_ids) >= seq.max_num_tokens:
        return "length"
    return None


def _is_end_token(seq: Sequence, token_id: int) -> bool:
    return token_id in seq.eos_token_ids or token_id in seq.params.stop_token_ids
