"""A step that breaks anywhere, and callbacks that do what they please: every client hears of its end, once.

What fails inside the model and behind a server is in `test_faults_engine.py`.
"""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from shared.errors import EngineError, QueueFull
from shared.output import StepOutput
from shared.registry import PHASES, Phase
from shared.request import Request
from tests.helpers import (
    PA,
    PB,
    PC,
    T0_OUTPUTS,
    assert_alive,
    assert_clean,
    named,
    open_engine,
    phase_ids,
    step_phases,
    wait_until,
    wrap_model_forward,
)

stepped = pytest.mark.parametrize("phase", step_phases, ids=phase_ids[1:])
preempting = pytest.mark.parametrize("phase", [p for p in PHASES if p.number >= 9], ids=lambda p: p.package[:7])
TIGHT = {"kv_block_size": 4, "kv_num_blocks": 10, "swap_num_blocks": 32}


class Broken(Exception):
    pass


def broken(*_: Any) -> Any:
    raise Broken


class Clients:
    """Who has asked, and what they were told."""

    def __init__(self, engine: Any, requests: list[Request]) -> None:
        self.told: dict[str, list[StepOutput]] = {str(request.request_id): [] for request in requests}
        for request in requests:
            engine.add_request(request, self.hear)

    def hear(self, output: StepOutput) -> None:
        self.told[output.request_id].append(output)

    def tokens(self, request_id: str) -> list[int]:
        return [token for output in self.told[request_id] for token in output.token_ids]

    @property
    def reasons(self) -> dict[str, list[str]]:
        return {name: [o.finish_reason for o in told if o.finish_reason] for name, told in self.told.items()}


def step_until_broken(engine: Any) -> None:
    with pytest.raises(Broken):
        drive(engine)


def drive(engine: Any) -> None:
    while engine.has_unfinished():
        engine.step()


# -- a step breaks after it has computed ----------------------------------------------------------------


