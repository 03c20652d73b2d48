"""K/V memory in blocks of fixed size: who holds which, and how much of it is used. Torch-free; no bytes live here.

    block_tables   req-1 -> [5, 0, 7]      position p of req-1 is in block [p // block_size],
                   req-2 -> [2]            at place p % block_size
    free_blocks    [6, 4, 3, 1]          the last one is handed out next

A table grows by a block when its sequence does; the blocks need not be neighbours.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Slots (places for one token's K/V) in allocated blocks, and how many of them hold nothing."""

    num_allocated_slots: int
    num_used_slots: int

    @property
    def waste(self) -> float:
        """Share of the allocated slots that is empty: at most a block less one slot per sequence."""
        if not self.num_allocated_slots:
            return 0.0
        return 1 - self.num_used_slots / self.num_allocated_slots


class BlockAllocator:
    """Hands out blocks and takes them back (PagedAttention, SOSP 2023, §4; vLLM: `KVCacheManager`, `BlockPool`).

    num_blocks: blocks in the pool. block_size: tokens per block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_blocks: list[int] = list(range(num_blocks))[::-1]  # a stack: what was freed last is used first
        self.ref_counts: list[int] = [0] * num_blocks  # block -> tables it is in
        self.block_tables: dict[str, list[int]] = {}  # sequence -> its blocks, in order of position

    @property
    def num_free_blocks(self) -> int:
        return len(self.free_blocks)

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def can_hold(self, name: str, num_tokens: int) -> bool:
        """Whether the sequence could have K/V for its first `num_tokens` tokens now."""
        return self._num_missing(name, num_tokens) <= self.num_free_blocks

    def ensure_capacity(self, name: str, num_tokens: int) -> list[int]:
        """Give the sequence room for its first `num_tokens` tokens; returns the blocks that are new.

        Raises MemoryError, and changes nothing, where `can_hold` is false.
        """
        # BEGIN SOLUTION 6.1
        num_missing = self._num_missing(name, num_tokens)
        if num_missing > self.num_free_blocks:
            raise MemoryError(f"{name} needs {num_missing} more blocks, {self.num_free_blocks} are free; ask can_hold")
        new_blocks = [self._take_free_block() for _ in range(num_missing)]
        self.block_tables.setdefault(name, []).extend(new_blocks)
        return new_blocks
        # END SOLUTION

    def free(self, name: str) -> int:
        """Drop the sequence's references; returns how many blocks became free. Unknown names hold nothing.

        The tail goes first: where freed blocks are remembered (phase 12), it is evicted before what it hangs on.
        """
        before = self.num_free_blocks
        for block in reversed(self.block_tables.pop(name, [])):
            self._drop(block)
        return self.num_free_blocks - before

    def shrink(self, name: str, num_tokens: int) -> None:
        """Take back the sequence's blocks past its first `num_tokens` tokens (phase 12: wrong guesses had them)."""
        table = self.block_tables[name]
        while len(table) > self.num_blocks_for(num_tokens):
            self._drop(table.pop())

    def counts(self) -> dict[str, int]:
        """Blocks by what they are doing, under the names of `SchedulerStats`."""
        free = self.num_free_blocks
        return {"kv_blocks_total": self.num_blocks, "kv_blocks_used": self.num_blocks - free, "kv_blocks_free": free}

    def fragmentation(self, num_tokens: Mapping[str, int]) -> Fragmentation:
        """num_tokens: sequence -> tokens that have K/V. A shared block counts once per table that it is in."""
        num_allocated = sum(len(table) for table in self.block_tables.values()) * self.block_size
        return Fragmentation(num_allocated, sum(num_tokens[name] for name in self.block_tables))

    def check_integrity(self) -> None:
        """Raises AssertionError if a block is lost, doubly free, free and referenced, or miscounted."""
        counted = Counter(block for table in self.block_tables.values() for block in table)
        for block, count in enumerate(self.ref_counts):
            assert count == counted[block], f"block {block}: ref count {count}, but it is in {counted[block]} tables"
        free = Counter(self._unreferenced())
        for block in range(self.num_blocks):
            expected = 0 if self.ref_counts[block] else 1
            assert free[block] == expected, (
                f"block {block}: {free[block]} times free, ref count {self.ref_counts[block]}"
            )

    def _unreferenced(self) -> list[int]:
        return self.free_blocks

    def _num_missing(self, name: str, num_tokens: int) -> int:
        return max(0, self.num_blocks_for(num_tokens) - len(self.block_tables.get(name, ())))

    def _take_free_block(self) -> int:
        block = self.free_blocks.pop()
        self.ref_counts[block] = 1
        return block

    def _drop(self, block: int) -> None:
        self.ref_counts[block] -= 1
        if self.ref_counts[block] == 0:
            self._put_back(block)

    def _put_back(self, block: int) -> None:
        self.free_blocks.append(block)
