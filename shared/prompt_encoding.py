"""Prompts as token ids: plain text, or a chat through the model's template."""

from collections.abc import Sequence as Seq
from typing import Any

from shared.errors import InvalidRequest


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Plain text; the tokenizer's own special tokens (a BOS, where it has one) are added.

    Raises InvalidRequest for what is no text, and if that gives no token at all: there is nothing to go on from.
    """
    token_ids = tokenizer(checked_text("prompt", text)).input_ids
    if not token_ids:
        raise InvalidRequest("prompt", "is empty; write at least one character")
    return list(token_ids)


def encode_chat(tokenizer: Any, messages: Seq[dict[str, Any]]) -> list[int]:
    """Messages (`{"role": ..., "content": ...}`) through the chat template, ready for the assistant's turn.

    The template writes its special tokens itself: none are added a second time.
    Raises InvalidRequest if the model has no template, the template refuses the messages, or one is no text.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise InvalidRequest("messages", "this model has no chat template; send a plain prompt")
    if not messages:
        raise InvalidRequest("messages", "is empty; there must be at least one message")
    for message in messages:
        if isinstance(content := message.get("content"), str):
            checked_text("messages", content)
    try:
        token_ids = tokenizer.apply_chat_template(
            list(messages), add_generation_prompt=True, tokenize=True, return_dict=False
        )
    except Exception as error:  # whatever a template's author lets it raise
        raise InvalidRequest("messages", f"the chat template refused them: {error}") from error
    if not token_ids:
        raise InvalidRequest("messages", "the chat template made no token of them")
    return list(token_ids)


def checked_text(param: str, text: str) -> str:
    """The same. Raises InvalidRequest for what no tokenizer takes; a command line has it of bytes that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = f"character {error.start}"
        raise InvalidRequest(param, f"is no valid text: half a surrogate pair, or no UTF-8, at {where}") from None
    return text
