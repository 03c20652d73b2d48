"""Narrowing a difference down: the reference over the tokens that agree, the request alone, then in company.

    alone it differs   -> compare layers -> a drift: the forward pass | none: the choice, or a near tie
    alone it agrees    -> serve it in company again, compare layers, look for the neighbour

Models in bf16 and fp16 are compared in float32 first, where rounding hides nothing.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch

from shared.explain.choice import Choice, choice_between
from shared.explain.drift import Drift, drift_tolerance, first_drift, relative_errors
from shared.explain.hints import (
    HAND_WRITTEN,
    NEAR_TIE,
    NOT_REPRODUCED,
    UNDER_TOLERANCE,
    Hypothesis,
    delivery_hypothesis,
    forward_hypothesis,
    length_hypothesis,
    neighbour_hypothesis,
    sampling_hypothesis,
)
from shared.explain.replay import Case, Replay, first_difference
from shared.explain.report import Cause, Divergence
from shared.explain.trace import Trace, trace_reference
from shared.input_processor import eos_token_ids
from shared.reference import greedy_reference

MAX_PAIRS = 8  # neighbours that are tried one by one


def search(case: Case, max_tokens: int, got: list[int] | None = None) -> Divergence | None:
    """None if the engine's tokens, `got` or served now, are `generate()`'s."""
    model = case.make_model().eval()
    expected = greedy_reference(model, case.prompt, max_tokens, case.eos_token_ids(model))
    tokens = case.serve(max_tokens).token_ids if got is None else got
    step = first_difference(expected, tokens)
    return None if step is None else _Search(case, model, expected, tokens, step, max_tokens).run()


@dataclass(slots=True)
class _Search:
    """One difference, and the runs that narrow it down; `findings` says what they showed, in order."""

    case: Case
    model: Any  # the reference's, never an engine's
    expected: list[int]
    got: list[int]
    step: int
    max_tokens: int
    findings: list[str] = field(default_factory=list)
    reference: Trace = field(default_factory=Trace)
    choice: Choice | None = None

    def run(self) -> Divergence:
        if self.step >= min(len(self.expected), len(self.got)):
            return self._explain_length()
        self.reference = trace_reference(self.model, self.case.prompt, self.expected[: self.step])
        self.choice = self._choice(self.step, self.got[self.step])
        if torch.finfo(self.model.dtype).bits == 16 and (found := self._look_in_float32()):
            return found
        alone = self.case.alone().serve(self.step + 1)
        step = first_difference(self.expected[: self.step + 1], alone.token_ids)
        return self._explain_company(alone) if step is None else self._explain_alone(alone, step)

    # -- one output ends, the other goes on ---------------------------------------------------------------

    def _explain_length(self) -> Divergence:
        alone = self.case.alone().serve(self.max_tokens)
        if alone.token_ids == self.expected:
            self.findings.append("Run again, alone, the engine ends where generate() does.")
        else:
            self.findings.append(f"Run again, alone, the engine gives {len(alone.token_ids)} tokens.")
        is_longer = len(self.got) > len(self.expected)
        return self._result("length", length_hypothesis(is_longer, alone.finish_reason, alone.files))

    # -- alone it differs, too ----------------------------------------------------------------------------

    def _explain_alone(self, alone: Replay, step: int) -> Divergence:
        already = "the engine does the same" if step == self.step else f"it differs from output[{step}] on already"
        self.findings.append(f"Run again, alone, {already}.")
        if step >= len(alone.token_ids):
            return self._result("length", length_hypothesis(False, alone.finish_reason, alone.files))
        if not alone.trace.has_layers:
            return self._explain_hand_written(alone, step)
        drift = self._drift(alone.trace, step)
        if drift is None:
            return self._explain_choice(alone, step)
        if self._is_near_tie(step, alone.token_ids[step]):
            self.findings.append("It is a near tie, but rounding does not explain what follows.")
        return self._result("forward", forward_hypothesis(drift, alone.files, self._landmark(drift, alone)), drift)

    def _explain_hand_written(self, alone: Replay, step: int) -> Divergence:
        """A forward pass without the model's modules has no layers to hook; transformers' own has."""
        self.findings.append("Its forward pass does not run through the model's modules: only logits can be compared.")
        drift = self._drift(alone.trace, step)
        if drift is None:
            return self._explain_choice(alone, step)
        through_hf = self.case.alone().with_hf_forward().serve(self.step + 1)
        if first_difference(self.expected[: self.step + 1], through_hf.token_ids) is None:
            self.findings.append('With forward="hf" the same request is right.')
            return self._result("forward", replace(HAND_WRITTEN, files=alone.files_of("forward", "runner")), drift)
        self.findings.append('With forward="hf" it differs, too; what follows is from there.')
        drift = self._drift(through_hf.trace, step) or drift
        return self._result("forward", forward_hypothesis(drift, through_hf.files), drift)

    def _explain_choice(self, replay: Replay, step: int) -> Divergence:
        """Every layer agrees with the reference, and still another token came out."""
        position = self._position(step)
        logits = replay.trace.rows.get("logits", {}).get(position)  # [V]
        chosen = replay.trace.chosen.get(position)
        if chosen == self.expected[step]:
            self.findings.append(f"Every layer agrees with the reference, and the sampler, too, took {chosen}.")
            return self._result("sampling", delivery_hypothesis(replay.files))
        if logits is not None and chosen is not None and logits[chosen] < logits.max() == logits[self.expected[step]]:
            self.findings.append(
                f"Every layer agrees with the reference, and so do the engine's logits: they, too, put "
                f"{self.expected[step]} first. The sampler took {chosen}."
            )
            return self._result("sampling", sampling_hypothesis(self._clues(logits, step, chosen), replay.files))
        if self._is_near_tie(step, replay.token_ids[step]):
            self.findings.append("Every layer agrees with the reference but for rounding.")
            return self._result("near tie", NEAR_TIE)
        self.findings.append("Every layer agrees with the reference within its tolerance, yet the token is another.")
        drift = self._drift(replay.trace, step, strictness=16)
        return self._result("unexplained", replace(UNDER_TOLERANCE, files=replay.files_of("runner")), drift)

    def _clues(self, logits: torch.Tensor, step: int, taken: int) -> str:
        """What a token that is not the best of `logits` [V] has in common with known changes to logits."""
        wanted = self.expected[step]
        seen = {*self.case.prompt, *self.expected[:step]}
        unseen = torch.tensor([token for token in range(len(logits)) if token not in seen])
        if wanted in eos_token_ids(self.model):
            return f"{wanted} is an EOS id, which min_tokens bans. "
        if wanted in seen and taken == int(unseen[logits[unseen].argmax()]):
            return (
                f"{wanted} has occurred before, and {taken} is the best that has not: as under a repetition penalty. "
            )
        return ""

    # -- alone it agrees ----------------------------------------------------------------------------------

    def _explain_company(self, alone: Replay) -> Divergence:
        self.findings.append("Run again, alone, the engine agrees with generate().")
        if not self.case.neighbours:
            return self._explain_lost()
        together = self.case.serve(self.max_tokens)
        step = first_difference(self.expected, together.token_ids)
        if step is None:
            self.findings.append(f"Together with {self._company} it agrees, too.")
            return self._explain_lost()
        where = "again" if step == self.step else f"from output[{step}] on"
        self.findings.append(f"Together with {self._company} it differs {where}.")
        if step >= min(len(self.expected), len(together.token_ids)):
            return self._result("length", length_hypothesis(False, alone.finish_reason, together.files))
        if not together.trace.has_layers:
            together = self._with_layers(together, step)
        if step > self.step:
            self.reference = trace_reference(self.model, self.case.prompt, self.expected[:step])
        drift = self._drift(together.trace, step)
        if drift is None and self._is_near_tie(step, together.token_ids[step]):
            self.findings.append("In company, too, every layer agrees with the reference but for rounding.")
            return self._result("near tie", NEAR_TIE)
        self._note_culprit()
        return self._result("neighbours", self._company_hypothesis(together, drift, step), drift)

    def _company_hypothesis(self, together: Replay, drift: Drift | None, step: int) -> Hypothesis:
        if drift is None and together.trace.chosen.get(self._position(step)) == self.expected[step]:
            self.findings.append(f"There, too, every layer agrees, and the sampler took {self.expected[step]} for it.")
            return delivery_hypothesis(together.files)
        is_exchanged = self._is_row_of_another(together.trace, step)
        return neighbour_hypothesis(drift, is_exchanged, together.files)

    def _with_layers(self, together: Replay, step: int) -> Replay:
        """The same company through transformers' modules, if it fares alike there."""
        through_hf = self.case.with_hf_forward().serve(self.max_tokens)
        differs_alike = first_difference(self.expected, through_hf.token_ids) == step
        outcome = "the same happens; what follows is from there" if differs_alike else "that does not happen"
        self.findings.append(f'With forward="hf" {outcome}.')
        return through_hf if differs_alike else together

    def _explain_lost(self) -> Divergence:
        """Neither alone nor in the company that is known does it differ again."""
        if self._is_near_tie(self.step, self.got[self.step]):
            return self._result("near tie", NEAR_TIE)
        return self._result("unexplained", NOT_REPRODUCED)

    def _note_culprit(self) -> None:
        if len(self.case.neighbours) < 2:
            return
        for neighbour in self.case.neighbours[:MAX_PAIRS]:
            tokens = self.case.beside(neighbour).serve(self.step + 1).token_ids
            if first_difference(self.expected[: self.step + 1], tokens) is not None:
                self.findings.append(f"One neighbour is enough for that: request {neighbour}.")
                return
        tried = min(MAX_PAIRS, len(self.case.neighbours))
        self.findings.append(f"None of the {tried} neighbours tried is enough alone.")

    def _is_row_of_another(self, trace: Trace, step: int) -> bool:
        """Is the row of logits that the reference has there in the batch, as another sequence's?"""
        position = self._position(step)
        wanted = self.reference.rows["logits"].get(position)
        others = trace.other_logits.get(position, [])
        if wanted is None:
            return False
        return any(
            float(relative_errors(wanted[None], row[None])) < drift_tolerance(self.model.dtype) for row in others
        )

    # -- tools --------------------------------------------------------------------------------------------

    def _look_in_float32(self) -> Divergence | None:
        """The same question to a float32 copy. None if nothing is wrong there."""
        exact = search(self.case.in_float32(), self.max_tokens)
        if exact is None or not exact.is_fault:
            same = f"identical over {self.max_tokens} tokens" if exact is None else "equal up to a near tie"
            self.findings.append(f"In float32 engine and generate() are {same}.")
            return None
        where = f"from output[{exact.step}] on"
        self.findings.append(
            f"In float32 it differs, too, {where}: rounding is not the reason. What follows is from there."
        )
        self.findings += exact.findings
        return self._result(exact.cause, exact.hypothesis, exact.drift)

    def _drift(self, trace: Trace, step: int, strictness: int = 1) -> Drift | None:
        """Compares up to the last input before output `step`: what both were fed up to there is the same."""
        return first_drift(
            self.reference,
            trace,
            num_positions=self._position(step) + 1,
            num_prompt_tokens=len(self.case.prompt),
            tolerance=drift_tolerance(self.model.dtype) / strictness,
            window=self._window,
        )

    def _choice(self, step: int, got: int) -> Choice:
        logits = self.reference.rows["logits"][self._position(step)]  # [V]
        return choice_between(logits, self.expected[step], got, self.model.dtype)

    def _is_near_tie(self, step: int, got: int) -> bool:
        return self._choice(step, got).is_near_tie

    @property
    def _company(self) -> str:
        number = len(self.case.neighbours)
        return "the same neighbour" if number == 1 else f"the same {number} neighbours"

    def _landmark(self, drift: Drift, replay: Replay) -> str:
        """What else begins where attention starts to differ; a coincidence or not, it is worth knowing."""
        if drift.kind != "attention" or drift.position == 0:
            return ""
        if drift.position == self._window and drift.pattern != "window":
            return f" Position {drift.position} is also where the sliding window begins to count."
        if replay.block_size and drift.position % replay.block_size == 0:
            return f" Position {drift.position} is also where a block of {replay.block_size} begins."
        return ""

    @property
    def _window(self) -> int | None:
        return getattr(self.model.config.get_text_config(), "sliding_window", None)

    def _position(self, step: int) -> int:
        """Of the input whose logits decide output `step`."""
        return len(self.case.prompt) + step - 1

    def _result(self, cause: Cause, hypothesis: Hypothesis, drift: Drift | None = None) -> Divergence:
        return Divergence(
            cause=cause,
            prompt_token_ids=self.case.prompt,
            expected=tuple(self.expected),
            got=tuple(self.got),
            step=self.step,
            dtype=str(self.model.dtype).removeprefix("torch."),
            choice=self.choice,
            drift=drift,
            findings=tuple(self.findings),
            hypothesis=hypothesis,
        )
