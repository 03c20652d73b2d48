"""One server under several loads, in turn: which loads there are, and a run of each."""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Literal

from shared.bench.load.arrivals import at_rate, constant, poisson, rate_text
from shared.bench.load.asks import Lengths, make_asks
from shared.bench.load.client import first_model, make_client
from shared.bench.load.loops import Watch, closed_loop, open_loop
from shared.bench.load.observation import Observation
from shared.bench.load.own_loop import run_to_end
from shared.bench.load.report import Slo, cannot_measure, figures
from shared.bench.load.target import Ask, Target
from shared.bench.results import Figures
from shared.errors import SetupError

Arrivals = Literal["poisson", "constant"]
FROM_SEND = "from the send"
WARM_UP_DRAW = -1


@dataclass(frozen=True, slots=True)
class Case:
    """One load: open with a `rate` in requests per second (inf: all at once), or closed with `concurrency` clients.

    max_concurrency: the cap of an open loop's client. is_from_send: the clock starts late, when a request is sent;
    only to show what that hides.
    """

    name: str
    label: str
    rate: float | None = None
    concurrency: int | None = None
    max_concurrency: int | None = None
    is_from_send: bool = False


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is asked, and how often. num_warm_up: requests before each run, one after the other, that do not count."""

    kind: str
    lengths: Lengths
    num_requests: int
    seed: int = 0
    arrivals: Arrivals = "poisson"
    num_warm_up: int = 0
    slo: Slo = field(default_factory=Slo)

    def asks(self, draw: int = 0) -> list[Ask]:
        return make_asks(self.kind, self.num_requests, self.seed, self.lengths, draw)

    def schedule(self, rate: float) -> list[float]:
        if self.arrivals == "constant":
            return constant(rate, self.num_requests)
        return at_rate(poisson(rate, self.num_requests, self.seed), rate)


def rate_case(rate: float, max_concurrency: int | None = None) -> Case:
    cap = "" if max_concurrency is None else f", at most {max_concurrency} at once"
    return Case(f"rate-{rate:g}", rate_text(rate) + cap, rate=rate, max_concurrency=max_concurrency)


def client_case(concurrency: int) -> Case:
    plural = "s" if concurrency > 1 else ""
    return Case(f"clients-{concurrency}", f"{concurrency} client{plural}, closed loop", concurrency=concurrency)


def comparison(rate: float, cap: int) -> list[Case]:
    """The same load, measured honestly and not: whoever waits for answers before sending does not see the queue."""
    at_most = f"at most {cap} under way"
    return [
        Case("open", f"open loop at {rate_text(rate)}, from the schedule", rate=rate),
        Case("capped", f"the same, {at_most}, from the schedule", rate=rate, max_concurrency=cap),
        Case("capped-send", f"the same, {at_most}, {FROM_SEND}", rate=rate, max_concurrency=cap, is_from_send=True),
    ]


def run_case(target: Target, traffic: Traffic, case: Case, watch: Watch, draw: int = 0) -> tuple[Figures, list[str]]:
    """Its figures, and what could not be measured. draw: which prompts, see `make_asks`."""
    seen = run_to_end(_observe(target, traffic, case, watch, draw))
    notes = cannot_measure(seen)
    if case.is_from_send:
        seen = [replace(one, scheduled=one.scheduled if one.sent is None else one.sent) for one in seen]
    return figures(seen, traffic.slo), notes


def model_of(target: Target) -> str | None:
    """The first model that the server lists."""

    async def ask() -> str | None:
        async with make_client(target) as client:
            return await first_model(client, target)

    return run_to_end(ask())


async def _observe(target: Target, traffic: Traffic, case: Case, watch: Watch, draw: int) -> list[Observation]:
    asks = traffic.asks(draw)
    if asks:
        target.body(asks[0])  # what the API cannot take is refused before anything is sent
    if traffic.num_warm_up:
        others = traffic.asks(WARM_UP_DRAW - draw)  # of which nothing can be cached
        await closed_loop(target, others[: traffic.num_warm_up], concurrency=1)
    if case.concurrency is not None:
        return await closed_loop(target, asks, case.concurrency, watch)
    if case.rate is None:
        raise SetupError(f"{case.name}: neither a rate nor clients")
    return await open_loop(target, asks, traffic.schedule(case.rate), case.max_concurrency, watch)


def watch_text(announce: Callable[[str], None], label: str) -> Watch:
    """Says how far a run is."""

    def watch(seen: Seq[Observation]) -> None:
        sent = sum(one.sent is not None for one in seen)
        ended = sum(one.ended is not None for one in seen)
        failed = sum(one.failure is not None for one in seen)
        tokens = sum(one.counted_tokens or len(one.pieces) for one in seen)
        done = f"{ended - failed} answered, {failed} failed, {tokens} tokens"
        announce(f"{label}: {sent} sent, {sent - ended} under way, {done}")

    return watch
