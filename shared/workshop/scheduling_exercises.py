"""The exercises of phases 1 to 4: what each asks for, what to read again, and three hints. Torch-free."""

from shared.workshop.exercises import Exercise

EXERCISES: tuple[Exercise, ...] = (
    Exercise(
        "1.1",
        "Prefill, then decode",
        "phase01_sequential/engine.py",
        "`item` holds all uncomputed tokens. Run them through the model with forward_sequence(self.model, token ids, "
        "cache, prompt_scorer(item)), under torch.inference_mode(); it returns the logits after the last token, [V]. "
        "Sample one token (self.sampler.sample takes [B, V] and B sequences), call self._note_run(item, started), move "
        "seq.num_computed_tokens on, and hand out what accept_tokens(seq, [token]) returns (self.requests.hand_out).",
        'phase01_sequential/README.md, "Idea", and the docstring of shared/sequence.py',
        (
            "There is one loop and no flag. What is uncomputed in the first turn, and what in every later one?",
            "Four things happen in a turn: the model runs item.token_ids, one token is sampled, progress moves by "
            "item.num_tokens, the token is accepted and handed out. Progress moves BEFORE the new token is appended: "
            "the new token has no K/V yet.",
            "logits = forward_sequence(self.model, item.token_ids, cache, prompt_scorer(item)); "
            "token = self.sampler.sample(logits[None], [seq])[0]; then note, move on, accept, hand out.",
        ),
    ),
    Exercise(
        "1.2",
        "A lock with a line in front of it",
        "phase01_sequential/turnstile.py",
        "This is a context manager: wait until the ticket is first in self._line, or is_cancelled() (self._moved is a "
        "Condition, and guards the line), then yield, and leave the line whatever happens.",
        'phase01_sequential/README.md, "Idea", and the last question of "Read in this order"',
        (
            "Whoever raises inside the `with` body must still leave the line, or everybody behind waits for ever.",
            "A try with a finally. Inside the try: take self._moved, wait_for a condition, let go of it, then yield. "
            "(Yielding while you hold self._moved would let nobody join the line.)",
            "self._moved.wait_for(lambda: self._line[0] is ticket or is_cancelled()) inside `with self._moved:`, the "
            "yield after that block, self.leave(ticket) in the finally.",
        ),
    ),
    Exercise(
        "2.1",
        "The step",
        "shared/engine.py",
        "One step: the scheduler plans, the runner executes the plan, the scheduler applies what was sampled. Then "
        "hand out (self._hand_out(plan, outputs, started)) and return the outputs.",
        'phase02_iteration_scheduling/README.md, "Idea"',
        (
            "The README of phase 2 shows three lines. They are these.",
            "plan -> execute -> apply: what one returns the next one needs, and apply needs both.",
            "plan = self.scheduler.plan(); sampled = self.runner.execute(plan); "
            "outputs = self.scheduler.apply(plan, sampled).",
        ),
    ),
    Exercise(
        "2.2",
        "Joining",
        "phase02_iteration_scheduling/scheduler.py",
        "Admit who waits (self._admit), oldest first, while there is room under max_batch_size. Then return a StepPlan "
        "with a row for every running sequence: all of its uncomputed tokens (ScheduledSequence.next_tokens).",
        'phase02_iteration_scheduling/README.md, "Idea" and "Picture"',
        (
            "Joining happens before the rows are made, so that who joins runs in this very step.",
            "A while loop over self.waiting with a check of len(self.running), then one list of rows. No `if` asks "
            "whether a sequence is in its prompt: num_uncomputed_tokens says it.",
            "while self.waiting and len(self.running) < self.max_batch_size: self._admit(self.waiting.popleft()); then "
            "StepPlan([ScheduledSequence.next_tokens(seq, seq.num_uncomputed_tokens) for seq in self.running]).",
        ),
    ),
    Exercise(
        "2.3",
        "Leaving",
        "phase02_iteration_scheduling/scheduler.py",
        "For each row of the plan and its sampled tokens: move num_computed_tokens on by what was run; where tokens "
        "came out, accept_tokens(seq, tokens) appends them and returns the output. Whoever is_finished leaves "
        "self.running. Return the outputs.",
        'phase02_iteration_scheduling/README.md, "Idea" (the invariant)',
        (
            "Progress counts tokens that were RUN. The sampled token was not: it is run in the next step.",
            "Two parts: a loop over zip(plan.items, sampled), then a new self.running without the finished. Removing "
            "from a list while you walk over it skips the one after.",
            "item.seq.num_computed_tokens += item.num_tokens; if tokens: "
            "outputs.append(accept_tokens(item.seq, tokens)). After the loop rebuild self.running.",
        ),
    ),
    Exercise(
        "3.1",
        "A line with a length",
        "phase03_request_queue/request_queue.py",
        "Take all of `states` or none: raise QueueFull(self.capacity) where they would not fit beside self._waiting. "
        "Patient callers are not limited. Whoever is taken joins self._waiting; if there is a timeout and the caller "
        "is not patient, also self._deadlines, as (when, who), with self._clock().",
        'phase03_request_queue/README.md, "Idea"',
        (
            "All or none: decide before you change anything.",
            "A check that may raise, then the line, then the deadlines. Two of the three ask is_patient.",
            "if not is_patient and len(self._waiting) + len(states) > self.capacity: raise QueueFull(self.capacity). "
            "self._waiting |= dict.fromkeys(states). deadline = self._clock() + self.timeout_s.",
        ),
    ),
    Exercise(
        "3.2",
        "The deadline",
        "phase03_request_queue/request_queue.py",
        "self._deadlines has the soonest first. Take from its head everybody whose deadline has passed, and everybody "
        "who has begun (finished, or metrics.first_scheduled_time is set); append to `late` only those who have not.",
        'phase03_request_queue/README.md, "Idea" and question 2 of "Read in this order"',
        (
            "One timeout for all, so the deadlines are sorted: when may you stop looking?",
            "Look at self._deadlines[0]. Not begun and not due: stop. Otherwise take it off; if it has not begun, it "
            "is late. Whether it was drained does not matter, only whether a step ran it.",
            "has_begun = state.is_finished or state.metrics.first_scheduled_time is not None; "
            "break if not has_begun and deadline > self._clock(); popleft; append if not has_begun.",
        ),
    ),
    Exercise(
        "4.1",
        "Spend the budget",
        "phase04_chunked_prefill/scheduler.py",
        "Make the plan: a row of 1 token for every running sequence that is_decoding, whatever the budget; then, while "
        "budget is left, chunks of prompts. self._next_to_prefill(prefilling) names the next one, or None; a chunk is "
        "at most prefill_chunk_size, at most what is uncomputed, and at most what is left of prefill_budget_tokens.",
        'phase04_chunked_prefill/README.md, "Idea" and "Picture"',
        (
            "Who must not wait for whom? Give that one its tokens first, and count them.",
            "decodes -> budget less their number -> a while loop that asks _next_to_prefill, takes the least of three "
            "numbers, appends a row, and lowers the budget.",
            "budget = self.prefill_budget_tokens - len(decoding); while budget > 0 and (seq := "
            "self._next_to_prefill(prefilling)): num_tokens = min(seq.num_uncomputed_tokens, self.prefill_chunk_size, "
            "budget).",
        ),
    ),
    Exercise(
        "4.2",
        "Whose prompt is next",
        "phase04_chunked_prefill/scheduler.py",
        "Return the next sequence that prefills: from `prefilling` (they have begun), first come first served, and "
        "take it off that list; else admit the first who waits, if max_batch_size allows; else None.",
        'phase04_chunked_prefill/README.md, "Read in this order", question 2',
        (
            "Two half-computed prompts have no first token; one whole prompt has one.",
            "An early return for those that have begun; then the check in the while of phase 2's plan (does somebody "
            "wait, is there room); then None.",
            "prefilling.pop(0); else self._admit(self.waiting.popleft()) and return self.running[-1].",
        ),
    ),
)
