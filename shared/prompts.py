"""The prompts of a command line: arguments, a file of lines, or a file of JSON lines."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from shared.errors import InvalidRequest, SetupError
from shared.request import Request, SamplingParams

LINE_END = re.compile(r"\r\n?|\n")  # a text, also in JSON, may hold the other ends that Python knows
SAMPLING_FIELDS = {f.name for f in fields(SamplingParams)}


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt to run: `text` for people (empty where only ids were given), `request` for the engine."""

    text: str
    request: Request


def prompts_from_texts(texts: list[str], encode: Callable[[str], list[int]], params: dict[str, Any]) -> list[Prompt]:
    return [Prompt(text, Request(encode(text), SamplingParams(**params))) for text in texts]


def prompts_from_file(path: str, encode: Callable[[str], list[int]], params: dict[str, Any]) -> list[Prompt]:
    """One prompt a line, or JSON lines with `prompt` or `prompt_token_ids`, an `id` and any sampling field.

    path: "-" is standard input. params: what a line does not set itself.
    Raises SetupError for a file that cannot be read, InvalidRequest naming the line for what is wrong in it.
    """
    lines = [(number, line.strip()) for number, line in enumerate(LINE_END.split(_read(path)), 1) if line.strip()]
    if not lines:
        raise SetupError(f"{path} has no prompts; write one per line")
    if not lines[0][1].startswith("{"):
        return prompts_from_texts([line for _, line in lines], encode, params)
    return list(_json_prompts(path, lines, encode, params))


def _read(path: str) -> str:
    """Some editors begin a file with a byte order mark, which is no part of its text."""
    try:
        return (sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"cannot read prompts from {path}: {getattr(error, 'strerror', None) or error}") from error


def _json_prompts(
    path: str, lines: list[tuple[int, str]], encode: Callable[[str], list[int]], params: dict[str, Any]
) -> Iterator[Prompt]:
    for number, line in lines:
        where = f"{path}, line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:  # also a number of thousands of digits, or a deep nest
            raise InvalidRequest(where, f"is not JSON: {error}") from error
        try:
            yield _json_prompt(record, encode, params)
        except InvalidRequest as error:
            raise InvalidRequest(where, str(error)) from error


def _json_prompt(record: Any, encode: Callable[[str], list[int]], params: dict[str, Any]) -> Prompt:
    if not isinstance(record, dict):
        raise InvalidRequest("prompt", f"expected an object with one, got {type(record).__name__}")
    request_id, cache_salt = record.pop("id", None), record.pop("cache_salt", None)
    text, token_ids = record.pop("prompt", None), record.pop("prompt_token_ids", None)
    if (text is None) == (token_ids is None):
        raise InvalidRequest("prompt", "give either prompt or prompt_token_ids")
    if unknown := sorted(record.keys() - SAMPLING_FIELDS):
        raise InvalidRequest(
            unknown[0], f"is no field of a request; sampling fields: {', '.join(sorted(SAMPLING_FIELDS))}"
        )
    if text is not None and not isinstance(text, str):
        raise InvalidRequest("prompt", f"must be text, got {type(text).__name__}")
    if isinstance(record.get("logit_bias"), dict):
        record["logit_bias"] = _with_int_keys(record["logit_bias"])
    token_ids = encode(text) if text is not None else token_ids
    return Prompt(text or "", Request(token_ids, SamplingParams(**params | record), request_id, cache_salt))


def _with_int_keys(bias: dict[str, Any]) -> dict[int, Any]:
    """JSON has no numbers as keys."""
    try:
        return {int(token_id): value for token_id, value in bias.items()}
    except ValueError:
        raise InvalidRequest("logit_bias", "must map token ids to numbers") from None
