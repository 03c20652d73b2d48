"""One request as a client sees it: an iterator over step outputs that cancels when it is closed. Torch-free."""

from collections.abc import Callable, Iterator
from queue import SimpleQueue
from types import TracebackType

from shared.errors import EngineError
from shared.output import RequestOutput, StepOutput
from shared.request_state import RequestState


class RequestStream(Iterator[StepOutput]):
    """Yields until every completion of the request has its finish reason.

    Closing it (by hand, by `with`, or by dropping it) aborts what still runs. Raises EngineError
    where a step of the engine failed.
    """

    def __init__(
        self, state: RequestState, outputs: "SimpleQueue[StepOutput]", abort: Callable[[RequestState], None]
    ) -> None:
        self._state = state
        self._outputs = outputs
        self._abort = abort
        self._num_open = len(state.sequences)

    @property
    def request_id(self) -> str:
        return self._state.request_id

    def __next__(self) -> StepOutput:
        if self._num_open == 0:
            raise StopIteration
        output = self._outputs.get()
        if output.finish_reason is not None:
            self._num_open -= 1
        if output.finish_reason == "error":
            raise EngineError(output.error)
        return output

    def result(self) -> RequestOutput:
        """Run to the end and return the whole answer."""
        for _ in self:
            pass
        return self._state.output()

    def close(self) -> None:
        """Stop early: the engine drops the request and takes its memory back. Closing twice is closing once."""
        if self._num_open:
            self._num_open = 0
            self._abort(self._state)

    def __enter__(self) -> "RequestStream":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_num_open"):
            self.close()


def results(streams: list[RequestStream]) -> list[RequestOutput]:
    """Every stream's answer, in order; if one fails or the caller is interrupted, all are closed."""
    try:
        return [stream.result() for stream in streams]
    finally:
        for stream in streams:
            stream.close()
