"""JSON and server-sent events as they go over the wire."""

import json
from typing import Any

from fastapi.responses import JSONResponse
from fastapi.sse import format_sse_event

LINE_ENDS = str.maketrans({end: f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"})  # JSON allows them raw


def to_json(content: Any) -> str:
    """Strict JSON on one line, also for who takes Unicode's line ends for one: NaN and infinity raise ValueError."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text if text.isascii() else text.translate(LINE_ENDS)


class ApiResponse(JSONResponse):
    """A JSON body that may repeat what a client sent: half a surrogate pair, which is no UTF-8, becomes "?"."""

    def render(self, content: Any) -> bytes:
        return to_json(content).encode("utf-8", errors="replace")


def sse_event(content: Any) -> bytes:
    return format_sse_event(data_str=to_json(content))


DONE_EVENT = format_sse_event(data_str="[DONE]")
