"""How many guesses to verify: fixed, or as many as pay on this machine for this sequence. Torch-free.

A step of T tokens takes about a + b * T seconds. Where reading the weights dominates (a), a few more tokens are nearly
free; where computing does (b), each costs what any other token costs. With R tokens per second coming out (as things
are, or without any guess if that is more), the j-th guess of a sequence brings p^j tokens (p: how often its guesses are
right) and costs b seconds, so

    the j-th guess pays   if   p^j > b * R
"""

from dataclasses import dataclass, field
from typing import Protocol

from shared.sequence import Sequence

FORGETTING = 0.95  # per step: what was measured 50 steps ago counts for little
MIN_SPREAD = 0.5  # variance of T (tokens squared) below which a and b cannot be told apart
PRIOR_RIGHT, PRIOR_TRIALS = 2.0, 3.0  # before anything is known two guesses of three are taken to be right
MEMORY_TRIALS = 30.0  # how many guesses of a sequence are remembered
PROBE_EVERY = 16  # steps without a guess, then one is made: things may have changed


class DraftLength(Protocol):
    cap: int

    def choose(self, seq: Sequence) -> int:
        """Guesses to verify in the sequence's next step."""

    def note_step(self, num_rows: int, num_tokens: int, num_out: int, seconds: float) -> None:
        """A step without prefill ran `num_tokens` of `num_rows` sequences and let `num_out` come out."""

    def note_guesses(self, seq: Sequence, num_right: int, num_tried: int) -> None: ...
    def release(self, seq: Sequence) -> None: ...


class FixedLength:
    """Always the cap."""

    def __init__(self, cap: int) -> None:
        self.cap = cap

    def choose(self, seq: Sequence) -> int:  # noqa: ARG002
        return self.cap

    def note_step(self, num_rows: int, num_tokens: int, num_out: int, seconds: float) -> None:
        pass

    def note_guesses(self, seq: Sequence, num_right: int, num_tried: int) -> None:
        pass

    def release(self, seq: Sequence) -> None:
        pass


@dataclass(slots=True)
class StepCost:
    """Seconds of a step over its tokens, as a line through what was measured lately."""

    weight: float = 0.0
    tokens: float = 0.0
    tokens_squared: float = 0.0
    seconds: float = 0.0
    seconds_by_tokens: float = 0.0
    rows: float = 0.0
    out: float = 0.0

    def note(self, num_rows: int, num_tokens: int, num_out: int, seconds: float) -> None:
        measured = (1.0, num_tokens, num_tokens**2, seconds, seconds * num_tokens, num_rows, num_out)
        for name, value in zip(self.__dataclass_fields__, measured):
            setattr(self, name, FORGETTING * getattr(self, name) + value)

    @property
    def per_token(self) -> float | None:
        """b, in seconds; None while steps of different size have not been seen."""
        if not self.weight:
            return None
        mean = self.tokens / self.weight
        spread = self.tokens_squared / self.weight - mean**2
        if spread < MIN_SPREAD:
            return None
        return max(0.0, (self.seconds_by_tokens - mean * self.seconds) / self.weight / spread)

    @property
    def threshold(self) -> float:
        """b * R: how likely a guess must be to pay. 0 while unknown: guessing is how one finds out."""
        per_token = self.per_token
        if per_token is None:
            return 0.0
        without_guesses = self.seconds - per_token * (self.tokens - self.rows)
        return per_token * max(self.out / self.seconds, self.rows / max(without_guesses, per_token * self.rows))


@dataclass(slots=True)
class AdaptiveLength:
    """As many guesses as pay, from 0 to the cap."""

    cap: int
    cost: StepCost = field(default_factory=StepCost)
    _right: dict[Sequence, float] = field(default_factory=dict)
    _tried: dict[Sequence, float] = field(default_factory=dict)
    _silent: dict[Sequence, int] = field(default_factory=dict)  # sequence -> steps since its last guess

    def choose(self, seq: Sequence) -> int:
        threshold, probability = self.cost.threshold, self._probability(seq)
        length = 0
        while length < self.cap and probability ** (length + 1) > threshold:
            length += 1
        self._silent[seq] = 0 if length else self._silent.get(seq, 0) + 1
        return 1 if self._silent[seq] and self._silent[seq] % PROBE_EVERY == 0 else length

    def note_step(self, num_rows: int, num_tokens: int, num_out: int, seconds: float) -> None:
        self.cost.note(num_rows, num_tokens, num_out, seconds)

    def note_guesses(self, seq: Sequence, num_right: int, num_tried: int) -> None:
        keep = 1 - min(num_tried, MEMORY_TRIALS) / MEMORY_TRIALS
        self._right[seq] = keep * self._right.get(seq, PRIOR_RIGHT) + num_right
        self._tried[seq] = keep * self._tried.get(seq, PRIOR_TRIALS) + num_tried

    def release(self, seq: Sequence) -> None:
        for known in (self._right, self._tried, self._silent):
            known.pop(seq, None)

    def _probability(self, seq: Sequence) -> float:
        """Never quite 1: an endless streak still stops somewhere."""
        return min(0.98, self._right.get(seq, PRIOR_RIGHT) / self._tried.get(seq, PRIOR_TRIALS))
