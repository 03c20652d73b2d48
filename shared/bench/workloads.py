"""The four workloads: which requests, and what each of them stresses. Torch-free.

Prompts are random token ids and output lengths are forced (greedy, EOS ignored), so that every system
computes the same tokens, and as many of them. Requests are drawn one after another: a smaller scale, or
a smaller number of requests, is a prefix of the larger one.
"""

import hashlib
import json
import random
from collections.abc import Collection
from dataclasses import dataclass, replace

from shared.errors import SetupError
from shared.request import Request, SamplingParams

Range = tuple[int, int]  # tokens, both ends included
LONG_ONE_IN = 5


@dataclass(frozen=True, slots=True)
class Shape:
    """What a workload is made of; lengths in tokens.

    prompt: of a request's own tokens, which come after `num_shared` tokens that all have in common.
    long_output: of one request in every five, at a random place among them; `output` is the others'.
    """

    key: str
    name: str
    stresses: str
    num_requests: int
    prompt: Range
    output: Range
    long_output: Range | None = None
    num_shared: int = 0


SHAPES: dict[str, Shape] = {
    shape.key: shape
    for shape in (
        Shape("A", "random", "batching: every weight read serves many sequences, or one", 32, (64, 128), (32, 128)),
        Shape(
            "B",
            "shared_prefix",
            "prefill, and who notices that 512 of its tokens are the same each time",
            32,
            (16, 32),
            (32, 64),
            num_shared=512,
        ),
        Shape(
            "C",
            "single",
            "latency of one request: the model's weights are read for every token",
            1,
            (64, 64),
            (128, 128),
        ),
        Shape(
            "D",
            "heavy_tail",
            "scheduling: a few long outputs among short ones; a fixed batch waits for its longest",
            64,
            (16, 64),
            (8, 32),
            long_output=(192, 256),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order in which they are sent; the same for the same seed, scale and model vocabulary."""

    shape: Shape
    seed: int
    scale: float
    requests: tuple[Request, ...]

    @property
    def label(self) -> str:
        return f"{self.shape.key} {self.shape.name}, {num_of(len(self.requests), self.shape.num_requests)}"

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, prompt and output."""
        return max(len(request.prompt_token_ids) + request.params.max_tokens for request in self.requests)

    @property
    def sha256(self) -> str:
        """Over all prompts and output lengths, in hex."""
        content = [[list(request.prompt_token_ids), request.params.max_tokens] for request in self.requests]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def warm_up(self, num_requests: int = 4, max_tokens: int = 8) -> tuple[Request, ...]:
        """A few of the requests, cut short: enough to have every code path and buffer in use once."""
        return tuple(
            replace(request, params=replace(request.params, max_tokens=min(max_tokens, request.params.max_tokens)))
            for request in self.requests[:num_requests]
        )


def make_workload(
    key: str, *, vocab_size: int, special_ids: Collection[int] = (), seed: int = 0, scale: float = 1.0
) -> Workload:
    """Draw a workload; token ids are below `vocab_size`, and none is special.

    scale: the share of the requests to make, in (0, 1]; at least one is made.
    Raises SetupError for an unknown key or a scale out of range.
    """
    check_key(key)
    shape = SHAPES[key]
    rng = random.Random(seed)
    ids = plain_ids(vocab_size, special_ids)
    shared = rng.choices(ids, k=shape.num_shared)
    output_ranges = _output_ranges(shape, rng)[: num_scaled(shape.num_requests, scale)]
    requests = [
        forced_request([*shared, *rng.choices(ids, k=rng.randint(*shape.prompt))], rng.randint(*output_range))
        for output_range in output_ranges
    ]
    return Workload(shape, seed, scale, tuple(requests))


def plain_ids(vocab_size: int, special_ids: Collection[int]) -> list[int]:
    """The token ids that prompts are drawn from."""
    return sorted(set(range(vocab_size)) - set(special_ids))


def forced_request(prompt: list[int], num_output_tokens: int) -> Request:
    """Greedy, and exactly so long."""
    return Request(prompt, SamplingParams(max_tokens=num_output_tokens, ignore_eos=True))


def check_key(key: str) -> None:
    """Raises SetupError, listing the workloads, for one that there is not."""
    if key not in SHAPES:
        raise SetupError(f"there is no workload {key!r}; workloads: {', '.join(SHAPES)}")


def num_scaled(num_requests: int, scale: float) -> int:
    """How many of the requests a scale leaves. Raises SetupError outside (0, 1]."""
    if not 0 < scale <= 1:
        raise SetupError(f"a scale must be more than 0 and at most 1, got {scale:g}")
    return max(1, round(num_requests * scale))


def num_of(num_requests: int, num_all: int) -> str:
    """How a label says that it is fewer."""
    if num_requests == num_all:
        return f"{num_all} request{'s' if num_all > 1 else ''}"
    return f"{num_requests} of {num_all} requests"


def _output_ranges(shape: Shape, rng: random.Random) -> list[Range]:
    """The range of each request's output length."""
    if shape.long_output is None:
        return [shape.output] * shape.num_requests
    ranges: list[Range] = []
    while len(ranges) < shape.num_requests:
        five = [shape.long_output, *[shape.output] * (LONG_ONE_IN - 1)]
        rng.shuffle(five)
        ranges += five
    return ranges
