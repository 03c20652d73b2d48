"""When requests are to be sent: moments that are fixed before the first one goes. Torch-free.

Open loop: the schedule does not wait for the server. Its times are absolute, not sums of sleeps, so a slow client
cannot stretch it, and whoever is late is charged for it.
"""

import math
import random

INFINITE = math.inf


def poisson(rate: float, num: int, seed: int) -> list[float]:
    """Seconds from the start, gaps drawn from an exponential distribution of mean 1 / rate; all 0 for an infinite rate.

    Raises ValueError for a rate that is not above 0.
    """
    check_rate(rate)
    rng = random.Random(seed)
    moments, now = [], 0.0
    for _ in range(num):
        now += 0.0 if rate == INFINITE else rng.expovariate(rate)
        moments.append(now)
    return moments


def at_rate(moments: list[float], rate: float) -> list[float]:
    """The same pattern from 0 on, its mean gap stretched to 1 / rate: a short draw can be half as fast again."""
    if rate == INFINITE or len(moments) < 2:
        return [0.0 for _ in moments]
    factor = (len(moments) - 1) / rate / (moments[-1] - moments[0])
    return [factor * (moment - moments[0]) for moment in moments]


def constant(rate: float, num: int) -> list[float]:
    """Seconds from the start: 0, 1 / rate, 2 / rate, ..."""
    check_rate(rate)
    return [number / rate for number in range(num)]


def check_rate(rate: float) -> None:
    if math.isnan(rate) or rate <= 0:
        raise ValueError(f"a rate must be above 0 requests per second, or inf, got {rate:g}")


def rate_text(rate: float) -> str:
    """For labels."""
    return "all at once" if rate == INFINITE else f"{rate:g} requests/s"
