"""The explainer of divergences, held to faults that are planted: each has to be found where it is, and nothing else.

The reverse, too: a healthy engine of any phase drifts nowhere, and a near tie is no fault.
"""

from collections.abc import Sequence as Seq
from typing import Any

import pytest
import torch

from phase02_iteration_scheduling.runner import SequenceRunner
from shared.config import EngineConfig
from shared.errors import SetupError
from shared.explain import assert_same_tokens, explain
from shared.explain import command as explain_command
from shared.explain.choice import choice_between
from shared.explain.drift import Drift, drift_tolerance, first_drift
from shared.explain.planted_faults import FAULTS
from shared.explain.report import Divergence
from shared.explain.trace import Span, Trace, trace_reference, tracing
from shared.hf_forward import forward_sequence, new_cache
from shared.registry import PHASES, Phase, phase_by_number
from shared.request import Request, SamplingParams
from shared.step import ScheduledSequence, StepPlan
from shared.tiny_models import FAMILIES, tiny_llama
from tests.helpers import PA, PB, PC, T0_OUTPUTS, Q, greedy, open_engine, token_lists

MAX_TOKENS = 16
with_hf_cache = [phase for phase in PHASES if phase.number < 8]


def explain_planted(
    fault: str,
    phase: int = 2,
    family: str = "llama",
    prompts: Seq[Seq[int]] = (PA,),
    dtype: torch.dtype = torch.float64,
    **settings: Any,
) -> Divergence:
    """What the explainer says of the first prompt in a phase's engine with a planted fault; its text is read, too."""
    planted = FAULTS[fault]
    found = explain(
        planted.plant(phase_by_number(phase).build_engine()),
        planted.prepare(lambda: FAMILIES[family]().to(dtype)),
        prompts[0],
        MAX_TOKENS,
        config=EngineConfig(**settings),
        served_with=prompts,
    )
    assert found is not None, "the fault does not show in these tokens"
    assert len(str(found).splitlines()) <= 26
    assert max(map(len, str(found).splitlines())) <= 100
    return found


def text_of(found: Divergence | None) -> str:
    """The report on one line: where it wraps is no matter."""
    return " ".join(str(found).split())


def trace_of(phase: Phase, family: str, prompts: Seq[Seq[int]], dtype: torch.dtype, **settings: Any) -> Trace:
    """What the first of the prompts computed in a healthy engine."""
    with open_engine(phase, FAMILIES[family]().to(dtype), **settings) as engine, tracing(engine, "first") as trace:
        params = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
        engine.generate([Request(p, params, "first" if p is prompts[0] else None) for p in prompts])
    return trace


def compare_with_reference(trace: Trace, model: Any, prompt: Seq[int]) -> tuple[Trace, Drift | None]:
    """The reference over the tokens that the engine chose, and where the engine drifts from it."""
    output = [trace.chosen[position] for position in sorted(trace.chosen)]
    reference = trace_reference(model, prompt, output[:-1])
    num_positions = len(prompt) + len(output)
    drift = first_drift(
        reference,
        trace,
        num_positions=num_positions,
        num_prompt_tokens=len(prompt),
        tolerance=drift_tolerance(model.dtype),
    )
    return reference, drift


# -- healthy engines ---------------------------------------------------------------------------------------


def test_healthy_engines_have_nothing_to_explain(phase: Phase) -> None:
    assert explain(phase.build_engine(), tiny_llama, PA, MAX_TOKENS, served_with=[PA, PB]) is None


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_no_layer_of_a_healthy_engine_drifts_in_chunks_and_in_company(phase: Phase, family: str) -> None:
    trace = trace_of(phase, family, [Q[:21], PA, Q[:40]], torch.float64, prefill_chunk_size=5)
    reference, drift = compare_with_reference(trace, FAMILIES[family](), Q[:21])
    assert drift is None
    if trace.has_layers:  # then every row of every layer was told from the neighbours'
        assert trace.rows.keys() == reference.rows.keys()
        assert len(trace.rows["token_ids"]) == 21 + MAX_TOKENS - 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_of_other_dtypes_is_within_the_tolerance(dtype: torch.dtype) -> None:
    trace = trace_of(PHASES[-1], "llama", [Q[:21]], dtype, prefill_chunk_size=5)
    assert compare_with_reference(trace, tiny_llama().to(dtype), Q[:21])[1] is None


