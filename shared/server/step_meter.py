"""What the engine's steps were like, read off its events. Called on the engine's thread."""

from shared.events import Event
from shared.server.distribution import Distribution


class StepMeter:
    """A step runs several rows, each with an event; the step is over when a row of the next one comes by."""

    def __init__(self, duration: Distribution) -> None:
        self.num_steps = 0
        self.num_rows = 0  # sequences, over all steps
        self.num_tokens = 0  # run, over all steps; drafts left out
        self._duration = duration
        self._step = 0  # the last one seen

    def saw(self, event: Event) -> None:
        if event.kind not in ("chunk", "decode"):
            return
        if event.step != self._step:
            self._step = event.step
            self.num_steps += 1
            self._duration.add(event.duration)
        self.num_rows += 1
        self.num_tokens += event.num_tokens
