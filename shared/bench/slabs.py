"""K/V memory as it was before paging: one contiguous slab per sequence, as long as the sequence may ever get.

    slots  0                                                        num_slots
           [ slab a .......... | hole | slab c .......... | free .. ]

A slab stays where it is. So what leaves makes a hole, and a hole serves only who is no longer than it: slots can be
free and nobody have room (external fragmentation).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class SlabUse:
    """Slots in slabs, and how many of them hold K/V; the figures of phase 6's `Fragmentation`."""

    num_allocated_slots: int
    num_used_slots: int


@dataclass(frozen=True, slots=True)
class Slab:
    """The slots [start, end)."""

    start: int
    end: int

    @property
    def num_slots(self) -> int:
        return self.end - self.start


class SlabAllocator:
    """First fit over one range of slots: a new slab takes the lowest hole that is long enough."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.slabs: dict[str, Slab] = {}  # sequence -> its slab

    @property
    def num_free_slots(self) -> int:
        """In holes of any length."""
        return sum(hole.num_slots for hole in self.holes())

    def holes(self) -> Iterator[Slab]:
        """What lies between the slabs, in order of address; empty ones included."""
        edges = sorted(self.slabs.values(), key=lambda slab: slab.start)
        ends = [Slab(0, 0), *edges, Slab(self.num_slots, self.num_slots)]
        return (Slab(left.end, right.start) for left, right in pairwise(ends))

    def take(self, name: str, num_slots: int) -> bool:
        """Give the sequence its slab; False, and nothing changes, where no hole is long enough."""
        for hole in self.holes():
            if hole.num_slots >= num_slots:
                self.slabs[name] = Slab(hole.start, hole.start + num_slots)
                return True
        return False

    def free(self, name: str) -> None:
        del self.slabs[name]

    def fragmentation(self, num_tokens: Mapping[str, int]) -> SlabUse:
        """num_tokens: sequence -> tokens that have K/V."""
        num_allocated = sum(slab.num_slots for slab in self.slabs.values())
        return SlabUse(num_allocated, sum(num_tokens[name] for name in self.slabs))

    def check_integrity(self) -> None:
        """Raises AssertionError if two slabs overlap, or one leaves the range."""
        for hole in self.holes():
            assert hole.num_slots >= 0, f"slabs overlap, or one leaves the range: [{hole.end}, {hole.start})"