def test_a_wrong_output_of_a_healthy_engine_is_blamed_on_that_run_and_on_no_layer() -> None:
    got = [*T0_OUTPUTS["PA"][:5], 1, *T0_OUTPUTS["PA"][6:]]
    found = explain(phase_by_number(2).build_engine(), tiny_llama, PA, 24, got, served_with=[PA, PB])
    assert found is not None
    assert (found.cause, found.step, found.drift) == ("unexplained", 5, None)
    assert "alone, the engine agrees" in text_of(found)
    assert "Together with the same neighbour it agrees, too" in text_of(found)


# -- the forward pass --------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", with_hf_cache, ids=lambda phase: f"phase{phase.number:02d}")
def test_a_decode_that_runs_one_position_too_far_is_named_with_both_positions(phase: Phase) -> None:
    found = explain_planted("position-off-by-one", phase.number)
    assert found.cause == "forward"
    assert found.drift is not None
    assert (found.drift.checkpoint, found.drift.position, found.drift.pattern) == ("position_ids", 8, "decodes")
    assert found.drift.values == (9, 8)
    assert "position of decoded tokens: off by +1" in text_of(found)
    assert "shared/hf_forward.py" in found.hypothesis.files


@pytest.mark.parametrize("phase", with_hf_cache, ids=lambda phase: f"phase{phase.number:02d}")
def test_a_top_left_mask_at_decode_is_found_in_the_first_attention(phase: Phase) -> None:
    found = explain_planted("top-left-mask", phase.number)
    assert found.drift is not None
    assert found.drift.checkpoint == "layers.0.self_attn.attention"
    assert (found.drift.position, found.drift.pattern) == (8, "decodes")
    assert found.drift.agreeing[-3:] == tuple(f"layers.0.self_attn.{name}_proj" for name in "qkv")
    assert "aligned to the top left" in text_of(found)


@pytest.mark.parametrize("family", sorted({"llama", "qwen3", "gemma2"} & FAMILIES.keys()))
def test_a_top_left_mask_in_chunked_prefill_is_found_where_the_second_chunk_begins(family: str) -> None:
    found = explain_planted("top-left-mask", 4, family, prefill_chunk_size=3)
    assert found.drift is not None
    assert found.drift.checkpoint == "layers.0.self_attn.attention"
    assert (found.drift.position, found.drift.pattern, found.drift.num_cached) == (3, "later passes", 3)
    assert found.drift.signature == "first key only"


def test_an_ignored_window_is_found_where_the_window_begins_to_count() -> None:
    found = explain_planted("ignored-window", family="mistral", prompts=[Q[:20]])
    assert found.drift is not None
    assert (found.drift.kind, found.drift.position, found.drift.pattern) == ("attention", 8, "window")
    assert "the sliding window" in text_of(found)


def test_a_window_as_long_as_the_prompt_is_mentioned_beside_what_else_decodes_do() -> None:
    found = explain_planted("ignored-window", family="mistral")
    assert found.drift is not None
    assert found.drift.pattern == "decodes"
    assert "also where the sliding window begins" in text_of(found)


def test_a_dropped_bias_is_found_in_its_layer_and_known_by_its_value() -> None:
    found = explain_planted("dropped-bias", family="qwen2")
    assert found.drift is not None
    assert found.drift.checkpoint == "layers.1.self_attn.q_proj"
    assert (found.drift.pattern, found.drift.signature) == ("everywhere", "bias")
    assert "a bias that is not added" in text_of(found)
    assert "layer 0 does the same and agrees" in text_of(found)


def test_weights_that_changed_places_are_named() -> None:
    found = explain_planted("exchanged-projections")
    assert found.drift is not None
    assert (found.drift.checkpoint, found.drift.equals) == ("layers.1.self_attn.k_proj", "layers.1.self_attn.v_proj")
    assert "two tensors that have changed places" in text_of(found)


def spoil(module: str, change: Any) -> Any:
    """A `build_engine` of phase 2 whose model's module has another output."""

    def build(model: Any, config: EngineConfig) -> Any:
        model.get_submodule(module).register_forward_hook(lambda _, args, output: change(output))  # noqa: ARG005
        return phase_by_number(2).build_engine()(model, config)

    return build