def break_apply(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first row is taken in, the second is not."""
    module: Any = sys.modules[type(engine.scheduler).__module__]
    calls = iter([module.accept_tokens])
    monkeypatch.setattr(module, "accept_tokens", lambda seq, tokens: next(calls, broken)(seq, tokens))


def break_listener(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.events, "emit_step", broken)


def break_release(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    release, calls = engine.runner.release, iter([broken])
    monkeypatch.setattr(engine.runner, "release", lambda seq: next(calls, release)(seq))


@stepped
@pytest.mark.parametrize("break_it", [break_apply, break_listener, break_release])
def test_who_had_finished_in_the_broken_step_is_told_as_well(
    phase: Phase, break_it: Callable[[Any, pytest.MonkeyPatch], None]
) -> None:
    with open_engine(phase, kv_block_size=4) as engine:
        clients = Clients(engine, [named("a", PA, 1), named("b", PB, 3), named("c", PC, 1, n=2)])
        with pytest.MonkeyPatch.context() as patch:
            break_it(engine, patch)
            step_until_broken(engine)
        assert clients.reasons == {"a": ["error"], "b": ["error"], "c": ["error"] * 2}
        assert_clean(engine)
        assert not engine.scheduler.running
        after = Clients(engine, [named("a", PC, 2)])
        drive(engine)
        assert after.tokens("a") == T0_OUTPUTS["PC"][:2]


@preempting
@pytest.mark.parametrize("copy", ["to_host", "to_device"])
def test_a_copy_that_fails_leaves_no_block_behind_on_either_side(phase: Phase, copy: str) -> None:
    requests = [named(name, prompt, 24) for name, prompt in zip("abc", (PA, PB, PC))]
    with open_engine(phase, **TIGHT) as engine:
        clients = Clients(engine, requests)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine.scheduler.swap.copier, copy, broken)
            step_until_broken(engine)
        assert [len(reasons) for reasons in clients.reasons.values()] == [1, 1, 1]
        assert_clean(engine)
        assert [output.token_ids for output in engine.generate(requests)] == list(T0_OUTPUTS.values())


@preempting
def test_a_broken_step_ends_who_is_swapped_too(phase: Phase) -> None:
    with open_engine(phase, **TIGHT) as engine:
        clients = Clients(engine, [named(name, prompt, 24) for name, prompt in zip("abc", (PA, PB, PC))])
        while not engine.scheduler.swapped:
            engine.step()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine.runner, "execute", broken)
            step_until_broken(engine)
        assert set(map(tuple, clients.reasons.values())) == {("error",)}
        assert_clean(engine)
        assert_alive(engine)


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_whatever_breaks_a_step_its_client_is_told_and_who_waits_goes_on(
    phase: Phase, error: type[BaseException]
) -> None:
    errors = iter([error])

    def leave() -> None:
        if (kind := next(errors, None)) is not None:
            raise kind

    with open_engine(phase, max_batch_size=1) as engine:
        wrap_model_forward(engine, leave)
        told: dict[str, list[StepOutput]] = {"a": [], "b": []}
        requests = [named("a", PA, 4), named("b", PB, 4)]
        engine.submit_all(requests, [told["a"].append, told["b"].append])
        wait_until(lambda: bool(told["b"]) and told["b"][-1].finish_reason is not None)
        assert [output.finish_reason for output in told["a"]] == ["error"]
        assert [token for output in told["b"] for token in output.token_ids] == T0_OUTPUTS["PB"][:4]


@stepped
def test_a_request_that_is_ended_before_it_is_refused_is_refused_all_the_same(phase: Phase) -> None:
    with open_engine(phase) as engine:

        def end_and_refuse(states: Any, **_: Any) -> None:
            engine.requests.end(states[0], "error", "another step failed just now")
            raise QueueFull(1)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine.intake, "put", end_and_refuse)
            with pytest.raises(QueueFull):
                engine.submit_all([named("a", PA, 1), named("b", PB, 1)], [lambda _: None] * 2)
        assert engine.stats().num_requests == 0
        assert_alive(engine)


# -- from a callback --------------------------------------------------------------------------------------


def test_who_is_told_that_a_request_is_over_finds_it_over(phase: Phase) -> None:
    seen: list[Any] = []
    again: list[StepOutput] = []
    with open_engine(phase) as engine:

        def hear(output: StepOutput) -> None:
            if output.finish_reason is not None:
                stats = engine.stats()
                seen.append((stats.num_requests, stats.requests_finished["length"]))
                engine.submit(named("a", PB, 2), again.append)

        engine.submit(named("a", PA, 2), hear)
        wait_until(lambda: bool(again) and again[-1].finish_reason is not None)
    assert seen == [(0, 1)]
    assert [token for output in again for token in output.token_ids] == T0_OUTPUTS["PB"][:2]


@stepped
def test_a_callback_may_close_the_engine(phase: Phase) -> None:
    with open_engine(phase) as engine:
        clients = Clients(engine, [named("a", PA, 4), named("b", PB, 1), named("c", PC, 4, n=2)])
        hear = clients.hear

        def close(output: StepOutput) -> None:
            hear(output)
            engine.close()

        for state in engine.requests.states():
            state.deliver = close
        engine.step()
        assert clients.reasons == {"a": ["abort"], "b": ["abort"], "c": ["abort"] * 2}
        assert clients.tokens("a") == T0_OUTPUTS["PA"][:1]
        with pytest.raises(EngineError, match="closed"):
            engine.add_request(named("d", PA, 1))


@stepped
def test_a_step_inside_a_step_is_refused_and_harms_nobody(phase: Phase) -> None:
    refused: list[str] = []
    with open_engine(phase) as engine:

        def step(_: StepOutput) -> None:
            with pytest.raises(RuntimeError, match="a step is running") as error:
                engine.step()
            refused.append(str(error.value))

        engine.add_request(named("a", PA, 3), step)
        clients = Clients(engine, [named("b", PB, 3)])
        drive(engine)
        assert len(refused) == 3
        assert clients.tokens("b") == T0_OUTPUTS["PB"][:3]


@preempting
def test_a_callback_may_abort_who_is_swapped(phase: Phase) -> None:
    aborted: list[str] = []
    with open_engine(phase, **TIGHT) as engine:
        clients = Clients(engine, [named(name, prompt, 24) for name, prompt in zip("abc", (PA, PB, PC))])
        hear = clients.hear

        def abort(output: StepOutput) -> None:
            hear(output)
            if engine.scheduler.swapped and not aborted:
                aborted.append(engine.scheduler.swapped[0].request_id)
                engine.abort(aborted[0])

        for state in engine.requests.states():
            state.deliver = abort
        drive(engine)
    assert clients.reasons == {name: ["abort" if name in aborted else "length"] for name in "abc"}
    for name, expected in zip("abc", T0_OUTPUTS.values()):
        said = clients.tokens(name)
        assert said == expected[: len(said)]
