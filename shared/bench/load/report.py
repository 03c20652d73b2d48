"""From what was seen of the requests to the figures of a run. What is undefined is None, never 0.

Failed requests have no latencies, count against the goodput, and are counted by reason.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from statistics import mean

from shared.bench.latency import Answer, inter_token_s, percentile
from shared.bench.load.observation import Observation
from shared.bench.results import Figures


@dataclass(frozen=True, slots=True)
class Slo:
    """What a client is promised, in seconds: its first token within `ttft_s`, each further one within `tpot_s`."""

    ttft_s: float = 2.0
    tpot_s: float = 0.1

    def is_met(self, one: Observation) -> bool:
        """By a whole answer with at least a token; a single one has no time per further token to miss."""
        if not one.is_ok or one.ttft_s is None:
            return False
        return one.ttft_s <= self.ttft_s and (one.tpot_s is None or one.tpot_s <= self.tpot_s)


def figures(seen: Seq[Observation], slo: Slo) -> Figures:
    """Latencies are from the schedule; `from_send` is what a clock started at the send would say."""
    ok = [one for one in seen if one.is_ok]
    seconds = _seconds(seen)
    tokens = _all([one.num_tokens for one in ok])
    num_good = sum(slo.is_met(one) for one in seen)
    return {
        "seconds": seconds,
        "num_requests": len(seen),
        "num_ok": len(ok),
        "num_failed": len(seen) - len(ok),
        **{f"failed: {reason}": num for reason, num in sorted(failures(seen).items())},
        "num_without_tokens": sum(one.num_tokens == 0 for one in ok),
        "output_tokens": sum(tokens) if tokens is not None and ok else None,
        "num_good": num_good,
        "good_share": num_good / len(seen) if seen else None,
        "goodput_rps": num_good / seconds if seconds else None,
        "throughput_rps": len(ok) / seconds if seconds and ok else None,
        **_latencies(ok),
        "send_late_max_s": max((one.sent - one.scheduled for one in seen if one.sent is not None), default=None),
    }


def failures(seen: Iterable[Observation]) -> Counter[str]:
    """Reason -> requests."""
    return Counter(one.failure or "not finished" for one in seen if not one.is_ok)


def cannot_measure(seen: Seq[Observation]) -> list[str]:
    """What this server does not let anybody see, in sentences."""
    answered = [one for one in seen if one.is_ok and one.pieces]
    notes = []
    if any(one.num_tokens is None for one in answered):
        notes.append(
            "no token counts: it sends neither usage nor token ids, so tokens per second, TPOT and ITL are not "
            "measured, and goodput looks at TTFT alone (the gap between events is)"
        )
    elif not all(one.has_token_times for one in answered):
        notes.append(
            "no token times: an event can hold several tokens and does not say how many, so ITL is not measured "
            "(the gap between events is); TPOT is, from the usage"
        )
    elif any((piece.num_tokens or 0) > 1 for one in answered for piece in one.pieces):
        notes.append("several tokens in an event: they share the gap before them, and ITL is spread over tokens")
    if num_at_once := sum(len(one.pieces) == 1 and (one.num_tokens or 0) > 1 for one in answered):
        notes.append(f"{num_at_once} answers of several tokens came in a single event: they have no TPOT")
    if num_empty := sum(one.is_ok and not one.pieces for one in seen):
        notes.append(f"{num_empty} whole answers without a token: they have no TTFT")
    return notes


def _latencies(ok: Seq[Observation]) -> Figures:
    ttft = [one.ttft_s for one in ok if one.ttft_s is not None]
    tpot = [one.tpot_s for one in ok if one.tpot_s is not None]
    e2e = [one.e2e_s for one in ok if one.e2e_s is not None]
    from_send = [one.from_send_s for one in ok if one.from_send_s is not None]
    has_all_times = all(one.has_token_times for one in ok if one.pieces)
    itl = list(_inter_token(ok)) if has_all_times else []
    gaps = [gap for one in ok for gap in one.chunk_gaps]
    return {
        "ttft_p50_s": percentile(ttft, 50),
        "ttft_p99_s": percentile(ttft, 99),
        "tpot_p50_s": percentile(tpot, 50),
        "tpot_p99_s": percentile(tpot, 99),
        "itl_p99_s": percentile(itl, 99),
        "chunk_gap_p99_s": percentile(gaps, 99),
        "e2e_mean_s": mean(e2e) if e2e else None,
        "e2e_p50_s": percentile(e2e, 50),
        "e2e_p99_s": percentile(e2e, 99),
        "e2e_max_s": max(e2e, default=None),
        "from_send_mean_s": mean(from_send) if from_send else None,
        "from_send_p99_s": percentile(from_send, 99),
    }


def _inter_token(ok: Seq[Observation]) -> Iterator[float]:
    for one in ok:
        yield from inter_token_s(Answer([], one.token_times))


def _seconds(seen: Seq[Observation]) -> float | None:
    """From the first scheduled moment to the last answer."""
    ended = [one.ended for one in seen if one.ended is not None]
    return max(ended) - min(one.scheduled for one in seen) if ended else None


def _all(values: Seq[int | None]) -> list[int] | None:
    """None if one of them is not known."""
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else None