@pytest.mark.parametrize(
    ("module", "change", "checkpoint", "points_to"),
    [
        ("model.embed_tokens", lambda out: out * 7, "embed_tokens", "a scale that is missing"),
        ("model.layers.1.mlp", lambda out: out.roll(1, -1), "layers.1.mlp", "the MLP"),
        ("model.layers.0.self_attn.o_proj", lambda out: out + 3, "layers.0.self_attn.o_proj", "the same vector"),
        ("model.layers.1.input_layernorm", lambda out: out.flip(-1), "layers.1.input_layernorm", "this norm"),
        ("model.norm", lambda out: out * float("nan"), "norm", "an overflow or a division by zero"),
        ("lm_head", lambda out: out.roll(1, -1), "lm_head", "the head's weights"),
    ],
)
def test_a_wrong_module_is_the_first_thing_that_differs(
    module: str, change: Any, checkpoint: str, points_to: str
) -> None:
    found = explain(spoil(module, change), tiny_llama, PA, MAX_TOKENS)
    assert found is not None
    assert found.drift is not None
    assert (found.cause, found.drift.checkpoint, found.drift.pattern) == ("forward", checkpoint, "everywhere")
    assert points_to in text_of(found)


def test_scores_of_another_scale_leave_position_0_alone() -> None:
    def build(model: Any, config: EngineConfig) -> Any:
        model.model.layers[1].self_attn.scaling *= 2
        return phase_by_number(2).build_engine()(model, config)

    found = explain(build, tiny_llama, PA, MAX_TOKENS)
    assert found is not None
    assert found.drift is not None
    assert (found.drift.checkpoint, found.drift.pattern) == ("layers.1.self_attn.attention", "all but first")
    assert "the scale 1/sqrt(head_dim)" in text_of(found)


