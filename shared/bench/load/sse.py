"""Server-sent events, as they come over the wire."""


class SseParser:
    """Bytes in, the data of whole events out; what is incomplete is kept for the next bytes."""

    def __init__(self) -> None:
        self._buffer = b""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[str]:
        """The data of every event that these bytes complete. Comments and other fields are dropped."""
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        events = []
        for line in lines:
            text = line.rstrip(b"\r").decode("utf-8", errors="replace")
            if text.startswith("data:"):
                self._data.append(text[5:].removeprefix(" "))
            elif not text and self._data:
                events.append("\n".join(self._data))
                self._data = []
        return events
