"""What is seen of one request from outside: when it was due, when it went, and what came when.

scheduled    sent       events[0]   events[1] ...   ended
    |---------|------------|-----------|--------------|      seconds since the run began
    |<-------- TTFT ------>|
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Piece:
    """An event that brought something. num_tokens: None where the server does not say how many."""

    time: float
    num_tokens: int | None


@dataclass(slots=True)
class Observation:
    """One request; times in seconds since the run began.

    sent: None until it went. num_tokens: of the whole output, from token ids or usage; None where the server tells
    neither. failure: why there is no whole answer, in a few words that group well; None for a success.
    """

    scheduled: float
    sent: float | None = None
    ended: float | None = None
    pieces: list[Piece] = field(default_factory=list)
    usage_tokens: int | None = None
    failure: str | None = None

    @property
    def is_ok(self) -> bool:
        return self.failure is None and self.ended is not None

    @property
    def num_tokens(self) -> int | None:
        """What the server says in the end, else what its pieces say; an answer without a piece has none."""
        if self.usage_tokens is not None:
            return self.usage_tokens
        return self.counted_tokens if self.pieces else 0

    @property
    def counted_tokens(self) -> int | None:
        """Summed over the pieces; None where one of them does not say, or nothing came."""
        counts = [piece.num_tokens for piece in self.pieces]
        return sum(count for count in counts if count is not None) if counts and None not in counts else None

    @property
    def has_token_times(self) -> bool:
        """Each token's moment is known: all pieces say how many they brought, or there are as many as tokens."""
        return self.counted_tokens is not None or (bool(self.pieces) and len(self.pieces) == self.usage_tokens)

    @property
    def ttft_s(self) -> float | None:
        return self.pieces[0].time - self.scheduled if self.pieces else None

    @property
    def tpot_s(self) -> float | None:
        """(last - first) / (tokens - 1); None below two tokens or events, or where the number is not known."""
        num_tokens = self.num_tokens
        if num_tokens is None or num_tokens < 2 or len(self.pieces) < 2:
            return None
        return (self.pieces[-1].time - self.pieces[0].time) / (num_tokens - 1)

    @property
    def e2e_s(self) -> float | None:
        return None if self.ended is None else self.ended - self.scheduled

    @property
    def from_send_s(self) -> float | None:
        """What a client that starts its clock when it sends would call the latency."""
        return None if self.ended is None or self.sent is None else self.ended - self.sent

    @property
    def token_times(self) -> list[float]:
        """The moment of each token, where `has_token_times`."""
        return [piece.time for piece in self.pieces for _ in range(1 if piece.num_tokens is None else piece.num_tokens)]

    @property
    def chunk_gaps(self) -> list[float]:
        """Between events, whatever they hold."""
        return [later.time - sooner.time for sooner, later in zip(self.pieces, self.pieces[1:])]