def test_a_mask_that_shows_what_comes_after_leaves_the_last_prompt_token_alone() -> None:
    def show_all(_: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        size = kwargs["input_ids"].shape[1]
        return args, kwargs | ({"attention_mask": torch.zeros(1, 1, size, size).double()} if size > 1 else {})

    def build(model: Any, config: EngineConfig) -> Any:
        model.register_forward_pre_hook(show_all, with_kwargs=True)
        return phase_by_number(2).build_engine()(model, config)

    found = explain(build, tiny_llama, PA, MAX_TOKENS)
    assert found is not None
    assert found.drift is not None
    assert (found.drift.checkpoint, found.drift.pattern) == ("layers.0.self_attn.attention", "all but last")
    assert found.drift.positions == tuple(range(len(PA) - 1))
    assert "shows tokens what comes after them" in text_of(found)


def test_a_token_that_is_fed_twice_is_named() -> None:
    class FeedsThePreviousToken(SequenceRunner):
        def _forward(self, item: ScheduledSequence) -> torch.Tensor:
            late = item.num_computed_tokens - item.is_decode
            return super()._forward(ScheduledSequence(item.seq, item.num_tokens, late))

    def build(model: Any, config: EngineConfig) -> Any:
        engine = phase_by_number(2).build_engine()(model, config)
        engine.runner = FeedsThePreviousToken(model, engine.runner.sampler)
        return engine

    found = explain(build, tiny_llama, PA, MAX_TOKENS)
    assert found is not None
    assert found.drift is not None
    assert (found.drift.checkpoint, found.drift.position, found.drift.values) == ("token_ids", 8, (3, 8))
    assert "at position 8 the engine has token 3, the reference 8" in text_of(found)


def test_a_forward_pass_without_hooks_is_tried_through_the_models_modules() -> None:
    hidden = tiny_llama()

    class HandWritten(SequenceRunner):
        """Runs a model that nobody taps, and gets the head's order wrong."""

        def _forward(self, item: ScheduledSequence) -> torch.Tensor:
            return forward_sequence(hidden, item.token_ids, self.caches.setdefault(item.seq, new_cache())).roll(1)

    def build(model: Any, config: EngineConfig) -> Any:
        engine = phase_by_number(2).build_engine()(model, config)
        if config.forward != "hf":
            engine.runner = HandWritten(model, engine.runner.sampler)
        return engine

    found = explain(build, tiny_llama, PA, MAX_TOKENS)
    assert found is not None
    assert found.cause == "forward"
    assert 'With forward="hf" the same request is right' in text_of(found)
    assert "the hand-written forward pass" in text_of(found)


# -- the choice --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: f"phase{phase.number:02d}")
def test_a_hidden_penalty_is_told_from_the_forward_pass(phase: Phase) -> None:
    found = explain_planted("penalty", phase.number)
    assert (found.cause, found.drift) == ("sampling", None)
    assert "The sampler took" in text_of(found)
    assert "as under a repetition penalty" in text_of(found)
    assert "shared/sampler.py" in found.hypothesis.files


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_near_tie_that_rounding_turned_around_is_no_fault(dtype: torch.dtype) -> None:
    found = explain_planted("rounding", dtype=dtype)
    assert found.cause == "near tie"
    assert not found.is_fault
    assert found.choice is not None
    assert found.choice.gap <= found.choice.noise
    assert "rounding, and no fault" in text_of(found)


def test_a_fault_at_a_near_tie_is_still_a_fault() -> None:
    ties = FAULTS["rounding"]
    spoiled = spoil("model.layers.0.self_attn.o_proj", lambda out: out * 1.001)
    found = explain(ties.plant(spoiled), ties.prepare(tiny_llama), PA, MAX_TOKENS)
    assert found is not None
    assert found.choice is not None
    assert found.drift is not None
    assert found.choice.is_near_tie
    assert (found.cause, found.drift.checkpoint) == ("forward", "layers.0.self_attn.o_proj")
    assert "rounding does not explain what follows" in text_of(found)


def test_a_token_far_down_is_never_a_near_tie_however_close_the_first_two_are() -> None:
    logits = torch.tensor([5.0, 5.0, 1.0])
    assert choice_between(logits, 0, 1, torch.float32).is_near_tie
    assert not choice_between(logits, 0, 2, torch.float32).is_near_tie
    assert not choice_between(logits, 0, 2, torch.bfloat16).is_near_tie


def test_half_precision_is_judged_by_what_float32_shows() -> None:
    found = explain_planted("dropped-bias", family="qwen2", dtype=torch.bfloat16)
    assert found.drift is not None
    assert (found.dtype, found.drift.checkpoint, found.drift.signature) == (
        "bfloat16",
        "layers.1.self_attn.q_proj",
        "bias",
    )
    assert "In float32 it differs, too" in text_of(found)


@pytest.mark.parametrize(
    ("got", "points_to"),
    [(T0_OUTPUTS["PA"][:7], "an end too early"), ([*T0_OUTPUTS["PA"], 5], "an end that the engine does not see")],
)
def test_an_output_of_another_length_is_told_from_other_tokens(got: list[int], points_to: str) -> None:
    found = explain(phase_by_number(2).build_engine(), tiny_llama, PA, 24, got)
    assert found is not None
    assert (found.cause, found.step) == ("length", min(len(got), 24))
    assert points_to in text_of(found)
    assert "had ended, after" in text_of(found)


def test_eos_ids_end_the_output_for_both_where_they_count() -> None:
    def make_model() -> Any:
        model = tiny_llama()
        model.generation_config.eos_token_id = [T0_OUTPUTS["PA"][4]]
        return model

    build_engine = phase_by_number(2).build_engine()
    assert explain(build_engine, make_model, PA, 24, ignore_eos=False) is None
    assert explain(build_engine, make_model, PA, 24, T0_OUTPUTS["PA"][:5], ignore_eos=False) is None


# -- neighbours --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "phase", [phase for phase in with_hf_cache if phase.number > 1], ids=lambda phase: phase.package
)
def test_a_neighbours_cache_is_found_though_alone_all_is_well(phase: Phase) -> None:
    found = explain_planted("neighbour", phase.number, prompts=[PA, PB])
    assert found.cause == "neighbours"
    assert found.drift is not None
    assert (found.drift.checkpoint, found.drift.position) == ("layers.0.self_attn.attention", 8)
    assert "alone, the engine agrees" in text_of(found)
    assert "K/V of another sequence" in text_of(found)


