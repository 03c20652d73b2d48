"""What every engine promises beside the right tokens: aborting, closing, failing, being interrupted."""

import asyncio
import itertools
import os
import signal
import threading
import time
from typing import Any

import pytest

from shared.errors import EngineError, InvalidRequest, QueueFull
from shared.registry import Phase
from shared.request import Request, SamplingParams
from tests.helpers import (
    LONG,
    PA,
    PB,
    PC,
    T0_OUTPUTS,
    Q,
    assert_alive,
    assert_clean,
    greedy,
    named,
    open_engine,
    phase_ids,
    slow_down,
    step_phases,
    token_lists,
    wait_until,
    wrap_model_forward,
)


def test_results_come_in_the_order_of_the_requests(phase: Phase) -> None:
    with open_engine(phase) as engine:
        outputs = engine.generate([greedy(PA, 24), greedy(PB, 1), greedy(PC, 7)])
    assert token_lists(outputs) == [T0_OUTPUTS["PA"], T0_OUTPUTS["PB"][:1], T0_OUTPUTS["PC"][:7]]


def test_generate_of_nothing_is_nothing(phase: Phase) -> None:
    with open_engine(phase) as engine:
        assert engine.generate([]) == []


def test_a_stream_has_one_terminal_output_and_it_is_the_last(phase: Phase) -> None:
    with open_engine(phase) as engine:
        outputs = list(engine.stream(greedy(PA, 5)))
    assert [output.finish_reason for output in outputs[:-1]] == [None] * (len(outputs) - 1)
    assert outputs[-1].finish_reason == "length"


def test_an_abort_while_waiting_ends_the_request_with_no_token(phase: Phase) -> None:
    with open_engine(phase, max_batch_size=1) as engine:
        slow_down(engine)
        running = engine.stream(named("running"))
        next(running)
        waiting = engine.stream(named("waiting"))
        engine.abort("waiting")
        output = waiting.result()
        assert (output.token_ids, output.finish_reason) == ([], "abort")
        assert next(running).finish_reason is None, "the other one goes on"
        running.close()
        assert_clean(engine)
        assert_alive(engine)


def test_an_abort_while_decoding_keeps_what_there_is_and_frees_the_rest(phase: Phase) -> None:
    with open_engine(phase) as engine:
        slow_down(engine, 0.005)
        stream = engine.stream(named("x"))
        tokens = next(stream).token_ids + next(stream).token_ids
        engine.abort("x")
        output = stream.result()
        assert output.finish_reason == "abort"
        assert output.token_ids[:2] == tokens == T0_OUTPUTS["PA"][:2]
        assert len(output.token_ids) < LONG
        assert_clean(engine)
        assert_alive(engine)


def test_aborting_twice_or_after_the_end_or_an_unknown_id_does_nothing(phase: Phase) -> None:
    with open_engine(phase) as engine:
        slow_down(engine, 0.005)
        stream = engine.stream(named("x"))
        next(stream)
        engine.abort("x")
        engine.abort("x")
        assert stream.result().finish_reason == "abort"
        engine.abort("x")
        engine.abort("never seen")
        assert_alive(engine)
        assert engine.stats().requests_finished == {"abort": 1, "length": 1}


def test_an_abort_spares_the_others(phase: Phase) -> None:
    with open_engine(phase) as engine:
        slow_down(engine, 0.002)
        streams = {name: engine.stream(named(name, prompt, 24)) for name, prompt in (("a", PA), ("b", PB), ("c", PC))}
        engine.abort("b")
        results = {name: stream.result() for name, stream in streams.items()}
    assert results["a"].token_ids == T0_OUTPUTS["PA"]
    assert results["c"].token_ids == T0_OUTPUTS["PC"]
    assert results["b"].finish_reason == "abort"


def test_closing_a_stream_aborts_its_request(phase: Phase) -> None:
    with open_engine(phase) as engine:
        slow_down(engine)
        stream = engine.stream(named("x"))
        next(stream)
        stream.close()
        stream.close()
        assert list(stream) == []
        assert_clean(engine)
        assert engine.stats().generated_tokens < 10
        assert_alive(engine)


def test_a_stream_that_nobody_holds_any_more_is_aborted(phase: Phase) -> None:
    with open_engine(phase) as engine:
        slow_down(engine)
        next(engine.stream(named("x")))
        assert_clean(engine)
        assert engine.stats().requests_finished == {"abort": 1}


def test_several_completions_are_one_request_and_one_abort(phase: Phase) -> None:
    with open_engine(phase) as engine:
        slow_down(engine, 0.005)
        stream = engine.stream(named("x", n=3, temperature=1.0, seed=1))
        next(stream)
        engine.abort("x")
        assert {completion.finish_reason for completion in stream.result().outputs} == {"abort"}
        assert_clean(engine)


