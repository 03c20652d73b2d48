"""An allocator that remembers what is in its blocks, so that a prompt's known beginning is not computed again.

    block   b0 [the quick brown fox]   b1 [jumps over the lazy]   b2 [dog and ...    ]
    key     h0 = sha256(root + b0)     h1 = sha256(h0 + b1)       none: it is not full

A key stands for everything up to the end of its block, so one look-up per block finds the longest known prefix.
Every block is in exactly one of three places:

    referenced   in at least one table                         may have a key
    cached       in none, contents and key kept, oldest first  can be evicted
    free         in none, nothing worth keeping                no key

Whoever is admitted says which blocks it is going to compute. Others that need the same ones wait until they are there:
requests that arrive together compute what they share once. Torch-free.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence as Seq

from phase06_block_allocator.block_allocator import BlockAllocator
from shared.sequence import Sequence

ROOT = b"pageserve prefix cache, root of all chains"


def block_key(parent: bytes, token_ids: Seq[int]) -> bytes:
    """The key of a full block after the one whose key is `parent`: 32 bytes, the same in every process."""
    return hashlib.sha256(parent + array("q", token_ids).tobytes()).digest()


def root_key(cache_salt: str | None) -> bytes:
    """What the first block's key is chained to: tenants with different salts never meet."""
    return hashlib.sha256(ROOT + (b"" if cache_salt is None else b"\0" + cache_salt.encode())).digest()