def test_a_longer_neighbours_cache_shows_in_the_positions() -> None:
    found = explain_planted("neighbour", prompts=[PA, Q[:20]])
    assert found.drift is not None
    assert (found.drift.checkpoint, found.drift.values) == ("position_ids", (20, 8))
    assert "K/V of another sequence" in text_of(found)


def test_the_neighbour_that_is_enough_is_named() -> None:
    found = explain_planted("neighbour", prompts=[PA, PB, PC])
    assert "One neighbour is enough for that: request 1." in text_of(found)


def test_tokens_handed_to_the_wrong_request_are_told_from_wrong_tokens() -> None:
    found = explain_planted("mixed-rows", prompts=[PA, PB])
    assert (found.cause, found.drift) == ("neighbours", None)
    assert "what happens to a token after it is chosen" in text_of(found)


def test_logits_in_another_requests_row_are_found_there() -> None:
    class Flipping(SequenceRunner):
        """Gives each row of a step the logits of the row on the other side."""

        @torch.inference_mode()
        def execute(self, plan: StepPlan) -> Any:
            self.flipped = [SequenceRunner._forward(self, item) for item in plan.items]
            return super().execute(plan)

        def _forward(self, item: ScheduledSequence) -> torch.Tensor:  # noqa: ARG002
            return self.flipped.pop()

    def build(model: Any, config: EngineConfig) -> Any:
        engine = phase_by_number(2).build_engine()(model, config)
        engine.runner = Flipping(model, engine.runner.sampler)
        return engine

    found = explain(build, tiny_llama, PA, MAX_TOKENS, served_with=[PA, PB])
    assert found is not None
    assert found.cause == "neighbours"
    assert found.drift is not None
    assert found.drift.checkpoint == "logits"
    assert "its own logits are there, in another request's row" in text_of(found)


# -- in the suite ------------------------------------------------------------------------------------------


def test_equal_tokens_pass_without_building_anything() -> None:
    assert_same_tokens(None, None, [PA], [[1, 2]], [[1, 2]])  # type: ignore[arg-type]


def test_a_failed_comparison_raises_the_report_and_the_command_that_shows_it_again() -> None:
    build_engine = FAULTS["position-off-by-one"].plant(phase_by_number(2).build_engine())
    with open_engine(phase_by_number(2)) as healthy:
        expected = token_lists(healthy.generate([greedy(p, MAX_TOKENS) for p in (PB, PA)]))
    engine = build_engine(tiny_llama(), EngineConfig())
    got = token_lists(engine.generate([greedy(p, MAX_TOKENS) for p in (PB, PA)]))
    engine.close()
    with pytest.raises(AssertionError) as caught:
        assert_same_tokens(build_engine, tiny_llama, [PB, PA], [expected[0], got[1]], expected)
    message = str(caught.value)
    assert message.startswith("1 of 2 requests differ: 1. Request 1:\nThe engine leaves generate() at output[")
    assert "position of decoded tokens: off by +1" in message
    assert (
        f"python -m shared.explain --phase 2 --tiny llama --max-tokens 16 --prompt-ids {','.join(map(str, PA))}"
        in message
    )


def test_a_comparison_that_cannot_be_explained_still_fails_with_both_lists() -> None:
    def build(model: Any, config: EngineConfig) -> Any:  # noqa: ARG001
        raise SetupError("no engine today")

    with pytest.raises(AssertionError, match=r"\[1\] != \[2\]\n\(not explained: SetupError\('no engine today'\)\)"):
        assert_same_tokens(build, tiny_llama, [PA], [[1]], [[2]])
    with pytest.raises(AssertionError, match="1 outputs, but 2 were expected"):
        assert_same_tokens(build, tiny_llama, [PA, PB], [[1]], [[1], [2]])


# -- the parts ---------------------------------------------------------------------------------------------


def test_rows_of_a_step_go_to_the_sequence_and_position_that_they_are_of() -> None:
    trace = Trace()
    spans = [Span("other", 4, 1, True), Span("mine", 2, 3, False), Span("third", 9, 1, True)]
    trace.add({"body": torch.arange(5)[:, None], "head": torch.tensor([[7], [9]])}, spans, "mine")
    assert {position: int(row) for position, row in trace.rows["body"].items()} == {2: 1, 3: 2, 4: 3}
    assert "head" not in trace.rows  # two rows: of the two sampled sequences, and this one is not
    trace.add({"head": torch.tensor([[5], [6]])}, [Span("other", 5, 1, True), Span("mine", 5, 1, True)], "mine")
    assert int(trace.rows["head"][5]) == 6


