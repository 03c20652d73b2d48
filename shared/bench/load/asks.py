"""What the load tester asks for: seeded prompts that any server understands, or token ids where lengths must be exact.

The server's tokenizer is not known here, so a text's length is in words, about a token each.
"""

import hashlib
import json
import random
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from shared.bench.load.target import Ask
from shared.bench.texts import copy_tasks, plain_words, questions
from shared.bench.workloads import Range

FIRST_PLAIN_ID = 100  # below, tokenizers keep their special tokens
LONG_ONE_IN = 8
LONG_PROMPT = 1000
SHARED_WORDS = 512


@dataclass(frozen=True, slots=True)
class Lengths:
    """prompt: tokens, or words of a text. output: most tokens to answer with. vocab_size: ids are below it."""

    prompt: Range = (64, 128)
    output: Range = (32, 128)
    vocab_size: int = 32_000


def make_asks(kind: str, num: int, seed: int, lengths: Lengths, draw: int = 0) -> list[Ask]:
    """The same for the same arguments.

    draw: other prompts of the same lengths, for another run against a server that may remember the last one's.
    """
    rng = random.Random(seed)
    sizes = [(rng.randint(*lengths.prompt), rng.randint(*lengths.output)) for _ in range(num)]
    prompts = KINDS[kind].make(random.Random(f"{seed} {draw}"), [prompt for prompt, _ in sizes], lengths)
    return [Ask(prompt, output) for prompt, (_, output) in zip(prompts, sizes)]


def sha256(asks: list[Ask]) -> str:
    """Over all prompts and output lengths, in hex."""
    content = [[ask.prompt if isinstance(ask.prompt, str) else list(ask.prompt), ask.max_tokens] for ask in asks]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


Prompts = Seq[str | Seq[int]]


@dataclass(frozen=True, slots=True)
class Kind:
    """stresses: for `--help`. make: from the lengths of the prompts. is_text: a chat can take it."""

    stresses: str
    make: Callable[[random.Random, list[int], Lengths], Prompts]
    is_text: bool = True


def _words(rng: random.Random, sizes: list[int], _lengths: Lengths) -> list[str]:
    return [plain_words(rng, size) for size in sizes]


def _tokens(rng: random.Random, sizes: list[int], lengths: Lengths) -> list[list[int]]:
    ids = range(min(FIRST_PLAIN_ID, lengths.vocab_size // 2), lengths.vocab_size)
    return [rng.choices(ids, k=size) for size in sizes]


def _shared_prefix(rng: random.Random, sizes: list[int], _lengths: Lengths) -> list[str]:
    shared = plain_words(rng, SHARED_WORDS)
    return [f"{shared} {plain_words(rng, size)}" for size in sizes]


def _long_prompts(rng: random.Random, sizes: list[int], _lengths: Lengths) -> list[str]:
    is_long = [number % LONG_ONE_IN == LONG_ONE_IN - 1 for number in range(len(sizes))]
    return [plain_words(rng, LONG_PROMPT if long else size) for size, long in zip(sizes, is_long)]


KINDS: dict[str, Kind] = {
    "words": Kind("batching: random words, nothing in common", _words),
    "tokens": Kind("the same as token ids, so that lengths are exact; completions only", _tokens, is_text=False),
    "shared_prefix": Kind(f"prefix caching: {SHARED_WORDS} words that all prompts begin with", _shared_prefix),
    "long_prompt_interference": Kind(
        f"chunked prefill: one prompt in {LONG_ONE_IN} has {LONG_PROMPT} words", _long_prompts
    ),
    "repetitive": Kind("speculation: repeat a passage", lambda rng, sizes, _lengths: copy_tasks(rng, len(sizes))),
    "chat": Kind("real questions, little to guess", lambda rng, sizes, _lengths: questions(rng, len(sizes))),
}
