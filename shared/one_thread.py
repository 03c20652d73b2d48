"""Work that must not leave a team of OpenMP threads behind.

Each Python thread that computes gets a team of its own. As soon as the teams together have more threads than the
machine has cores, GNU OpenMP stops spinning and sleeps at every barrier instead: a decode step on two cores then took
56 ms instead of 30. So what runs before the engine's thread takes over (loading, trying out) runs without a team.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, torch computes on the calling thread alone."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
