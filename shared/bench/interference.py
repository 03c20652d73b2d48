"""`python -m shared.bench interference`: some streams decode, and a long prompt arrives. Who waits, and how long?

+--- 8 tokens each ---+--- until its first token ---+--- to the end ---+
| streams decode      | its prefill beside them     | all decode       |
      "before"                the gaps that count
"""

import random
from collections.abc import Sequence as Seq
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from shared.bench.contest import Contest
from shared.bench.gaps import gap_figures
from shared.bench.host import Provenance
from shared.bench.recorded_round import check_recordable, num_recorded
from shared.bench.recording import Announce, Keep, Stamp, announced_worker, expected_tokens, run_and_keep
from shared.bench.systems import BENCH_CONFIG, ModelChoice, SystemInfo, SystemSpec, phase_spec, reference_spec
from shared.bench.worker import Worker
from shared.bench.workloads import Range, Shape, Workload, forced_request, plain_ids
from shared.config import Auto, resolve_config
from shared.errors import SetupError
from shared.registry import Phase

Tokens = int | Auto

FIRST_WITH_BUDGET = 4
FIRST_WITH_STREAMS = 2
NUM_TOKENS_BEFORE = 8  # of each stream, when the long prompt comes
NUM_TOKENS_AFTER = 8  # of every request, with and after the long prompt's first token
STREAM_PROMPT: Range = (16, 32)  # tokens


@dataclass(frozen=True, slots=True)
class InterferencePlan:
    """What to run. specs: the phases, in the order of a round; ratios refer to the first.

    num_prompt_tokens: of the long prompt; a tiny model's is cut to what the model takes.
    """

    specs: Seq[SystemSpec]
    num_streams: int
    num_prompt_tokens: int
    seed: int
    num_rounds: int
    provenance: Provenance
    record: Path | None = None  # folder for recordings of an untimed round

    def __post_init__(self) -> None:
        if not self.specs:
            raise SetupError("there is nothing to run: name phases")
        if any(spec.phase is None or spec.phase.number < FIRST_WITH_STREAMS for spec in self.specs):
            raise SetupError(f"phase 1 never runs two requests together: choose phases from {FIRST_WITH_STREAMS} on")
        check_recordable(self.record, self.specs)

    @property
    def num_announcements(self) -> int:
        return 1 + len(self.specs) * (2 + self.num_rounds) + num_recorded(self.record, self.specs)


def interference_spec(model: ModelChoice, phase: Phase, num_streams: int, chunk: Tokens, budget: Tokens) -> SystemSpec:
    """A phase with a slot for every stream and for the long prompt."""
    config = replace(
        BENCH_CONFIG, max_batch_size=num_streams + 1, prefill_chunk_size=chunk, prefill_budget_tokens=budget
    )
    return replace(phase_spec(model, phase, config), late_after_tokens=NUM_TOKENS_BEFORE)


def run_interference(plan: InterferencePlan, announce: Announce, keep: Keep) -> None:
    """Measure; `keep` gets the result with the rounds that were finished, also when something ends it early.

    Raises SystemFailed, and SetupError before anything is timed.
    """
    with Worker(reference_spec(plan.specs[0].model)) as reference:
        workload = make_interference(plan, reference.info)
        expected = expected_tokens(reference, workload, announce)
    num_requests = {spec.name: len(workload.requests) for spec in plan.specs}
    with ExitStack() as stack:
        workers = [stack.enter_context(announced_worker(spec, announce)) for spec in plan.specs]
        contest = Contest(workload, workers, num_requests, workload.requests, expected, gap_figures, announce)
        stamp = Stamp("interference", plan.specs[0].name, plan.num_rounds, plan.provenance, plan.record)
        run_and_keep(contest, stamp, keep)


def make_interference(plan: InterferencePlan, info: SystemInfo) -> Workload:
    """The streams, then the long prompt: random token ids, outputs long enough for every system of the plan.

    Raises SetupError where the model or a budget cannot take it.
    """
    rng, ids = random.Random(plan.seed), plain_ids(info.vocab_size, info.special_ids)
    lengths = [*(rng.randint(*STREAM_PROMPT) for _ in range(plan.num_streams)), _num_long(plan, info)]
    prompts = [rng.choices(ids, k=length) for length in lengths]
    num_steps = max(_num_prefill_steps(spec, info, lengths) for spec in plan.specs)
    streams = [forced_request(prompt, NUM_TOKENS_BEFORE + num_steps + NUM_TOKENS_AFTER) for prompt in prompts[:-1]]
    requests = (*streams, forced_request(prompts[-1], NUM_TOKENS_AFTER))
    shape = Shape(
        key=f"{len(streams)}+{lengths[-1]}",
        name="interference",
        stresses="streams that decode while a long prompt is prefilled",
        num_requests=len(requests),
        prompt=STREAM_PROMPT,
        output=(NUM_TOKENS_AFTER, streams[0].params.max_tokens),
    )
    return _checked(Workload(shape, plan.seed, 1.0, requests), info)


def _num_long(plan: InterferencePlan, info: SystemInfo) -> int:
    room = info.max_model_len - NUM_TOKENS_AFTER
    return min(plan.num_prompt_tokens, room) if plan.specs[0].model.is_tiny else plan.num_prompt_tokens


def _num_prefill_steps(spec: SystemSpec, info: SystemInfo, lengths: Seq[int]) -> int:
    """The most steps that prompts of these lengths can take beside decoding streams; the last is the long one.

    So long no stream may end. Raises SetupError where the streams leave nothing of a step's budget.
    """
    if spec.phase is None or spec.phase.number < FIRST_WITH_BUDGET:
        return 1
    config, _ = resolve_config(spec.config, device=info.device, model_max_len=info.max_model_len)
    num_streams = len(lengths) - 1
    room = int(config.prefill_budget_tokens) - num_streams
    if room < 1:
        raise SetupError(
            f"--prefill-budget-tokens {config.prefill_budget_tokens} leaves a prompt nothing beside {num_streams} "
            f"streams: give {num_streams + 1} or more"
        )
    return sum(ceil(length / min(room, int(config.prefill_chunk_size))) for length in lengths)


def _checked(workload: Workload, info: SystemInfo) -> Workload:
    if workload.longest > info.max_model_len:
        raise SetupError(
            f"a sequence would have {workload.longest} tokens; the model takes {info.max_model_len}: "
            "give fewer --prompt-tokens, or larger chunks and budgets, which take fewer steps"
        )
    return workload