def test_an_error_in_the_model_reaches_every_waiter(phase: Phase) -> None:
    with open_engine(phase) as engine:
        slow_down(engine, 0.05)
        failures: list[str] = []

        def wait_for(prompt: list[int]) -> None:
            try:
                engine.generate([greedy(prompt, LONG)])
            except EngineError as error:
                failures.append(str(error))

        waiters = [threading.Thread(target=wait_for, args=(prompt,)) for prompt in (PA, PB, PC)]
        for waiter in waiters:
            waiter.start()
        wait_until(lambda: engine.stats().num_requests == 3)
        wrap_model_forward(engine, fail_now)
        for waiter in waiters:
            waiter.join(timeout=2)
            assert not waiter.is_alive()
        assert failures == ["RuntimeError: the model broke"] * 3
        assert_clean(engine)


def fail_now() -> None:
    raise RuntimeError("the model broke")


def test_an_engine_that_failed_once_serves_the_next_request(phase: Phase) -> None:
    failing = iter([True])
    with open_engine(phase) as engine:
        wrap_model_forward(engine, lambda: fail_now() if next(failing, False) else None)
        with pytest.raises(EngineError, match="the model broke"):
            engine.generate([greedy(PA, 4)])
        assert_alive(engine)


def test_a_step_that_fails_harms_nobody_who_waits(phase: Phase) -> None:
    failing = iter([True])
    with open_engine(phase, max_batch_size=1) as engine:
        wrap_model_forward(engine, lambda: fail_now() if next(failing, False) else None)
        first, second = engine.streams([greedy(PA, 4), greedy(PB, 4)])
        with pytest.raises(EngineError, match="the model broke"):
            list(first)
        assert [token for output in second for token in output.token_ids] == T0_OUTPUTS["PB"][:4]
        assert_clean(engine)


def test_a_bad_request_is_refused_before_any_of_the_others_runs(phase: Phase) -> None:
    with open_engine(phase) as engine:
        with pytest.raises(InvalidRequest) as refused:
            engine.generate([greedy(PA, 4), greedy([97], 4)])
        assert refused.value.param == "prompt_token_ids"
        assert "97" in str(refused.value)
        assert engine.stats().num_steps == 0
        assert_alive(engine)


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (greedy(Q * 6, 4), "prompt_token_ids"),
        (greedy(PA, 4, stop_token_ids=[97]), "stop_token_ids"),
        (greedy(PA, 4, logit_bias={97: 1.0}), "logit_bias"),
        (greedy(PA, 4, stop=["x"]), "stop"),
    ],
    ids=["over the model's length", "stop id outside the vocabulary", "bias outside", "stop string, no tokenizer"],
)
def test_what_the_model_cannot_serve_is_refused_by_name(phase: Phase, request_: Request, param: str) -> None:
    with open_engine(phase) as engine:
        with pytest.raises(InvalidRequest) as refused:
            engine.generate([request_])
        assert refused.value.param == param
        assert_alive(engine)


def test_a_sequence_ends_with_length_at_the_models_limit(phase: Phase) -> None:
    with open_engine(phase, max_model_len=20) as engine:
        output = engine.generate([greedy(PA, LONG)])[0]
    assert (output.token_ids, output.finish_reason) == (T0_OUTPUTS["PA"][:12], "length")


def test_it_can_be_used_inside_a_running_event_loop(phase: Phase) -> None:
    async def main(engine: Any) -> list[list[int]]:
        return [engine.generate([greedy(PA, 4)])[0].token_ids for _ in range(2)]

    with open_engine(phase) as engine:
        assert asyncio.run(main(engine)) == [T0_OUTPUTS["PA"][:4]] * 2


def test_many_threads_can_ask_at_once(phase: Phase) -> None:
    results: dict[int, list[list[int]]] = {}
    with open_engine(phase, max_batch_size=3) as engine:

        def ask(number: int) -> None:
            results[number] = token_lists(engine.generate([greedy(PA, 6), greedy(PB, 6)]))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
    assert results == {number: [T0_OUTPUTS["PA"][:6], T0_OUTPUTS["PB"][:6]] for number in range(8)}


def test_an_interrupt_ends_the_call_and_leaves_the_engine_usable(phase: Phase) -> None:
    before = set(threading.enumerate())
    with open_engine(phase) as engine:
        slow_down(engine)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        started = time.perf_counter()
        with pytest.raises(KeyboardInterrupt):
            engine.generate([greedy(PA, LONG)])
        assert time.perf_counter() - started < 2
        assert token_lists(engine.generate([greedy(PB, 4)])) == [T0_OUTPUTS["PB"][:4]]
        assert_clean(engine)
    wait_until(lambda: set(threading.enumerate()) <= before)


