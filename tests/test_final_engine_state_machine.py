"""The final engine under traffic that nobody thought of, checked after every move.

Hypothesis plays the clients: requests of any kind arrive, are aborted, run out of patience; memory is always short.
After each move every owner of memory checks itself and every sequence is in exactly one place; in the end every
request that was accepted has ended exactly once, and what it said is what it would have said alone.

The suite plays the same games every time. For new ones:

    PAGESERVE_GAMES=2000 [PAGESERVE_SEED=7] python -m pytest -m slow tests/test_final_engine_state_machine.py

A failure names the seed of its run, and hypothesis prints the shortest game that it found to fail.
"""

import copy
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from phase12_prefix_and_spec import verification
from phase12_prefix_and_spec.draft_length import AdaptiveLength
from shared.config import EngineConfig
from shared.errors import QueueFull
from shared.output import StepOutput
from shared.reference import greedy_reference
from shared.registry import newest_phase
from shared.request import Request, SamplingParams
from shared.sampler import Sampler
from shared.sequence import Sequence, Status
from shared.tiny_models import tiny_llama
from tests.helpers import assert_clean, harden
from tests.sampling import make_seq

pytestmark = pytest.mark.skipif(newest_phase().number < 12, reason="there is no final engine yet")

MOST_TOKENS = 24
TIMEOUT_S = 8.0
SHAPE: dict[str, Any] = {
    **{"vocab_size": 17, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "initializer_range": 0.2},
}
HAPPENED: Counter[str] = Counter()  # over all games of a run
FEWEST = {  # about half of what was seen when this was written
    **{"steps": 6000, "ended": 900, "compared with generate": 300, "seeded compared": 100},
    **{"swapped out": 20, "recomputed": 50, "hits": 1000, "accepted": 1000, "rejected": 1000},
    **{"drawn and rejected": 30, "aborted": 200, "timed out": 20, "queue full": 200, "n > 1": 150},
}


@cache
def target_model() -> Any:
    return tiny_llama(seed=5, **SHAPE)


@cache
def draft_model() -> Any:
    draft = tiny_llama(seed=5, **SHAPE)
    torch.manual_seed(1)
    for parameter in draft.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.02)
    return draft


def make_prompts() -> list[list[int]]:
    """A few beginnings, and prompts that share a piece of one of them, of every length."""
    rng = random.Random(0)
    beginnings = [[rng.randrange(3, 17) for _ in range(28)] for _ in range(3)] + [[5, 6, 7] * 9]
    tails = [[], [3], [4, 9], [rng.randrange(3, 17) for _ in range(5)]]
    return [beginning[:length] + tail for beginning in beginnings for length in (2, 4, 9, 20) for tail in tails]


PROMPTS = make_prompts()


@cache
def answer_of_generate(prompt: tuple[int, ...], ends: tuple[int, ...]) -> list[int]:
    return greedy_reference(target_model(), prompt, MOST_TOKENS, ends)


@cache
def seeded_answer(prompt: tuple[int, ...], params: SamplingParams, index: int) -> list[int]:
    """What the model and the sampler say, one token at a time, without any engine."""
    seq = make_seq(prompt, seed=params.seed, index=index, eos=(), temperature=params.temperature)
    while seq.num_output_tokens < MOST_TOKENS:
        with torch.inference_mode():
            logits = target_model()(torch.tensor([seq.token_ids])).logits[:, -1]
        seq.token_ids.append(Sampler().sample(logits, [seq])[0].token_id)
    return seq.output_token_ids


SETTINGS = st.fixed_dictionaries(
    {
        "kv_block_size": st.sampled_from([1, 3, 7, 16]),
        "num_slots": st.sampled_from([28, 36, 56]),
        "preemption_mode": st.sampled_from(["swap", "swap", "recompute"]),
        "swap_num_blocks": st.sampled_from([100, 100, 3, 0]),
        "enable_prefix_caching": st.booleans(),
        "speculative_method": st.sampled_from(["draft", "draft", "ngram", "off"]),
        "num_speculative_tokens": st.sampled_from([1, 3, 5]),
        "adaptive_speculation": st.sampled_from([False, False, True]),
        "prefill_chunk_size": st.sampled_from([2, 5, 64]),
        "prefill_budget_tokens": st.sampled_from([4, 16, 128]),
        "max_batch_size": st.sampled_from([3, 5, 8]),
    }
)
PARAMS = st.one_of(
    st.just({}),
    st.just({"ignore_eos": False}),
    st.fixed_dictionaries({"temperature": st.just(0.8), "seed": st.integers(0, 1), "n": st.integers(1, 2)}),
    st.fixed_dictionaries({"temperature": st.just(1.0), "top_p": st.sampled_from([1.0, 0.8]), "n": st.integers(1, 2)}),
    st.just({"temperature": 1.3, "repetition_penalty": 1.2, "min_tokens": 2, "stop_token_ids": (4, 5)}),
    st.just({"logprobs": 1, "prompt_logprobs": 1}),
)

