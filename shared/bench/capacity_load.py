"""What the capacity study asks for: prompts and budgets that everyone sees, output lengths that nobody knows before.

prompt | output ......... EOS | what the budget would still allow |
       |<-------------- max_tokens ------------------------------>|
"""

import hashlib
import json
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import astuple, dataclass

from shared.bench.workloads import Range
from shared.request import Request, SamplingParams
from shared.sequence import Sequence

TOKEN_ID = 7
END_ID = 2
PROMPT: Range = (20, 40)  # tokens
OVERLOAD = 20  # the K/V of all jobs, at their full length, over what the pool holds


@dataclass(frozen=True, slots=True)
class Job:
    """One request, in tokens. num_output_tokens: how long it becomes, at most `max_tokens`; no scheduler sees it."""

    name: str
    num_prompt_tokens: int
    max_tokens: int
    num_output_tokens: int

    @property
    def slab_slots(self) -> int:
        """What a contiguous cache reserves for it."""
        return self.num_prompt_tokens + self.max_tokens

    @property
    def full_slots(self) -> int:
        """What it holds in the end; its very last token is never run."""
        return self.num_prompt_tokens + self.num_output_tokens - 1

    def sequence(self) -> Sequence:
        prompt = [TOKEN_ID] * self.num_prompt_tokens
        return Sequence(
            request_id=self.name,
            index=0,
            request=Request(prompt, SamplingParams(max_tokens=self.max_tokens)),
            token_ids=prompt,
            seed=0,
            eos_token_ids=frozenset({END_ID}),
            max_num_tokens=self.slab_slots,
        )


@dataclass(frozen=True, slots=True)
class Load:
    """A kind of jobs. max_tokens: everyone's budget. draw_output: the tokens that one of them really becomes."""

    key: str
    label: str
    max_tokens: int
    draw_output: Callable[[random.Random], int]

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence that it can ask for, prompt and budget."""
        return PROMPT[1] + self.max_tokens

    def draw(self, pool_slots: int, seed: int) -> list[Job]:
        """Jobs whose K/V is OVERLOAD times what the pool holds; the same for the same seed."""
        rng = random.Random(f"{self.key} {seed}")
        jobs: list[Job] = []
        num_slots = 0
        while num_slots < OVERLOAD * pool_slots:
            jobs.append(Job(f"job-{len(jobs)}", rng.randint(*PROMPT), self.max_tokens, self.draw_output(rng)))
            num_slots += jobs[-1].full_slots
        return jobs


def sha256(jobs: Iterable[Job]) -> str:
    """Over all lengths, in hex."""
    return hashlib.sha256(json.dumps([astuple(job) for job in jobs]).encode()).hexdigest()


def _uniform(rng: random.Random) -> int:
    """Mean 23."""
    return rng.randint(14, 32)


def _log_normal(rng: random.Random) -> int:
    """Half of them below 39, one in thirty cut at 256; mean 60."""
    return max(1, min(256, round(rng.lognormvariate(math.log(39), 1.0))))


def _two_kinds(rng: random.Random) -> int:
    """As in workload D of the offline benchmark: four in five short, one long; mean 61."""
    return rng.randint(192, 256) if rng.random() < 0.2 else rng.randint(8, 32)


LOADS: dict[str, Load] = {
    load.key: load
    for load in (
        Load("low_variance", "low variance", 32, _uniform),
        Load("heavy_tail", "heavy tail", 256, _log_normal),
        Load("two_kinds", "two kinds", 256, _two_kinds),
    )
}