class PrefixCachingAllocator(BlockAllocator):
    """A BlockAllocator whose freed blocks keep their contents until the memory is needed (vLLM: `BlockPool`)."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.block_of: dict[bytes, int] = {}  # key -> block that holds it
        self.key_of: dict[int, bytes] = {}  # block -> its key
        self.cached: OrderedDict[int, None] = OrderedDict()  # unreferenced blocks with a key, least recently used first
        self.chains: dict[str, list[bytes]] = {}  # sequence -> keys of its full blocks, computed or not
        self.num_registered: dict[str, int] = {}  # sequence -> its leading blocks that were published, or matched
        self.coming: dict[bytes, str] = {}  # key of a block that is not there yet -> sequence that computes it

    @property
    def num_free_blocks(self) -> int:
        """Cached blocks count: they are given up when somebody needs the memory."""
        return len(self.free_blocks) + len(self.cached)

    def counts(self) -> dict[str, int]:
        return super().counts() | {"kv_blocks_cached": len(self.cached)}

    def find_prefix(self, seq: Sequence) -> list[int]:
        """The blocks of the longest known prefix: full blocks only, and at least one token is left to compute."""
        blocks: list[int] = []
        for key in self._shareable_keys(seq):
            if key not in self.block_of:
                break
            blocks.append(self.block_of[key])
        return blocks

    def num_known_tokens(self, seq: Sequence) -> int:
        """How many tokens the longest known prefix has."""
        return len(self.find_prefix(seq)) * self.block_size

    def is_prefix_coming(self, seq: Sequence) -> bool:
        """Whether somebody is just computing the first block of its prefix that is not known yet."""
        if not self.coming:
            return False
        unknown = (key for key in self._shareable_keys(seq) if key not in self.block_of)
        return next(unknown, None) in self.coming

    def num_referenced_prefix_blocks(self, seq: Sequence) -> int:
        """Blocks of its known prefix that others hold now, so that sharing them takes no memory."""
        return sum(self.ref_counts[block] > 0 for block in self.find_prefix(seq))

    def match_prefix(self, seq: Sequence) -> int:
        """Start the sequence's table with the blocks of its known prefix; returns how many tokens those hold.

        Its other full blocks are coming from now on: until they are registered, or the sequence is freed.
        """
        blocks = self.find_prefix(seq)
        for block in blocks:
            self.ref_counts[block] += 1
            self.cached.pop(block, None)
        if blocks:
            self.block_tables[seq.name] = blocks
        self.num_registered[seq.name] = len(blocks)
        for key in self._keys(seq)[len(blocks) :]:
            self.coming.setdefault(key, seq.name)
        return len(blocks) * self.block_size

    def register_computed_blocks(self, seq: Sequence) -> None:
        """Publish the sequence's full blocks whose K/V is there. Never before: another sequence would read garbage."""
        if seq.finish_reason == "error":
            self._withdraw(seq.name)
            return
        keys, table = self._keys(seq), self.block_tables[seq.name]
        # BEGIN SOLUTION 12.2
        for place in range(self.num_registered[seq.name], seq.num_computed_tokens // self.block_size):
            self._publish(keys[place], table[place])
            self.num_registered[seq.name] = place + 1
        # END SOLUTION

    def free(self, name: str) -> int:
        """As without a memory; what the sequence was to publish comes from nobody any more."""
        for key in self.chains.pop(name, []):
            if self.coming.get(key) == name:
                del self.coming[key]
        self.num_registered.pop(name, None)
        return super().free(name)

    def check_integrity(self) -> None:
        """Raises AssertionError also where a key and its block disagree, or a block is coming from nobody."""
        super().check_integrity()
        assert {block: key for key, block in self.block_of.items()} == self.key_of, "keys and blocks disagree"
        assert not self.key_of.keys() & set(self.free_blocks), "a free block has a key"
        assert self.cached.keys() <= self.key_of.keys(), "a cached block has no key"
        for key, name in self.coming.items():
            assert name in self.num_registered, f"a block is to come from {name}, which is not running"
            assert key in self.chains[name][self.num_registered[name] :], f"{name} does not compute what is to come"

    def _keys(self, seq: Sequence) -> list[bytes]:
        """Of all its full blocks, in order; a block is hashed once, when its last token is known."""
        chain = self.chains.setdefault(seq.name, [])
        # BEGIN SOLUTION 12.1
        first_token = len(chain) * self.block_size
        for start in range(first_token, len(seq.token_ids) - self.block_size + 1, self.block_size):
            parent = chain[-1] if chain else root_key(seq.request.cache_salt)
            chain.append(block_key(parent, seq.token_ids[start : start + self.block_size]))
        return chain
        # END SOLUTION

    def _shareable_keys(self, seq: Sequence) -> list[bytes]:
        """Not the last token's block: its logits are needed. And none at all where all of the prompt's are."""
        if seq.params.prompt_logprobs is not None:
            return []
        return self._keys(seq)[: (len(seq.token_ids) - 1) // self.block_size]

    def _unreferenced(self) -> list[int]:
        return [*self.free_blocks, *self.cached]

    def _take_free_block(self) -> int:
        if not self.free_blocks:
            self._evict()
        return super()._take_free_block()

    def _evict(self) -> None:
        block, _ = self.cached.popitem(last=False)
        del self.block_of[self.key_of.pop(block)]
        self.free_blocks.append(block)

    def _publish(self, key: bytes, block: int) -> None:
        """The first block with these contents keeps the key; a twin, computed at the same time, stays private."""
        self.coming.pop(key, None)
        if key not in self.block_of:
            self.block_of[key] = block
            self.key_of[block] = key

    def _withdraw(self, name: str) -> None:
        """What a sequence that failed (on NaN, say) has computed or read is not for others."""
        for block in self.block_tables[name]:
            if (key := self.key_of.pop(block, None)) is not None:
                del self.block_of[key]

    def _put_back(self, block: int) -> None:
        if block in self.key_of:
            self.cached[block] = None
        else:
            super()._put_back(block)


class NoPrefixCache(BlockAllocator):
    """The same without a memory: prefix caching switched off, by construction."""

    def num_known_tokens(self, seq: Sequence) -> int:  # noqa: ARG002
        return 0

    def is_prefix_coming(self, seq: Sequence) -> bool:  # noqa: ARG002
        return False

    def num_referenced_prefix_blocks(self, seq: Sequence) -> int:  # noqa: ARG002
        return 0

    def match_prefix(self, seq: Sequence) -> int:  # noqa: ARG002
        return 0

    def register_computed_blocks(self, seq: Sequence) -> None:
        pass


Allocator = PrefixCachingAllocator | NoPrefixCache