def test_rows_that_cannot_be_told_apart_are_left_out() -> None:
    trace = Trace()
    trace.add({"body": torch.zeros(4, 1)}, [Span("mine", 0, 3, True), Span("other", 0, 3, True)], "mine")
    assert trace.rows == {}


def test_hooks_are_gone_when_the_explaining_is_over() -> None:
    model = tiny_llama()
    trace_reference(model, PA, [1])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


# -- the command -------------------------------------------------------------------------------------------


def run_command(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    try:
        code = explain_command.main(args)
    except SystemExit as stopped:  # by argparse
        code = int(stopped.code or 0)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_command_says_identical_with_the_closest_choice(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_command(capsys, "--phase", "2", "--tiny", "llama", "--max-tokens", "8")
    assert code == 0
    assert out.startswith("identical over 8 tokens; smallest top-2 margin 0.")


def test_the_command_reports_a_planted_fault_and_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--phase", "2", "--tiny", "qwen2", "--plant", "dropped-bias", "--max-tokens", "8"]
    code, out, _ = run_command(capsys, *args)
    assert code == 1
    assert out.startswith("Planted in phase 2: dropped-bias, a projection without its bias.\n")
    assert "layers.1.self_attn.q_proj" in out


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_the_command_shows_every_planted_fault(capsys: pytest.CaptureFixture[str], fault: str) -> None:
    family = (FAULTS[fault].families or ("llama",))[0]
    code, out, _ = run_command(capsys, "--phase", "2", "--tiny", family, "--plant", fault, "--max-tokens", "8")
    assert code == 1
    assert "This points to" in out


def test_the_command_takes_tokens_from_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    prompt = ["--phase", "2", "--tiny", "llama", "--prompt-ids", ",".join(map(str, PA))]
    assert run_command(capsys, *prompt, "--got", "8,62,18")[0] == 0
    code, out, _ = run_command(capsys, *prompt, "--got", "8,62,19")
    assert code == 1
    assert "output[2], position 10" in out


def test_the_command_serves_in_company_and_with_settings(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--phase", "4", "--tiny", "mistral", "--beside-ids", "1,2,3", "--set", "prefill_chunk_size=3"]
    assert run_command(capsys, *args, "--max-tokens", "6")[0] == 0


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--phase", "99"], "there is no engine for phase 99"),
        (["--phase", "2", "--tiny", "gpt2"], "invalid choice: 'gpt2'"),
        (["--phase", "2", "--tiny", "llama", "hello"], "give the prompt as --prompt-ids"),
        (["--phase", "2", "--tiny", "llama", "--beside", "hello"], "--beside-ids"),
        (["--phase", "2", "--tiny", "llama", "--prompt-ids", "5,x"], "token ids, like 5,17,33"),
        (["--phase", "2", "--tiny", "llama", "--prompt-ids", "5,97"], "token id 97 is outside the vocabulary"),
        (["--phase", "2", "--tiny", "llama", "--got", "-1"], "outside the vocabulary"),
        (["--phase", "2", "--tiny", "llama", "--max-tokens", "0"], "a whole number of at least 1"),
        (["--phase", "2", "--tiny", "llama", "--set", "colour=red"], "must be NAME=VALUE"),
        (["--phase", "2", "--tiny", "llama", "--set", "max_batch_size=0"], "max_batch_size"),
        (["--phase", "2", "--tiny", "llama", "--plant", "dropped-bias"], "try --tiny qwen2"),
        (["--phase", "1", "--tiny", "llama", "--plant", "neighbour"], "one cache per sequence"),
        (["--phase", "2", "--model", "/nowhere/at/all"], "/nowhere/at/all"),
    ],
)
def test_the_command_exits_with_2_and_one_line_for_what_can_be_mended(
    capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    code, out, err = run_command(capsys, *args)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_the_help_teaches_with_an_example_and_lists_the_faults(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_command(capsys, "--help")
    assert code == 0
    assert "python -m shared.explain --phase 2 --tiny llama --plant position-off-by-one" in out
    assert all(name in out for name in FAULTS)
