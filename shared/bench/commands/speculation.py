"""`speculation`: does guessing ahead pay, and for whom?"""

import argparse
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import replace

from shared.bench.arguments import (
    add_keeping,
    add_model,
    add_recording,
    add_scale,
    check_publishable,
    count,
    listed,
    model_choice,
)
from shared.bench.code_files import REPOSITORY
from shared.bench.host import provenance
from shared.bench.keeping import run_plan
from shared.bench.offline import OfflinePlan, run_offline
from shared.bench.systems import BENCH_CONFIG, ModelChoice, SystemSpec, phase_spec
from shared.registry import newest_phase

OFF = "off"
EXPLANATION = """what happens: the newest phase answers texts to their ends (EOS), with speculation off, with n-gram
guesses and k fixed, and with k that follows its use; with one sequence at a time, and with eight. The three run next to
each other in every round, and the ratio is to "off" of the same round and batch size.

workloads: repetitive (repeat a passage: guesses come true) and chat (real questions: they seldom do).
Output that is forced past its end would loop, and loops flatter guesses: so nothing is forced here."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--workloads", type=listed(str), default=["repetitive", "chat"], metavar="W,W", help="default: repetitive,chat"
    )
    parser.add_argument(
        "--batch-sizes", type=listed(count), default=[1, 8], metavar="N,N", help="sequences at once; default: 1,8"
    )
    parser.add_argument("--guesses", type=count, default=4, metavar="K", help="at most per step; default: 4")
    add_scale(parser)
    add_model(parser.add_argument_group("model"))
    add_recording(add_keeping(parser))


def run(args: argparse.Namespace, argv: Seq[str]) -> int:
    check_publishable(args)
    plan = OfflinePlan(
        workload_keys=args.workloads,
        specs=list(_specs(model_choice(args), args.batch_sizes, args.guesses)),
        base=OFF,
        scale=args.scale,
        slow_scale=1.0,
        seed=args.seed,
        num_rounds=args.repeats,
        provenance=provenance(argv, REPOSITORY),
        record=args.record,
        kind="speculation",
    )
    return run_plan(run_offline, plan, args)


def _specs(model: ModelChoice, batch_sizes: Seq[int], num_guesses: int) -> Iterator[SystemSpec]:
    """The name's part before the slash is the batch."""
    for batch_size in batch_sizes:
        off = replace(BENCH_CONFIG, max_batch_size=batch_size, num_speculative_tokens=num_guesses)
        ngram = replace(off, speculative_method="ngram")
        for name, config, label in (
            (OFF, off, "no guesses"),
            ("fixed", replace(ngram, adaptive_speculation=False), f"k = {num_guesses}"),
            ("adaptive", ngram, f"k adaptive, at most {num_guesses}"),
        ):
            spec = phase_spec(model, newest_phase(), config)
            yield replace(spec, name=f"{batch_size}/{name}", label=f"{batch_size} at once, {label}")