def test_metrics_count_the_wait_in_the_time_to_first_token(phase: Phase) -> None:
    with open_engine(phase, max_batch_size=1) as engine:
        slow_down(engine, 0.01)
        first, second = (output.metrics for output in engine.generate([greedy(PA, 10), greedy(PB, 10)]))
    assert second.queue_s >= first.e2e_s - 0.01 > 0.08
    assert second.ttft_s > second.queue_s
    assert first.tpot_s == pytest.approx((first.last_token_time - first.first_token_time) / 9)
    assert first.num_output_tokens == 10


def test_the_time_per_token_is_that_of_one_completion(phase: Phase) -> None:
    times: dict[int, list[float]] = {}  # one token a step: a time is a token
    done = threading.Event()
    metrics: list[Any] = []

    def note(output: Any) -> None:
        times.setdefault(output.index, []).append(output.time)
        if output.metrics is not None:
            metrics.append(output.metrics)
            done.set()

    with open_engine(phase) as engine:
        engine.submit(greedy(PA, 6, n=3), note)
        assert done.wait(30)
    gaps = [after - before for stamps in times.values() for before, after in itertools.pairwise(stamps)]
    assert len(gaps) == 3 * 5
    assert metrics[0].tpot_s == pytest.approx(sum(gaps) / len(gaps))
    assert metrics[0].num_output_tokens == 18


def test_a_closed_engine_refuses_with_a_clear_error(phase: Phase) -> None:
    with open_engine(phase) as engine:
        engine.close()
        with pytest.raises(EngineError, match="closed"):
            engine.generate([greedy(PA, 1)])


def test_closing_aborts_what_runs_and_leaves_no_thread(phase: Phase) -> None:
    before = set(threading.enumerate())
    with open_engine(phase) as engine:
        slow_down(engine)
        stream = engine.stream(named("x"))
        next(stream)
        engine.close()
        assert stream.result().finish_reason == "abort"
    wait_until(lambda: set(threading.enumerate()) <= before)


def test_events_tell_the_story_of_a_request(phase: Phase) -> None:
    with open_engine(phase) as engine, engine.events.recording() as events:
        engine.generate([greedy(PA, 3)])
        wait_until(lambda: events[-1].kind == "finished")
    kinds = [event.kind for event in events if event.kind not in ("freed", "prefix_hit")]
    assert kinds == ["queued", "admitted", "chunk", "decode", "decode", "finished"]
    assert [event.num_tokens for event in events if event.kind == "chunk"] == [len(PA)]
    assert all(earlier.time <= later.time for earlier, later in itertools.pairwise(events))


def test_a_client_may_abort_itself_and_others_from_its_callback(phase: Phase) -> None:
    ended: dict[str, str | None] = {}
    with open_engine(phase, max_batch_size=4) as engine:
        slow_down(engine, 0.002)

        def abort_two(output: Any) -> None:
            if output.finish_reason is not None:
                ended[output.request_id] = output.finish_reason
            elif output.request_id == "b":
                engine.abort("b")
                engine.abort("c")

        engine.submit_all([named(name, max_tokens=24) for name in ("a", "b", "c")], [abort_two] * 3)
        wait_until(lambda: len(ended) == 3, seconds=5)
        assert_alive(engine)
    assert ended == {"a": "length", "b": "abort", "c": "abort"}


def test_requests_that_belong_together_are_taken_together_or_not_at_all(phase: Phase) -> None:
    ended: dict[str, str | None] = {}

    def note(output: Any) -> None:
        if output.finish_reason is not None:
            ended[output.request_id] = output.finish_reason

    with open_engine(phase, queue_capacity=3) as engine:
        for refused in ([named("a"), named("a")], [named("a"), Request([10**6], SamplingParams(), "b")]):
            with pytest.raises(InvalidRequest):
                engine.submit_all(refused, [note, note])
        if phase.number >= 3:
            with pytest.raises(QueueFull):
                engine.submit_all([named(str(number)) for number in range(4)], [note] * 4)
        assert engine.stats().num_requests == 0
        assert engine.submit_all([named("a", max_tokens=2), named("b", max_tokens=2)], [note, note]) == ["a", "b"]
        wait_until(lambda: len(ended) == 2)
        assert_alive(engine)
    assert ended == {"a": "length", "b": "length"}


def test_the_longest_sequence_is_what_one_gets_that_asks_for_more(phase: Phase) -> None:
    with open_engine(phase, max_model_len=40) as engine:
        assert engine.longest_sequence == len(PA) + len(engine.generate([greedy(PA, LONG)])[0].token_ids) == 40


