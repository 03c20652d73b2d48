"""Logprobs in OpenAI's two shapes. Every number is finite: JSON knows no infinity."""

from collections.abc import Sequence as Seq
from typing import TypedDict

from shared.output import TokenLogprobs
from shared.server.token_texts import TokenTexts


class CompletionLogprobs(TypedDict):
    """Of /v1/completions: four lists with an entry per token. The first token of an echoed prompt has nulls."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]  # where the token begins in the choice's text, in characters


class ChatTopLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(ChatTopLogprob):
    top_logprobs: list[ChatTopLogprob]


class ChatLogprobs(TypedDict):
    """Of /v1/chat/completions."""

    content: list[ChatTokenLogprob]


def completion_logprobs(
    texts: TokenTexts, token_ids: Seq[int], logprobs: Seq[TokenLogprobs | None], offsets: Seq[int]
) -> CompletionLogprobs:
    """One entry of each per token."""
    shown = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=list(offsets))
    for token_id, entry in zip(token_ids, logprobs):
        shown["tokens"].append(texts.text_of(token_id))
        shown["token_logprobs"].append(None if entry is None else entry.logprob)
        shown["top_logprobs"].append(None if entry is None else _by_text(texts, entry))
    return shown


def chat_logprobs(texts: TokenTexts, logprobs: Seq[TokenLogprobs]) -> ChatLogprobs:
    return ChatLogprobs(content=[_chat_entry(texts, entry) for entry in logprobs])


def _by_text(texts: TokenTexts, entry: TokenLogprobs) -> dict[str, float]:
    """Text -> logprob, the taken token among them. Of two tokens that read alike, the likelier one."""
    shown: dict[str, float] = {}
    for token_id, logprob in entry.top.items():  # the most likely first
        shown.setdefault(texts.text_of(token_id), logprob)
    shown.setdefault(texts.text_of(entry.token_id), entry.logprob)
    return shown


def _chat_entry(texts: TokenTexts, entry: TokenLogprobs) -> ChatTokenLogprob:
    top = [_chat_top(texts, token_id, logprob) for token_id, logprob in entry.top.items()]
    return ChatTokenLogprob(**_chat_top(texts, entry.token_id, entry.logprob), top_logprobs=top)


def _chat_top(texts: TokenTexts, token_id: int, logprob: float) -> ChatTopLogprob:
    return ChatTopLogprob(token=texts.text_of(token_id), logprob=logprob, bytes=list(texts.bytes_of(token_id)))
