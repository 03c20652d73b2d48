"""Where a preempted sequence's K/V waits: blocks of host memory. Torch-free; the bytes are the copier's.

    device pool   [ 5 | 0 | 7 ]  --swap_out-->  host pool [ 2 | 3 | 4 ]  --swap_in-->  device pool [ 1 | 8 | 6 ]

Copies are done when a call returns: the blocks that it emptied can be handed out at once.
"""

from collections.abc import Sequence as Seq
from typing import Protocol


class Copier(Protocol):
    """Moves whole blocks between the device's pool and the host's."""

    def to_host(self, device_blocks: Seq[int], host_blocks: Seq[int]) -> None: ...
    def to_device(self, host_blocks: Seq[int], device_blocks: Seq[int]) -> None: ...


class CPUSwapManager:
    """Owns the host's blocks (vLLM v0 had them in its `BlockSpaceManager`; v1 only recomputes).

    num_blocks: 0 switches swapping off.
    """

    def __init__(self, num_blocks: int, copier: Copier) -> None:
        self.num_blocks = num_blocks
        self.copier = copier
        self.free_blocks: list[int] = list(range(num_blocks))[::-1]
        self.tables: dict[str, list[int]] = {}  # swapped sequence -> its host blocks, in order of position

    def counts(self) -> dict[str, int]:
        """Under the names of `SchedulerStats`."""
        return {"swap_blocks_total": self.num_blocks, "swap_blocks_used": self.num_blocks - len(self.free_blocks)}

    def can_hold(self, num_blocks: int) -> bool:
        return num_blocks <= len(self.free_blocks)

    def swap_out(self, name: str, device_blocks: Seq[int]) -> None:
        """Keep a copy of these blocks. Raises MemoryError, and copies nothing, where `can_hold` is false."""
        if not self.can_hold(len(device_blocks)):
            raise MemoryError(f"{name}: {len(device_blocks)} host blocks needed, {len(self.free_blocks)} free")
        self.tables[name] = [self.free_blocks.pop() for _ in device_blocks]
        self.copier.to_host(device_blocks, self.tables[name])

    def swap_in(self, name: str, device_blocks: Seq[int], num_there: int = 0) -> None:
        """Copy a sequence's blocks back, in order, and free them here; the first `num_there` need no copy."""
        host_blocks = self.tables[name]
        self.copier.to_device(host_blocks[num_there:], device_blocks[num_there : len(host_blocks)])
        self.drop(name)

    def drop(self, name: str) -> None:
        """Free a sequence's host blocks; unknown names hold none."""
        self.free_blocks += reversed(self.tables.pop(name, []))

    def check_integrity(self) -> None:
        """Raises AssertionError if a host block is lost, held twice, or free and held."""
        held = [block for table in self.tables.values() for block in table]
        assert sorted(held + self.free_blocks) == list(range(self.num_blocks)), f"held {held}, free {self.free_blocks}"
