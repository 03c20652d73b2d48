"""Many requests, one loop: their step outputs in the order in which they come. Torch-free."""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from functools import partial
from queue import SimpleQueue
from typing import Any

from shared.output import StepOutput
from shared.request import Request


def merged_outputs(engine: Any, requests: Seq[Request]) -> Iterator[tuple[int, StepOutput]]:
    """Hand all requests to the engine now, then yield (position in `requests`, output) until the last is over.

    If the caller stops early or is interrupted, what still runs is aborted.
    """
    arrived: SimpleQueue[tuple[int, StepOutput]] = SimpleQueue()

    def deliver(position: int, output: StepOutput) -> None:
        arrived.put((position, output))

    ids: list[str] = []
    num_open = len(requests)
    try:
        for position, request in enumerate(requests):
            ids.append(engine.submit(request, partial(deliver, position), is_patient=True))
        while num_open:
            position, output = arrived.get()
            num_open -= output.metrics is not None
            yield position, output
    finally:
        if num_open:
            for request_id in ids:
                engine.abort(request_id)
