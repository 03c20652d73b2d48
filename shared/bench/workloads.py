"""The workloads: which requests, and what each of them stresses. Torch-free.

Most prompts are random token ids with forced output lengths (greedy, EOS ignored), so that every system computes the
same tokens, and as many of them. Where guessing ahead is measured, prompts are texts and outputs end at EOS: text that
is forced past its end repeats itself, and repetition flatters guesses. Requests are drawn one after another: a smaller
scale, or a smaller number of requests, is a prefix of the larger one.
"""

import hashlib
import json
import random
from collections.abc import Callable, Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from shared.bench.texts import copy_tasks, questions
from shared.errors import SetupError
from shared.request import Request, SamplingParams

Range = tuple[int, int]  # tokens, both ends included
LONG_ONE_IN = 5
LONG_PROMPT_ONE_IN = 8

Texts = Callable[[random.Random, int], list[str]]
Encode = Callable[[list[str]], list[list[int]]]  # texts, as a user's turn where the model has a chat template


@dataclass(frozen=True, slots=True)
class Shape:
    """What a workload is made of; lengths in tokens.

    prompt: of a request's own tokens, which come after `num_shared` tokens that all have in common.
    long_output: of one request in every five, at a random place among them; `output` is the others'.
    long_prompt: of every eighth request.
    texts: makes the prompts instead, and outputs end at EOS; `output` is then the most they may have.
    """

    key: str
    name: str
    stresses: str
    num_requests: int
    prompt: Range
    output: Range
    long_output: Range | None = None
    long_prompt: Range | None = None
    num_shared: int = 0
    texts: Texts | None = None

    @property
    def title(self) -> str:
        return self.key if self.key == self.name else f"{self.key} {self.name}"


def _texts(key: str, stresses: str, texts: Texts, num_requests: int, most_output: int) -> Shape:
    return Shape(key, key, stresses, num_requests, (0, 0), (most_output, most_output), texts=texts)


BATCHING = "batching: every weight read serves many sequences, or one"
PREFIX = "prefill, and who notices that {} of its tokens are the same each time"
COPYING = "speculation where it is easy: repeat a passage"
ASKING = "speculation where it is hard: real questions, new text"
LONG_PROMPTS = "prefill beside decodes: one prompt in eight is long"
SHAPES: dict[str, Shape] = {
    shape.key: shape
    for shape in (
        Shape("A", "random", BATCHING, 32, (64, 128), (32, 128)),
        Shape("B", "shared_prefix", PREFIX.format(512), 32, (16, 32), (32, 64), num_shared=512),
        Shape("C", "single", "latency of one request: all weights are read for every token", 1, (64, 64), (128, 128)),
        Shape(
            "D",
            "heavy_tail",
            "scheduling: a few long outputs among short ones; a fixed batch waits for its longest",
            64,
            (16, 64),
            (8, 32),
            long_output=(192, 256),
        ),
        _texts("repetitive", COPYING, copy_tasks, 32, 160),
        _texts("chat", ASKING, questions, 32, 128),
        Shape(
            "long_prompt_interference",
            "long_prompt_interference",
            LONG_PROMPTS,
            16,
            (16, 32),
            (64, 96),
            long_prompt=(896, 896),
        ),
        Shape("gpu_random", "gpu_random", BATCHING, 128, (256, 512), (128, 256)),
        Shape(
            "gpu_shared_prefix", "gpu_shared_prefix", PREFIX.format("1,024"), 128, (16, 48), (128, 256), num_shared=1024
        ),
        _texts("gpu_repetitive", COPYING, copy_tasks, 128, 256),
        _texts("gpu_chat", ASKING, questions, 128, 256),
    )
}
FOR_ALL = ("A", "B", "C", "D")  # what a table of all systems shows


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order in which they are sent; the same for the same seed, scale and model vocabulary."""

    shape: Shape
    seed: int
    scale: float
    requests: tuple[Request, ...]

    @property
    def label(self) -> str:
        return f"{self.shape.title}, {num_of(len(self.requests), self.shape.num_requests)}"

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
    key: str,
    *,
    vocab_size: int,
    special_ids: Collection[int] = (),
    seed: int = 0,
    scale: float = 1.0,
    encode: Encode | None = None,
) -> Workload:
    """Draw a workload; token ids are below `vocab_size`, and none is special.

    scale: the share of the requests to make, in (0, 1]; at least one is made. encode: for workloads of texts.
    Raises SetupError for an unknown key, a scale out of range, or texts without a tokenizer.
    """
    check_key(key)
    shape = SHAPES[key]
    rng = random.Random(seed)
    num_requests = num_scaled(shape.num_requests, scale)
    if shape.texts is not None:
        if encode is None:
            raise SetupError(f"workload {key} is text, and needs a model with a tokenizer")
        prompts = encode(shape.texts(rng, shape.num_requests)[:num_requests])
        params = SamplingParams(max_tokens=shape.output[1])
        return Workload(shape, seed, scale, tuple(Request(prompt, params) for prompt in prompts))
    ids = plain_ids(vocab_size, special_ids)
    shared = rng.choices(ids, k=shape.num_shared)
    ranges = zip(_prompt_ranges(shape), _output_ranges(shape, rng))
    requests = [
        forced_request([*shared, *rng.choices(ids, k=rng.randint(*prompt))], rng.randint(*output))
        for prompt, output in list(ranges)[:num_requests]
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


def _prompt_ranges(shape: Shape) -> Seq[Range]:
    """The range of each request's own prompt."""
    if shape.long_prompt is None:
        return [shape.prompt] * shape.num_requests
    every_eighth = [*[shape.prompt] * (LONG_PROMPT_ONE_IN - 1), shape.long_prompt]
    return (every_eighth * shape.num_requests)[: shape.num_requests]


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