def test_closing_does_not_wait_for_generations_whoever_submits_meanwhile(phase: Phase) -> None:
    with open_engine(phase) as engine:
        slow_down(engine, 0.02)
        stream = engine.stream(named("x"))
        next(stream)
        stop = threading.Thread(target=engine.close)
        stop.start()
        if hasattr(engine, "thread"):
            engine.thread.wake()
        stop.join(timeout=1)
        assert not stop.is_alive()
        assert stream.result().finish_reason == "abort"


def test_a_callback_that_raises_harms_nobody(phase: Phase) -> None:
    def leave(_: Any) -> None:
        raise SystemExit

    with open_engine(phase) as engine:
        engine.submit(named("x", max_tokens=5), leave)
        wait_until(lambda: engine.stats().num_requests == 0)
        assert_alive(engine)


def test_an_id_that_could_be_taken_for_a_completions_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="must not contain '/'"):
        named("x/1")


# -- stepping by hand: phases 2 to 12 -----------------------------------------------------------------


@pytest.mark.parametrize("phase", step_phases, ids=phase_ids[1:])
def test_progress_stays_within_its_bounds_after_every_step(phase: Phase) -> None:
    with open_engine(phase, max_batch_size=2) as engine:
        for prompt in (PA, PB, Q[:40]):
            engine.add_request(greedy(prompt, 6))
        while engine.has_unfinished():
            engine.step()
            for seq in engine.scheduler.running:
                assert 0 <= seq.num_computed_tokens <= len(seq.token_ids)
                assert seq.num_output_tokens == 0 or seq.num_uncomputed_tokens == 1


@pytest.mark.parametrize("phase", step_phases, ids=phase_ids[1:])
def test_an_abort_between_steps_frees_at_once(phase: Phase) -> None:
    with open_engine(phase, max_batch_size=1) as engine:
        engine.add_request(named("running"))
        engine.add_request(named("waiting", PB))
        engine.step()
        assert (engine.stats().num_running, engine.stats().num_waiting) == (1, 1)
        engine.abort("running")
        assert (engine.stats().num_running, engine.stats().num_waiting) == (0, 1)
        engine.abort("waiting")
        assert_clean(engine)


@pytest.mark.parametrize("phase", step_phases, ids=phase_ids[1:])
def test_stepping_beside_the_engines_own_thread_is_refused(phase: Phase) -> None:
    with open_engine(phase) as engine:
        slow_down(engine)
        with engine.stream(named("x")) as stream:
            next(stream)
            with pytest.raises(RuntimeError, match="own thread"):
                engine.step()
        wait_until(lambda: not engine.has_unfinished())
        engine.add_request(greedy(PA, 1))
        assert engine.step()[0].token_ids == T0_OUTPUTS["PA"][:1], "by hand again once it is done"


@pytest.mark.parametrize("phase", step_phases, ids=phase_ids[1:])
def test_a_step_by_hand_that_fails_raises_and_leaves_nothing(phase: Phase) -> None:
    delivered: list[Any] = []
    with open_engine(phase) as engine:
        engine.add_request(greedy(PA, 4), delivered.append)
        wrap_model_forward(engine, fail_now)
        with pytest.raises(RuntimeError, match="the model broke"):
            engine.step()
        assert [output.finish_reason for output in delivered] == ["error"]
        assert_clean(engine)


@pytest.mark.parametrize("phase", step_phases, ids=phase_ids[1:])
def test_a_request_that_is_ended_on_its_way_into_the_intake_leaves_nothing(phase: Phase) -> None:
    with open_engine(phase) as engine:
        states = engine.requests.register([greedy(PA, 4)], [None])
        engine.requests.end(states[0], "error", "another step failed just now")
        engine.intake.put(states)
        engine.add_request(greedy(PB, 2))
        while engine.has_unfinished():
            engine.step()
        assert engine.stats().num_running == 0
        assert_alive(engine)


@pytest.mark.parametrize("phase", [p for p in step_phases if p.number >= 3], ids=lambda p: p.package[:7])
def test_generate_takes_more_requests_than_may_wait(phase: Phase) -> None:
    with open_engine(phase, queue_capacity=2, queue_timeout_s=0.001, max_batch_size=2) as engine:
        assert token_lists(engine.generate([greedy(PA, 2)] * 7)) == [T0_OUTPUTS["PA"][:2]] * 7
        with pytest.raises(QueueFull, match="at most 2 requests may wait"):
            engine.streams([greedy(PA, 2)] * 7)
        assert_alive(engine)
