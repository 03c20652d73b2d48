"""The exercises of phases 6 to 12: what each asks for, what to read again, and three hints. Torch-free."""

from shared.workshop.exercises import Exercise

EXERCISES: tuple[Exercise, ...] = (
    Exercise(
        "6.1",
        "ensure_capacity",
        "phase06_block_allocator/block_allocator.py",
        "Give `name` as many blocks as its first num_tokens tokens need beyond those it has (self._num_missing), taken "
        "with self._take_free_block(), at the end of its table. Return the new ones. Where the pool has not enough, "
        "raise MemoryError and change nothing.",
        'phase06_block_allocator/README.md, "Idea" and "Picture"',
        (
            "num_tokens is the whole length wanted, not what is added: most calls need no new block at all.",
            "How many are missing? Too many: raise, before the first block is taken. Else take them and append them to "
            "the table; the order of a table is the order of positions.",
            "new_blocks = [self._take_free_block() for _ in range(num_missing)]; "
            "self.block_tables.setdefault(name, []).extend(new_blocks).",
        ),
    ),
    Exercise(
        "6.2",
        "Who may join",
        "phase06_block_allocator/scheduler.py",
        "True if everybody who runs, and this one, could grow to their worst case together: in blocks of the whole "
        "pool (self.allocator.num_blocks), not of what happens to be free.",
        'phase06_block_allocator/README.md, "Why reserving hurts"',
        (
            "Nobody gives a block back before it is done. What would have to be true for all to finish?",
            "Sum self._worst_case over the running, add the newcomer's, compare with the pool. Free blocks are the "
            "wrong number: some of them are promised already.",
            "sum(map(self._worst_case, self.running)) + self._worst_case(seq) <= self.allocator.num_blocks",
        ),
    ),
    Exercise(
        "6.3",
        "The worst case",
        "phase06_block_allocator/scheduler.py",
        "How many blocks this sequence needs at most. seq.max_num_tokens is the longest it can get, prompt and output; "
        "self.allocator.num_blocks_for(n) says how many blocks n tokens of K/V need.",
        'phase06_block_allocator/README.md, "Why reserving hurts" (count with care)',
        (
            "64 slots and a prompt of 40 tokens: how many tokens can come out? (Not 24.)",
            "Which token of a sequence is never run, and so never needs a slot?",
            "The last one that is sampled: max_num_tokens - 1 slots.",
        ),
    ),
    Exercise(
        "8.1",
        "The slot of a position",
        "phase08_paged_attention/packed_batch.py",
        "The slot of every position: positions and rows have one shape, and rows says for each position which row of "
        "block_tables, [R, M], is its sequence's. A table has the sequence's blocks in order of position.",
        'phase08_paged_attention/README.md, "Idea"',
        (
            "The slot formula is in the README. Which part of a position says which block, and which part says where "
            "in it?",
            "position // block_size is a place in the TABLE, not a block of the pool; the table says which block. "
            "Indexing a tensor with two tensors of one shape looks all of them up at once.",
            "block_tables[rows, positions // block_size] * block_size + positions % block_size",
        ),
    ),
    Exercise(
        "8.2",
        "Who sees what",
        "phase08_paged_attention/gather_attention.py",
        "Return [B, Q, S], True where a query may look: not at positions after its own, and with a window only "
        "at the last `window` positions, its own among them. context: [S], queries: [B, Q, 1], both positions.",
        'phase08_paged_attention/README.md, "Read in this order", question 5',
        (
            "The third query of a chunk is not at position 2 if the chunk has context before it.",
            "Compare positions with positions: broadcasting makes [B, Q, S] of [S] and [B, Q, 1]. For the window: how "
            "far back is the oldest position that is still seen?",
            "seen = context <= queries; with a window: seen & (context > queries - window).",
        ),
    ),
    Exercise(
        "9.1",
        "Who gives way",
        "phase09_preemption/scheduler.py",
        "Preempt (self._preempt) the newest running sequence until `seq` can have num_tokens more, and say True; say "
        "False as soon as `seq` runs no more, for it may be the victim itself, or have been one before.",
        'phase09_preemption/README.md, "Idea" and "Picture"',
        (
            "self.running is in order of arrival. Who is the newest? Can that be `seq`?",
            "A loop that goes on while seq.status is RUNNING. In it: can the allocator hold what is wanted? Then True. "
            "Else one victim, and look again. After the loop: False.",
            "while seq.status is Status.RUNNING: if self.allocator.can_hold(seq.name, seq.num_computed_tokens + "
            "num_tokens): return True; self._preempt(self.running[-1]).",
        ),
    ),
    Exercise(
        "9.2",
        "What becomes of its K/V",
        "phase09_preemption/scheduler.py",
        "The victim has left self.running. If self.may_swap, it is decoding, and self.swap.can_hold the blocks that "
        'have K/V: swap_out(name, blocks), then self._move(victim, Status.SWAPPED, "swap"). Else count '
        'totals.num_recomputed_tokens, set progress to 0, self._move(victim, Status.WAITING, "recompute"). In both '
        "cases its blocks are freed, last.",
        'phase09_preemption/README.md, "Idea" (swap, recompute)',
        (
            "Recomputing needs no new concept: what does a sequence look like that has not run yet?",
            "Two branches and a common end. A block may be handed to somebody else once it is freed, so the copy comes "
            "before that. Only blocks that hold computed tokens are worth copying.",
            "blocks = table[:num_blocks_for(victim.num_computed_tokens)]; swap_out before self.allocator.free(name); "
            "recompute: victim.num_computed_tokens = 0 (token_ids stay: prompt AND what was generated).",
        ),
    ),
    Exercise(
        "12.1",
        "The hash chain",
        "phase12_prefix_and_spec/prefix_cache.py",
        "`chain` has the keys of the sequence's first full blocks, as far as they were made before. Append the key of "
        "every further full block of seq.token_ids: block_key(parent, the block's tokens), where the parent is the key "
        "before it, and of the first block root_key(seq.request.cache_salt). Return the chain.",
        'phase12_prefix_and_spec/README.md, "Idea" (invariant 1) and "Picture"',
        (
            "A key stands for everything up to the end of its block. What goes into it besides the block's own tokens?",
            "A loop over the starts of full blocks: from len(chain) * block_size on, in steps of block_size, as long "
            "as a whole block is there. In it: whose key is the parent?",
            "for start in range(len(chain) * self.block_size, len(seq.token_ids) - self.block_size + 1, "
            "self.block_size): parent = chain[-1] if chain else root_key(seq.request.cache_salt).",
        ),
    ),
    Exercise(
        "12.2",
        "What may be published",
        "phase12_prefix_and_spec/prefix_cache.py",
        "`keys` are those of all full blocks, `table` the sequence's blocks; the first self.num_registered[seq.name] "
        "are published already. For every further block whose tokens ALL have K/V (seq.num_computed_tokens): "
        "self._publish(key, block), and count it in self.num_registered.",
        'phase12_prefix_and_spec/README.md, "Idea" (invariant 1) and "Read in this order", question 2',
        (
            "A table may hold blocks that are not full, or not computed yet. Which number tells?",
            "Start where the last call stopped, end before num_computed_tokens // block_size. (A block that is full of "
            "tokens need not be full of K/V.)",
            "for place in range(self.num_registered[seq.name], seq.num_computed_tokens // self.block_size): "
            "self._publish(keys[place], table[place]); self.num_registered[seq.name] = place + 1.",
        ),
    ),
    Exercise(
        "12.3",
        "Acceptance",
        "phase12_prefix_and_spec/acceptance.py",
        "How many guesses, from the first on, equal what the target chose in their place.",
        'phase12_prefix_and_spec/README.md, "Idea" (invariant 2) and "Picture"',
        (
            "What the target says after a wrong guess was computed from that wrong guess. What is it worth?",
            "Compare pairs from the left; the first difference ends it. `chosen` is one longer than `draft`.",
            "for count, (guess, token) in enumerate(zip(draft, chosen)): if guess != token: return count; then "
            "len(draft).",
        ),
    ),
)
