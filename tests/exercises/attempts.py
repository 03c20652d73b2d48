"""Wrong attempts that people make, and a phrase that the check's message must have for each: exercise -> attempts."""

ATTEMPTS: dict[str, list[tuple[str, str]]] = {
    "1.1": [
        (  # the whole sequence again in every turn
            """
with torch.inference_mode():
    logits = forward_sequence(self.model, seq.token_ids, cache, prompt_scorer(item))
    token = self.sampler.sample(logits[None], [seq])[0]
self._note_run(item, started)
seq.num_computed_tokens += item.num_tokens
self.requests.hand_out(accept_tokens(seq, [token]))
""",
            "should be those that have no K/V yet",
        ),
        (  # progress counts the sampled token, which was not run: nothing is left to run afterwards
            """
with torch.inference_mode():
    logits = forward_sequence(self.model, item.token_ids, cache, prompt_scorer(item))
    token = self.sampler.sample(logits[None], [seq])[0]
self._note_run(item, started)
self.requests.hand_out(accept_tokens(seq, [token]))
seq.num_computed_tokens = len(seq.token_ids)
""",
            "expected  [[10, 11, 12, 13], [50], [51]]",
        ),
        (
            """
with torch.inference_mode():
    logits = forward_sequence(self.model, item.token_ids, cache, prompt_scorer(item))
    token = self.sampler.sample(logits, [seq])[0]
self._note_run(item, started)
seq.num_computed_tokens += item.num_tokens
self.requests.hand_out(accept_tokens(seq, [token]))
""",
            "logits[None]",
        ),
    ],
    "1.2": [
        (
            """
with self._moved:
    self._moved.wait_for(lambda: self._line[0] is ticket or is_cancelled())
yield
self.leave(ticket)
""",
            "Without a finally, b waits for ever",
        ),
        (
            """
try:
    with self._moved:
        self._moved.wait_for(lambda: self._line[0] is ticket)
    yield
finally:
    self.leave(ticket)
""",
            "threads still waiting",
        ),
    ],
    "2.1": [
        (
            """
plan = self.scheduler.plan()
sampled = self.runner.execute(plan)
outputs = self.scheduler.apply(plan, sampled)
return outputs
""",
            "then hand out",
        ),
        (
            """
sampled = self.runner.execute(self.scheduler.plan())
outputs = self.scheduler.apply(self.scheduler.plan(), sampled)
self._hand_out(self.scheduler.plan(), outputs, started)
return outputs
""",
            "each takes what the one before it made",
        ),
    ],
    "2.2": [
        (
            """
while self.waiting and len(self.running) < self.max_batch_size:
    self._admit(self.waiting.popleft())
return StepPlan([ScheduledSequence.next_tokens(seq, 1) for seq in self.running])
""",
            "All 5 are uncomputed",
        ),
        (
            """
rows = [ScheduledSequence.next_tokens(seq, seq.num_uncomputed_tokens) for seq in self.running]
while self.waiting and len(self.running) < self.max_batch_size:
    self._admit(self.waiting.popleft())
return StepPlan(rows)
""",
            "expected  [('a', 5)]",
        ),
        (
            """
while self.waiting:
    self._admit(self.waiting.popleft())
return StepPlan([ScheduledSequence.next_tokens(seq, seq.num_uncomputed_tokens) for seq in self.running])
""",
            "while there is room",
        ),
    ],
    "2.3": [
        (
            """
outputs = []
for item, tokens in zip(plan.items, sampled):
    if tokens:
        outputs.append(accept_tokens(item.seq, tokens))
    item.seq.num_computed_tokens = len(item.seq.token_ids)
self.running = [seq for seq in self.running if not seq.is_finished]
return outputs
""",
            "exactly one token is uncomputed afterwards",
        ),
        (
            """
outputs = []
for item, tokens in zip(plan.items, sampled):
    item.seq.num_computed_tokens += item.num_tokens
    if tokens:
        outputs.append(accept_tokens(item.seq, tokens))
for seq in self.running:
    if seq.is_finished:
        self.running.remove(seq)
return outputs
""",
            "skips a neighbour",
        ),
        (
            """
outputs = []
for item, tokens in zip(plan.items, sampled):
    item.seq.num_computed_tokens += item.num_tokens
    outputs.append(accept_tokens(item.seq, tokens))
self.running = [seq for seq in self.running if not seq.is_finished]
return outputs
""",
            "a row may stop short",
        ),
    ],
    "3.1": [
        (
            """
for state in states:
    if not is_patient and len(self._waiting) >= self.capacity:
        raise QueueFull(self.capacity)
    self._waiting[state] = None
    if not is_patient and self.timeout_s is not None:
        self._deadlines.append((self._clock() + self.timeout_s, state))
""",
            "Decide before you change anything",
        ),
        (
            """
if len(self._waiting) + len(states) > self.capacity:
    raise QueueFull(self.capacity)
self._waiting |= dict.fromkeys(states)
if self.timeout_s is not None:
    self._deadlines.extend((self._clock() + self.timeout_s, state) for state in states)
""",
            "QueueFull",
        ),
    ],
    "3.2": [
        (
            """
while self._deadlines and self._deadlines[0][0] <= self._clock():
    _, state = self._deadlines.popleft()
    if state in self._waiting:
        late.append(state)
""",
            "It has waited just as long",
        ),
        (
            """
while self._deadlines and self._deadlines[0][0] <= self._clock():
    late.append(self._deadlines.popleft()[1])
""",
            "would be a lie",
        ),
        (
            """
if self._deadlines and self._deadlines[0][0] <= self._clock():
    late.append(self._deadlines.popleft()[1])
""",
            "Everybody who is due by now",
        ),
    ],
    "4.1": [
        (  # prefill first
            """
decoding = [seq for seq in self.running if seq.is_decoding]
prefilling = [seq for seq in self.running if not seq.is_decoding]
plan = StepPlan()
budget = self.prefill_budget_tokens
while budget > 0 and (seq := self._next_to_prefill(prefilling)):
    num_tokens = min(seq.num_uncomputed_tokens, self.prefill_chunk_size, budget)
    plan.items.append(ScheduledSequence.next_tokens(seq, num_tokens))
    budget -= num_tokens
plan.items += [ScheduledSequence.next_tokens(seq, 1) for seq in decoding[:budget]]
return plan
""",
            "2 decodes leave 3",
        ),
        (  # the decodes are not counted
            """
decoding = [seq for seq in self.running if seq.is_decoding]
prefilling = [seq for seq in self.running if not seq.is_decoding]
plan = StepPlan([ScheduledSequence.next_tokens(seq, 1) for seq in decoding])
budget = self.prefill_budget_tokens
while budget > 0 and (seq := self._next_to_prefill(prefilling)):
    num_tokens = min(seq.num_uncomputed_tokens, self.prefill_chunk_size, budget)
    plan.items.append(ScheduledSequence.next_tokens(seq, num_tokens))
    budget -= num_tokens
return plan
""",
            "got       [('a', 1), ('b', 1), ('long', 5)]",
        ),
        (  # one prompt only
            """
decoding = [seq for seq in self.running if seq.is_decoding]
prefilling = [seq for seq in self.running if not seq.is_decoding]
plan = StepPlan([ScheduledSequence.next_tokens(seq, 1) for seq in decoding])
budget = self.prefill_budget_tokens - len(decoding)
if budget > 0 and (seq := self._next_to_prefill(prefilling)):
    num_tokens = min(seq.num_uncomputed_tokens, self.prefill_chunk_size, budget)
    plan.items.append(ScheduledSequence.next_tokens(seq, num_tokens))
return plan
""",
            "what is left goes to the next one",
        ),
    ],
    "4.2": [
        (
            """
if self.waiting and len(self.running) < self.max_batch_size:
    self._admit(self.waiting.popleft())
    return self.running[-1]
return prefilling.pop(0) if prefilling else None
""",
            "a and b have begun, new waits",
        ),
        (
            """
if prefilling:
    return prefilling[0]
if self.waiting and len(self.running) < self.max_batch_size:
    self._admit(self.waiting.popleft())
    return self.running[-1]
return None
""",
            "would choose it for ever",
        ),
    ],
    "6.1": [
        (
            """
if not self.can_hold(name, num_tokens):
    raise MemoryError(name)
new_blocks = [self._take_free_block() for _ in range(self.num_blocks_for(num_tokens))]
self.block_tables.setdefault(name, []).extend(new_blocks)
return new_blocks
""",
            "num_tokens is the whole length wanted",
        ),
        (
            """
new_blocks = []
while self._num_missing(name, num_tokens):
    if not self.free_blocks:
        raise MemoryError(name)
    new_blocks.append(self._take_free_block())
    self.block_tables.setdefault(name, []).append(new_blocks[-1])
return new_blocks
""",
            "Count before you take",
        ),
    ],
    "6.2": [
        ("return self._worst_case(seq) <= self.allocator.num_free_blocks", "for ever"),
        ("return self.allocator.can_hold(seq.name, len(seq.token_ids))", "for ever"),
        (
            "return sum(map(self._worst_case, self.running)) + self._worst_case(seq) < self.allocator.num_blocks",
            "4 + 4 is exactly the pool",
        ),
    ],
    "6.3": [
        ("return self.allocator.num_blocks_for(seq.max_num_tokens)", "64 slots yield 25 tokens"),
        ("return self.allocator.num_blocks_for(seq.num_prompt_tokens)", "64 slots yield 25 tokens"),
    ],
    "8.1": [
        ("return block_tables[rows, positions // block_size] + positions % block_size", "block 7 begins at slot 28"),
        ("return positions // block_size * block_size + positions % block_size", "block 7 begins at slot 28"),
        ("return block_tables[rows, positions] * block_size + positions % block_size", "out of bounds"),
        ("return block_tables[0, positions // block_size] * block_size + positions % block_size", "a row per sequence"),
    ],
    "8.2": [
        (  # top-left: the query's place in the chunk instead of its position
            """
seen = context <= torch.arange(group.positions.shape[1]).unsqueeze(-1)
return seen.expand(group.positions.shape[0], -1, -1)
""",
            "bottom-right, not top-left",
        ),
        (
            """
seen = context < queries
return seen if window is None else seen & (context > queries - window)
""",
            "a token sees itself",
        ),
        (
            """
seen = context <= queries
return seen if window is None else seen & (context >= queries - window)
""",
            "its own among them",
        ),
    ],
    "9.1": [
        (
            """
while not self.allocator.can_hold(seq.name, seq.num_computed_tokens + num_tokens):
    self._preempt(self.running[-1])
return True
""",
            "False says that it does not run in this step",
        ),
        (
            """
while seq.status is Status.RUNNING:
    if self.allocator.can_hold(seq.name, seq.num_computed_tokens + num_tokens):
        return True
    self._preempt(self.running[0])
return False
""",
            "Last come, first preempted",
        ),
        (
            """
if not self.allocator.can_hold(seq.name, seq.num_computed_tokens + num_tokens):
    self._preempt(self.running[-1])
return seq.status is Status.RUNNING
""",
            "After a victim look again",
        ),
    ],
    "9.2": [
        (
            """
num_blocks = self.allocator.num_blocks_for(victim.num_computed_tokens)
blocks = self.allocator.block_tables.get(victim.name, [])[:num_blocks]
self.allocator.free(victim.name)
if self.may_swap and victim.is_decoding and self.swap.can_hold(len(blocks)):
    self.swap.swap_out(victim.name, blocks)
    self._move(victim, Status.SWAPPED, "swap")
else:
    self.totals.num_recomputed_tokens += victim.num_computed_tokens
    victim.num_computed_tokens = 0
    self._move(victim, Status.WAITING, "recompute")
""",
            "so the copy comes first",
        ),
        (
            """
num_blocks = self.allocator.num_blocks_for(victim.num_computed_tokens)
blocks = self.allocator.block_tables.get(victim.name, [])[:num_blocks]
if self.may_swap and victim.is_decoding and self.swap.can_hold(len(blocks)):
    self.swap.swap_out(victim.name, blocks)
    self._move(victim, Status.SWAPPED, "swap")
else:
    self.totals.num_recomputed_tokens += victim.num_computed_tokens
    victim.num_computed_tokens = 0
    del victim.token_ids[victim.num_prompt_tokens :]
    self._move(victim, Status.WAITING, "recompute")
self.allocator.free(victim.name)
""",
            "Nothing of the answer is lost",
        ),
    ],
    "12.1": [
        (
            """
for start in range(len(chain) * self.block_size, len(seq.token_ids) - self.block_size + 1, self.block_size):
    root = root_key(seq.request.cache_salt)
    chain.append(block_key(root, seq.token_ids[start : start + self.block_size]))
return chain
""",
            "expected  [0, 1]",
        ),
        (
            """
for start in range(len(chain) * self.block_size, len(seq.token_ids), self.block_size):
    parent = chain[-1] if chain else root_key(seq.request.cache_salt)
    chain.append(block_key(parent, seq.token_ids[start : start + self.block_size]))
return chain
""",
            "What is not full will change",
        ),
        (
            """
for start in range(len(chain) * self.block_size, len(seq.token_ids) - self.block_size + 1, self.block_size):
    parent = chain[-1] if chain else root_key(None)
    chain.append(block_key(parent, seq.token_ids[start : start + self.block_size]))
return chain
""",
            "The salt is in the root",
        ),
    ],
    "12.2": [
        (
            """
for place in range(self.num_registered[seq.name], len(table)):
    self._publish(keys[place], table[place])
    self.num_registered[seq.name] = place + 1
""",
            "would read garbage",
        ),
        (
            """
for place in range(seq.num_computed_tokens // self.block_size):
    self._publish(keys[place], table[place])
    self.num_registered[seq.name] = place + 1
""",
            "Start where the last call stopped",
        ),
    ],
    "12.3": [
        ("return sum(guess == token for guess, token in zip(draft, chosen))", "from a token that is not there"),
        ("return len(draft) if list(draft) == list(chosen[:-1]) else 0", "Two were right in a row"),
    ],
}
