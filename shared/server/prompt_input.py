"""Prompts as clients send them -> token ids. Everything here runs on the tokenizer's thread."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from shared.errors import InvalidRequest
from shared.prompt_encoding import encode_chat, encode_text

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}  # ours -> the template's


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """token_ids: as the engine gets them. text: how the client wrote them; None for ids, or what was cut."""

    token_ids: list[int]
    text: str | None = None


Encode = Callable[[Any], list[EncodedPrompt]]  # a tokenizer (or None) -> the prompts of one HTTP request


def encode_prompts(tokenizer: Any, prompt: Any, keep_last: int | None = None) -> list[EncodedPrompt]:
    """A text, token ids, or a list of either. What the ids may be is checked by `Request`.

    keep_last: cut each prompt to its last tokens. Raises InvalidRequest.
    """
    return [_cut(_encode_one(tokenizer, one), keep_last) for one in _prompts(prompt)]


def count_prompts(prompt: Any) -> int:
    """How many `encode_prompts` would give. Raises InvalidRequest for what is none."""
    return len(_prompts(prompt))


def with_text(tokenizer: Any, prompt: EncodedPrompt) -> EncodedPrompt:
    """The same, with how it reads, special tokens included; empty without a tokenizer."""
    if prompt.text is not None:
        return prompt
    text = tokenizer.decode(prompt.token_ids, skip_special_tokens=False) if tokenizer is not None else ""
    return replace(prompt, text=text)


def encode_messages(tokenizer: Any, messages: Any, keep_last: int | None = None) -> list[EncodedPrompt]:
    """A conversation through the chat template: one prompt. Raises InvalidRequest."""
    if not isinstance(messages, list):
        raise InvalidRequest("messages", f"must be a list, got {type(messages).__name__}")
    turns = [_turn(f"messages[{place}]", message) for place, message in enumerate(messages)]
    return [_cut(EncodedPrompt(encode_chat(tokenizer, turns)), keep_last)]


def _prompts(prompt: Any) -> list[Any]:
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise InvalidRequest("prompt", f"must be text, token ids, or a list of either; got {type(prompt).__name__}")
    if not prompt:
        raise InvalidRequest("prompt", "is empty; there must be at least one token to go on from")
    kinds = {type(one) for one in prompt}
    if kinds & {str, list} and len(kinds) > 1:
        raise InvalidRequest("prompt", "mixes texts and token ids; send a list of one kind")
    return prompt if kinds & {str, list} else [prompt]


def _encode_one(tokenizer: Any, prompt: Any) -> EncodedPrompt:
    if isinstance(prompt, str):
        if tokenizer is None:
            raise InvalidRequest("prompt", "this model has no tokenizer; send token ids")
        return EncodedPrompt(encode_text(tokenizer, prompt), prompt)
    return EncodedPrompt(prompt)


def _cut(prompt: EncodedPrompt, keep_last: int | None) -> EncodedPrompt:
    if keep_last is None or len(prompt.token_ids) <= keep_last:
        return prompt
    return EncodedPrompt(prompt.token_ids[-keep_last:])


def _turn(where: str, message: Any) -> dict[str, str]:
    """One message with its content as a single text."""
    if not isinstance(message, dict):
        raise InvalidRequest("messages", f"{where} must be an object with role and content")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidRequest("messages", f"{where}.role must be one of {', '.join(ROLES)}; got {role!r}")
    if unknown := sorted(name for name in message.keys() - {"role", "content", "name"} if message[name]):
        raise InvalidRequest("messages", f"{where}.{unknown[0]} is not offered")
    return {"role": ROLES[role], "content": "".join(_content_parts(where, content))}


def _content_parts(where: str, content: Any) -> Iterable[str]:
    if isinstance(content, str):
        return [content]
    if isinstance(content, list) and all(_is_text_part(part) for part in content):
        return [part["text"] for part in content]
    raise InvalidRequest("messages", f"{where}.content must be text, or a list of parts of type text")


def _is_text_part(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)
