"""What the engine's steps were like. Called on the engine's thread, once a step."""

from shared.output import StepOutput
from shared.server.distribution import Distribution
from shared.step import StepPlan


class StepMeter:
    """Counts the steps that ran something."""

    def __init__(self, duration: Distribution) -> None:
        self.num_steps = 0
        self.num_rows = 0  # sequences, over all steps
        self.num_tokens = 0  # run, over all steps; drafts left out
        self._duration = duration

    def saw(self, plan: StepPlan, _outputs: list[StepOutput] | None, started: float, ended: float) -> None:
        if not plan.items:
            return
        self.num_steps += 1
        self.num_rows += len(plan.items)
        self.num_tokens += sum(item.num_tokens for item in plan.items)
        self._duration.add(ended - started)
