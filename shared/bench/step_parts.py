"""`step-parts` and `step-time`: how long a decode step takes, and where its milliseconds go.

What is left of the forward pass is norms, RoPE, activations and dispatch; what is left of the step is planning and
handing out.
"""

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import psutil
import torch

from shared.bench.build import load
from shared.bench.decoding import Decoding, decoding_engine
from shared.bench.results import Figures, ModelRecord, SystemResult
from shared.bench.roofline import Machine, decode_work, measure_machine
from shared.bench.step_clocks import Clocks, clocks_in, one_step
from shared.bench.systems import ModelChoice
from shared.errors import SetupError
from shared.kv_sizing import kv_bytes_per_token

FIRST_PACKED = 8  # before, a step is several forward passes
NUM_WARM_UP_STEPS = 3
MIN_STEPS = 3
PATIENCE_S = 5.0  # after which slow steps are enough


@dataclass(slots=True)
class Measured:
    """A case and what came of it so far. ran_on: model and device."""

    case: Decoding
    repeats: list[Figures] = field(default_factory=list)
    implementation: dict[str, str] = field(default_factory=dict)
    ran_on: tuple[str, str] = ("", "")

    def result(self, num_rounds: int) -> SystemResult:
        """Of the first rounds."""
        case = self.case
        return SystemResult(
            case.name,
            case.label,
            self.repeats[:num_rounds],
            settings={"num_sequences": case.num_sequences, "context": case.context, "pool_factor": case.pool_factor},
            implementation=self.implementation,
            code=[f"{case.phase.package}/engine.py"],
        )


def run_step_parts(
    cases: Seq[Decoding],
    choice: ModelChoice,
    num_steps: int,
    num_rounds: int,
    announce: Callable[[str], None],
    keep: Callable[[list[SystemResult], ModelRecord], object],
) -> None:
    """Measure all cases in each round, every other round backwards, a fresh engine for each.

    `keep` gets the rounds that were finished, also when something ends them early. A case that this machine or this
    phase cannot run is left out, with a message. Raises SetupError if none is left.
    """
    if choice.num_threads is not None:
        torch.set_num_threads(choice.num_threads)
    measured = {case.name: Measured(case) for case in cases}
    try:
        for number in range(1, num_rounds + 1):
            machine = measure_machine(getattr(torch, choice.dtype))
            for one in list(measured.values())[:: 1 if number % 2 else -1]:
                announce(f"round {number} of {num_rounds}: {one.case.label}")
                try:
                    one.repeats.append(measure(one, choice, num_steps, machine))
                except SetupError as error:
                    announce(f"left out: {one.case.label}: {error}")
                    del measured[one.case.name]
    finally:
        if num_whole := min((len(one.repeats) for one in measured.values()), default=0):
            model_name, device = next(iter(measured.values())).ran_on
            record = ModelRecord(model_name, choice.dtype, device, torch.get_num_threads())
            keep([one.result(num_whole) for one in measured.values()], record)
    if not measured:
        raise SetupError("none of the cases can run here; the messages above say why")


def measure(one: Measured, choice: ModelChoice, num_steps: int, machine: Machine) -> Figures:
    """Median seconds per decode step: the whole, each part, the rests, and the shortest that the machine allows."""
    model, _, model_name = load(choice)
    _check_room(one.case, model)
    one.ran_on = (model_name, str(model.device))
    work = decode_work(model, one.case.num_sequences, one.case.context)
    with decoding_engine(one.case, model, NUM_WARM_UP_STEPS + num_steps) as engine:
        one.implementation = dict(engine.implementation)
        for _ in range(NUM_WARM_UP_STEPS):
            engine.step()
        with clocks_in(engine) as clocks:
            steps = list(_steps(engine, clocks, num_steps))
    rates = {"read_bytes_per_s": machine.read_rate, "matmul_operations_per_s": machine.matmul_rate}
    return {**_medians(steps), "roofline_s": work.shortest_s(machine), **rates}


def _steps(engine: Any, clocks: Clocks, num_steps: int) -> Iterator[Figures]:
    started = time.perf_counter()
    for number in range(num_steps):
        if number >= MIN_STEPS and time.perf_counter() - started > PATIENCE_S:
            return
        yield one_step(engine, clocks)


def _check_room(case: Decoding, model: Any) -> None:
    """Raises SetupError if K/V and its gathered copy would not fit."""
    needed = 1.1 * case.num_sequences * case.context * kv_bytes_per_token(model.config, model.dtype.itemsize)
    available = available_bytes()
    if model.device.type == "cpu" and needed > available:
        raise SetupError(f"its K/V needs {needed / 1e9:.1f} GB, and {available / 1e9:.1f} GB are free")


def available_bytes() -> int:
    return psutil.virtual_memory().available


def _medians(steps: Seq[Figures]) -> Figures:
    """None where a part is unknown."""
    columns = {part: [step[part] for step in steps] for part in steps[0]}
    return {part: None if None in column else median(filter(None, column)) for part, column in columns.items()}
