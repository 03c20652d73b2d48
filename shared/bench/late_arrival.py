"""Another way to give an engine its work: the last request comes while the others are being served.

    streams   token  token  token       token       token  token  token
    late                         arrives       first token

Steps are run by hand, so the late request comes between two of them, never in the middle of one.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any

from shared.bench.latency import Answer, Served
from shared.request import Request


def serve_with_late_arrival(
    engine: Any, requests: Seq[Request], *, num_tokens: int, clock: Callable[[], float] = time.perf_counter
) -> Served:
    """Hand the last request over once each of the others has `num_tokens` tokens, then run all to their ends.

    clock: the one that the engine's stamps are of. Raises RuntimeError where a stream did not last until the
    late request's first token: there would be nothing to disturb.
    """
    recorder = _Recorder(engine, clock)
    streams = [recorder.hand_over(request) for request in requests[:-1]]
    while engine.has_unfinished() and any(len(stream.token_ids) < num_tokens for stream in streams):
        recorder.step()
    late = recorder.hand_over(requests[-1])
    while engine.has_unfinished():
        recorder.step()
    if any(stream.token_times[-1] < late.token_times[0] for stream in streams):
        raise RuntimeError("a stream ended before the long prompt's first token, so the gaps mean nothing")
    return Served(clock() - recorder.started, [*streams, late])


class _Recorder:
    """Runs steps and keeps what came of each request, in seconds since `started`."""

    def __init__(self, engine: Any, clock: Callable[[], float]) -> None:
        self.started = clock()
        self._engine = engine
        self._clock = clock
        self._answers: dict[str, Answer] = {}  # request id -> what has come of it

    def hand_over(self, request: Request) -> Answer:
        answer = Answer([], [], arrival=self._clock() - self.started)
        self._answers[self._engine.add_request(request)] = answer
        return answer

    def step(self) -> None:
        """The tokens of a step come together, so they get one time: the last of the stamps they got one by one.

        With their own stamps, microseconds apart, the next step's gap would seem to begin before this step ended.
        """
        outputs = self._engine.step()
        moment = max((output.time for output in outputs), default=0.0) - self.started
        for output in outputs:
            answer = self._answers[output.request_id]
            answer.token_ids.extend(output.token_ids)
            answer.token_times.extend([moment] * len(output.token_ids))
