"""Faults to put into a running server, and (`python -m tests.faults serve ...`) the newest `serve` with some in it."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import torch

from shared import cli, cli_serve
from shared.registry import newest_phase
from shared.tiny_models import tiny_llama
from tests.helpers import PB, PC, T0_OUTPUTS, assert_clean, harden, slow_down, wait_until, wrap_model_forward
from tests.server_helpers import Served, open_server

NEWEST = newest_phase()
POISON = 66  # a token that turns a prompt into NaN in `poisoned_model`; T0 never says it
HANG = 67  # a token that makes the server of `main` hang in a step
HANGING_CLOSE_S = 0.5


@contextmanager
def open_newest(**options: Any) -> Iterator[Served]:
    """The final engine behind a server; every step is checked, and slower than it need be."""
    with open_server(NEWEST, **options) as served:
        harden(served.engine)
        slow_down(served.engine, 0.01)
        yield served


class FailingSteps:
    """Raises these errors in the next steps, one each."""

    def __init__(self, engine: Any) -> None:
        self.errors: deque[BaseException] = deque()
        wrap_model_forward(engine, self._raise)

    def _raise(self) -> None:
        if self.errors:
            raise self.errors.popleft()


class HangingStep:
    """While it `is_on`, a step does not end before `let_go`."""

    def __init__(self, engine: Any) -> None:
        self.is_on = False
        self._goes_on = threading.Event()
        wrap_model_forward(engine, self._hang)

    def let_go(self) -> None:
        self.is_on = False
        self._goes_on.set()

    def _hang(self) -> None:
        if self.is_on:
            self._goes_on.wait(60)


def poisoned_model() -> Any:
    """T0, but whoever has POISON in its prompt gets NaN, out of its own K/V."""
    model = tiny_llama()
    with torch.no_grad():
        model.model.embed_tokens.weight[POISON] = torch.nan
    return model


@contextmanager
def unharmed_neighbours(served: Served) -> Iterator[None]:
    """Two others that run meanwhile get all of their tokens, whatever happens inside."""
    with ThreadPoolExecutor(2) as pool:
        jobs = [pool.submit(served.generate, prompt, 24) for prompt in (PB, PC)]
        wait_until(lambda: served.engine.stats().num_running == 2)
        yield
        assert [tokens_of(job) for job in jobs] == [T0_OUTPUTS["PB"], T0_OUTPUTS["PC"]]


def tokens_of(job: "Future[httpx.Response]") -> Any:
    response = job.result(timeout=20)
    assert response.status_code == 200, response.text
    return response.json()["token_ids"]


def assert_recovered(served: Served, seconds: float = 5.0) -> None:
    """Nothing is left of any request, everybody is served again, and the tokens are right."""
    wait_until(lambda: served.http.get("/health").status_code == 200, seconds)
    assert_clean(served.engine)
    assert not served.app.state.service._open
    served.assert_alive()


def status_counts(served: Served, status: int) -> float:
    """How many requests have ended with this status, by the server's own count."""
    lines = served.http.get("/metrics").text.splitlines()
    counts = [line for line in lines if line.startswith("pageserve_http_requests_total") and f'"{status}"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in counts)


def main() -> None:
    build: Callable[..., Any] = cli.build_engine

    def build_faulty(*arguments: Any) -> Any:
        engine = build(*arguments)
        slow_down(engine)
        execute = engine.runner.execute

        def hanging(plan: Any) -> Any:
            if any(HANG in item.seq.token_ids for item in plan.items):
                threading.Event().wait()
            return execute(plan)

        engine.runner.execute = hanging
        return engine

    cli.build_engine = build_faulty
    cli_serve.CLOSE_S = HANGING_CLOSE_S
    cli.main(NEWEST.number)


if __name__ == "__main__":
    main()