REQUESTS = st.fixed_dictionaries(
    {
        "prompt": st.sampled_from(PROMPTS),
        "params": PARAMS,
        "max_tokens": st.sampled_from([MOST_TOKENS, 16, 12, 5, 1]),
        "salt": st.sampled_from([None, None, "tenant"]),
    }
)


@dataclass(eq=False)
class Client:
    """What was asked, and what came back."""

    request: Request
    outputs: list[StepOutput] = field(default_factory=list)
    is_aborted: bool = False

    def tokens(self, index: int) -> list[int]:
        return [token for output in self.outputs if output.index == index for token in output.token_ids]

    def reasons(self, index: int) -> list[str]:
        return [o.finish_reason for o in self.outputs if o.index == index and o.finish_reason is not None]

    @property
    def is_over(self) -> bool:
        return all(self.reasons(index) for index in range(self.request.params.n))


class KnownMachine(AdaptiveLength):
    """A game has to go the same way again, so how long its steps take is made up."""

    def note_step(self, num_rows: int, num_tokens: int, num_out: int, seconds: float) -> None:  # noqa: ARG002
        super().note_step(num_rows, num_tokens, num_out, 0.01 + 0.001 * num_tokens)


class FinalEngine(RuleBasedStateMachine):
    @initialize(settings=SETTINGS)
    def build(self, settings: dict[str, Any]) -> None:
        SEEDS.seed(0)
        num_blocks = -(-settings["num_slots"] // settings["kv_block_size"]) + 1
        config = EngineConfig(
            kv_num_blocks=num_blocks,
            queue_capacity=4,
            queue_timeout_s=TIMEOUT_S,
            **{name: value for name, value in settings.items() if name != "num_slots"},
        )
        models = copy.deepcopy((target_model(), draft_model()))  # an engine owns its models
        self.engine = newest_phase().build_engine()(models[0], config, None, models[1])
        harden(self.engine)
        if config.speculative_method != "off" and config.adaptive_speculation:
            self.engine.runner.draft_length = KnownMachine(config.num_speculative_tokens)
        self.now = 0.0
        self.engine.intake._clock = lambda: self.now
        self.clients: dict[str, Client] = {}
        self.engine.events.subscribe(self.count_event)

    def count_event(self, event: Any) -> None:
        if event.kind == "preempted":
            HAPPENED["swapped out" if event.detail == "swap" else "recomputed"] += 1

    # -- the moves ------------------------------------------------------------------------------------------

    @rule(asked=st.lists(REQUESTS, min_size=1, max_size=3), is_patient=st.booleans())
    def arrive(self, asked: list[dict[str, Any]], is_patient: bool) -> None:
        for one in asked:
            params = {"ignore_eos": True} | one["params"]
            max_tokens = max(one["max_tokens"], params.get("min_tokens", 1))
            request = Request(one["prompt"], SamplingParams(max_tokens=max_tokens, **params), cache_salt=one["salt"])
            self.submit(Client(request), is_patient)

    def submit(self, client: Client, is_patient: bool) -> None:
        try:
            name = self.engine.add_request(client.request, client.outputs.append, is_patient=is_patient)
        except QueueFull:
            HAPPENED["queue full"] += 1
            return
        self.clients[name] = client
        HAPPENED["n > 1"] += client.request.params.n > 1

    @rule(num_steps=st.integers(1, 6))
    def step(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.engine.step()
            HAPPENED["steps"] += 1

    @precondition(lambda self: len(self.open_clients()) > 3)
    @rule(data=st.data())
    def abort(self, data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.open_clients())))
        self.clients[name].is_aborted = True
        self.engine.abort(name)
        assert self.clients[name].is_over, "nobody steps, so an abort is done when it returns"
        HAPPENED["aborted"] += 1

    @rule(seconds=st.sampled_from([1.0, 3.0, TIMEOUT_S]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    # -- what holds after each ------------------------------------------------------------------------------

    def open_clients(self) -> list[str]:
        return [name for name, client in self.clients.items() if not client.is_over]

    @invariant()
    def check_memory(self) -> None:
        scheduler, runner = self.engine.scheduler, self.engine.runner
        allocator = scheduler.allocator
        allocator.check_integrity()
        scheduler.swap.check_integrity()
        assert allocator.block_tables.keys() <= {seq.name for seq in scheduler.running}, "only who runs holds blocks"
        assert scheduler.swap.tables.keys() == {seq.name for seq in scheduler.swapped}
        for seq in scheduler.running:
            table = allocator.block_tables.get(seq.name, [])
            assert len(set(table)) == len(table)
            assert seq.num_computed_tokens <= len(table) * allocator.block_size, "K/V without a slot"
        if of_draft := getattr(getattr(runner, "proposer", None), "allocator", None):
            of_draft.check_integrity()
            names = {seq.name for line in (scheduler.running, scheduler.swapped, scheduler.waiting) for seq in line}
            assert of_draft.block_tables.keys() <= names

    @invariant()
    def check_lines(self) -> None:
        """Every sequence that is not over is in one place, in order of arrival, and its numbers make sense."""
        scheduler = self.engine.scheduler
        lines = {
            Status.WAITING: list(scheduler.waiting),
            Status.RUNNING: scheduler.running,
            Status.SWAPPED: scheduler.swapped,
        }
        for status, line in lines.items():
            assert [seq.arrival for seq in line] == sorted({seq.arrival for seq in line})
            assert all(seq.status is status for seq in line)
        scheduled = [seq for line in lines.values() for seq in line]
        queued = [seq for state in self.engine.intake._waiting for seq in state.sequences]
        expected = [seq for state in self.engine.requests.states() for seq in state.sequences if not seq.is_finished]
        assert sorted(map(id, scheduled + queued)) == sorted(map(id, expected)), "a sequence is lost, or twice there"
        assert {seq.request_id for seq in expected} == set(self.open_clients())
        for seq in scheduled + queued:
            self.check_progress(seq)

    def check_progress(self, seq: Sequence) -> None:
        assert 0 <= seq.num_computed_tokens <= len(seq.token_ids) <= seq.max_num_tokens
        if seq.status is Status.WAITING:
            assert seq.num_computed_tokens == 0
        if seq.status is Status.SWAPPED:
            assert seq.is_decoding
        said = self.clients[seq.request_id].tokens(seq.index)
        assert said == seq.output_token_ids, "a token was lost on its way to the client, or came twice"

    # -- the end --------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "engine"):
            return
        for _ in range(3000):
            if not self.engine.has_unfinished():
                break
            self.step(1)
        for client in self.clients.values():
            for index in range(client.request.params.n):
                self.check_answer(client, index)
        stats = self.engine.stats()
        self.check_lines()
        assert_clean(self.engine)
        if of_draft := getattr(getattr(self.engine.runner, "proposer", None), "allocator", None):
            assert of_draft.num_free_blocks == of_draft.num_blocks, "the draft model keeps somebody's blocks"
        self.engine.close()
        HAPPENED["hits"] += stats.num_prefix_hit_tokens
        HAPPENED["accepted"] += stats.num_accepted_tokens
        HAPPENED["rejected"] += stats.num_drafted_tokens - stats.num_accepted_tokens
        HAPPENED["timed out"] += stats.requests_finished["timeout"]

    def check_answer(self, client: Client, index: int) -> None:
        params, prompt, said = client.request.params, client.request.prompt_token_ids, client.tokens(index)
        assert len(client.reasons(index)) == 1, "every request ends exactly once"
        (reason,) = client.reasons(index)
        HAPPENED["ended"] += 1
        assert reason in {"stop", "length", "timeout", "abort"}
        assert reason != "abort" or client.is_aborted
        assert reason != "timeout" or not said
        if params.is_greedy:
            wanted = answer_of_generate(tuple(prompt), () if params.ignore_eos else (2,))
            assert said == wanted[: len(said)]
            if reason in {"stop", "length"}:
                longest = self.engine.requests._inputs.longest_sequence - len(prompt)
                assert said == wanted[: min(params.max_tokens, longest)]
            HAPPENED["compared with generate"] += 1
        elif params.seed is not None:
            alone = SamplingParams(seed=params.seed, temperature=params.temperature)
            assert said == seeded_answer(tuple(prompt), alone, index)[: len(said)]
            HAPPENED["seeded compared"] += 1


def play(num_games: int, **settings: Any) -> None:
    HAPPENED.clear()
    run_state_machine_as_test(
        FinalEngine,
        settings=hypothesis.settings(
            max_examples=num_games,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
            **settings,
        ),
    )


SEEDS = random.Random(0)  # begun again with each game, so that a game goes the same way again


@pytest.fixture(autouse=True)
def same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.input_processor.secrets.randbits", SEEDS.getrandbits)


@pytest.fixture(autouse=True)
def counted_rejections(monkeypatch: pytest.MonkeyPatch) -> None:
    accepted = verification.accepted_draws

    def counting(p: Any, q: Any, u: Any) -> int:
        count = accepted(p, q, u)
        HAPPENED["drawn and rejected"] += count < len(p)
        return count

    monkeypatch.setattr(verification, "accepted_draws", counting)


def test_no_game_breaks_the_engine() -> None:
    play(72, derandomize=True)
    short = {what: HAPPENED[what] for what, fewest in FEWEST.items() if HAPPENED[what] < fewest}
    assert not short, f"too few of these to prove anything: {short}"


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_no_new_game_breaks_the_engine() -> None:
    seed = int(os.environ.get("PAGESERVE_SEED", random.SystemRandom().getrandbits(32)))
    hypothesis.seed(seed)(FinalEngine)
    try:
        play(int(os.environ.get("PAGESERVE_GAMES", "1000")), derandomize=False, database=None)
    except BaseException:
        print(f"to play this run again: PAGESERVE_SEED={seed}")
        raise
