"""A steady mix of clients for one server process: what they ask, what has to come of it, and what they saw.

A closed loop: each client sends its next request when the last one is over, and all go round the same KINDS, so one
minute's load is like another's. Greedy answers are compared with Hugging Face's; prompts, salts and request ids that
are never the same twice look for what a server might keep for ever.
"""

import asyncio
import itertools
import json
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from shared.reference import greedy_reference

NUM_CLIENTS = 8  # beside the one that measures
NUM_PROMPTS = 6  # of each checked kind
MAX_TOKENS = 24
EOS = 2
LETTERS = range(10, 30)  # ids that the letters' tokenizer writes as one letter each
HEADERS = {"accept": "text/event-stream"}  # of the live page


@dataclass(frozen=True)
class Asked:
    """A prompt, and what has to come back. text: without special tokens, as clients get it."""

    prompt: list[int]
    token_ids: list[int]
    text: str


@dataclass
class Plan:
    """What is asked more than once, so that one reference answers for all of it."""

    plain: list[Asked]
    chats: list[Asked]
    copies: list[Asked]
    long: list[Asked]


@dataclass
class Seen:
    """What the clients saw. gaps: minute from 0 on -> seconds between two events of the probe's streams."""

    counts: Counter[str] = field(default_factory=Counter)  # kind -> requests
    num_compared: int = 0
    failures: list[str] = field(default_factory=list)
    gaps: defaultdict[int, list[float]] = field(default_factory=lambda: defaultdict(list))


def make_plan(model: Any, tokenizer: Any) -> Plan:
    """model: for the reference alone, the same that is served."""
    rng = random.Random(0)

    def asked(prompt: list[int], eos: tuple[int, ...] = (), max_tokens: int = MAX_TOKENS) -> Asked:
        ids = list(greedy_reference(model, prompt, max_tokens, eos))
        return Asked(prompt, ids, tokenizer.decode(ids, skip_special_tokens=True))

    system = letters(rng, 40)
    texts = [letters(rng, 6) for _ in range(NUM_PROMPTS)]
    return Plan(
        plain=[asked(letters(rng, 5 + 4 * number)) for number in range(NUM_PROMPTS)],
        chats=[asked(system + letters(rng, 5), (EOS,)) for _ in range(NUM_PROMPTS)],
        copies=[asked(text * 4, max_tokens=48) for text in texts],
        long=[asked(letters(rng, 150 + 20 * number)) for number in range(NUM_PROMPTS)],
    )


def letters(rng: random.Random, count: int) -> list[int]:
    return rng.choices(LETTERS, k=count)


class Unexpected(Exception):
    """Something that this server had no reason to answer."""


def expect(is_right: bool, what: str, found: Any) -> None:
    if not is_right:
        raise Unexpected(f"{what}: {str(found)[:300]}")


class Visitor:
    """One client: sends, checks the form of what comes, and tells which answer it should have been."""

    def __init__(self, http: httpx.AsyncClient, number: int, plan: Plan, tokenizer: Any, seen: Seen) -> None:
        self.http = http
        self.rng = random.Random(number)
        self.plan = plan
        self.tokenizer = tokenizer
        self.seen = seen

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        response = await self.http.post(path, json=body)
        expect(response.status_code == 200, f"{path} {response.status_code}", response.text)
        return response.json()

    async def events(self, path: str, body: dict[str, Any]) -> AsyncIterator[Any]:
        """The events of a stream up to [DONE], which has to come."""
        async with self.http.stream("POST", path, json=body | {"stream": True}) as response:
            expect(response.status_code == 200, path, response.status_code)
            data = ""
            async for line in response.aiter_lines():
                if line:
                    data = line.removeprefix("data: ")
                    if data != "[DONE]":
                        event = json.loads(data)
                        expect("error" not in event, f"{path}: an error in the stream", data)
                        yield event
            expect(data == "[DONE]", f"{path}: the stream broke off after", data)

    def compare(self, found: Any, expected: Any, asked: Asked) -> None:
        expect(found == expected, f"{asked.prompt} should give {expected}", found)
        self.seen.num_compared += 1

    def text(self, token_ids: list[int]) -> str:
        return self.tokenizer.decode(token_ids)

    def fresh(self, count: int) -> list[int]:
        return letters(self.rng, count)


# -- the kinds of requests ----------------------------------------------------------------------------


async def plain_completion(visitor: Visitor) -> None:
    asked = visitor.rng.choice(visitor.plan.plain)
    body = {"prompt": asked.prompt, "max_tokens": MAX_TOKENS, "ignore_eos": True, "return_token_ids": True}
    visitor.compare((await visitor.post("/v1/completions", body))["choices"][0]["token_ids"], asked.token_ids, asked)


async def streamed_chat(visitor: Visitor) -> None:
    """With one system prompt for all."""
    asked = visitor.rng.choice(visitor.plan.chats)
    turns = [("system", asked.prompt[:40]), ("user", asked.prompt[40:])]
    messages = [{"role": role, "content": visitor.text(ids)} for role, ids in turns]
    body = {"messages": messages, "max_tokens": MAX_TOKENS, "stream_options": {"include_usage": True}}
    events = [event async for event in visitor.events("/v1/chat/completions", body)]
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events[:-1])
    visitor.compare((text, events[-1]["usage"]["completion_tokens"]), (asked.text, len(asked.token_ids)), asked)


async def copy_task(visitor: Visitor) -> None:
    """Drafts are accepted here."""
    asked = visitor.rng.choice(visitor.plan.copies)
    body = {"prompt": asked.prompt, "max_new_tokens": len(asked.token_ids), "ignore_eos": True}
    *events, last = [event async for event in visitor.events("/generate", body)]
    visitor.compare([token for event in events for token in event["token_ids"]], asked.token_ids, asked)
    expect(last["finish_reason"] == "length", "copy_task", last)


async def long_prompt(visitor: Visitor) -> None:
    asked = visitor.rng.choice(visitor.plan.long)
    body = {"prompt": asked.prompt, "max_tokens": MAX_TOKENS, "ignore_eos": True, "return_token_ids": True}
    found = [
        token async for event in visitor.events("/v1/completions", body) for token in event["choices"][0]["token_ids"]
    ]
    visitor.compare(found, asked.token_ids, asked)


async def stop_string(visitor: Visitor) -> None:
    """One that stands in the answer."""
    asked = visitor.rng.choice(visitor.plan.plain)
    stop = asked.text[-12:-9]
    body = {"prompt": asked.prompt, "max_tokens": MAX_TOKENS, "ignore_eos": True, "stop": [stop]}
    (choice,) = (await visitor.post("/v1/completions", body))["choices"]
    expected = asked.text[: asked.text.find(stop)], "stop"
    visitor.compare((choice["text"], choice["finish_reason"]), expected, asked)


async def several_choices(visitor: Visitor) -> None:
    body = {"prompt": visitor.fresh(20), "n": 3, "temperature": 1.0, "max_tokens": 30, "ignore_eos": True}
    reasons = Counter[int]()
    async for event in visitor.events("/v1/completions", body):
        for choice in event["choices"]:
            reasons[choice["index"]] += choice["finish_reason"] == "length"
    expect(reasons == {0: 1, 1: 1, 2: 1}, "several_choices ended as", reasons)


async def seeded_with_logprobs(visitor: Visitor) -> None:
    """Two of the same, at once: they have to agree, whoever else is served."""
    body = {
        **{"prompt": visitor.fresh(12), "seed": visitor.rng.getrandbits(40), "temperature": 0.9, "top_p": 0.9},
        **{"max_tokens": 16, "ignore_eos": True, "echo": True, "logprobs": 2, "return_token_ids": True},
    }
    answers = await asyncio.gather(*(visitor.post("/v1/completions", body) for _ in range(2)))
    (one,), (other,) = (answer["choices"] for answer in answers)
    expect(one["token_ids"] == other["token_ids"], "a seed gave", (one["token_ids"], other["token_ids"]))
    expect(len(one["logprobs"]["token_logprobs"]) == 28, "logprobs", one["logprobs"])


async def salted(visitor: Visitor) -> None:
    """A tenant and a request id that nobody has seen before."""
    name = f"{visitor.rng.getrandbits(64):x}"
    body = {"prompt": visitor.fresh(30), "max_new_tokens": 8, "ignore_eos": True, "cache_salt": name}
    response = await visitor.http.post("/generate", json=body, headers={"X-Request-Id": name})
    expect(response.status_code == 200, "salted", response.text)
    expect(response.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0, "salted", response.text)


async def hang_up_on_a_stream(visitor: Visitor) -> None:
    body = {"prompt": visitor.fresh(16), "max_tokens": 200, "n": visitor.rng.choice([1, 2]), "ignore_eos": True}
    num_wanted = visitor.rng.randint(1, 12)
    body |= {"stream": True}
    async with visitor.http.stream("POST", "/v1/completions", json=body) as response:
        expect(response.status_code == 200, "hang_up_on_a_stream", response.status_code)
        async for line in response.aiter_lines():
            num_wanted -= bool(line)
            if num_wanted == 0:
                break


async def hang_up_without_a_word(visitor: Visitor) -> None:
    """At any moment: in the queue, in prefill, or later."""
    body = {"prompt": visitor.fresh(120), "max_tokens": 200, "ignore_eos": True}
    with suppress(TimeoutError):
        async with asyncio.timeout(visitor.rng.uniform(0.001, 0.06)):
            await visitor.http.post("/v1/completions", json=body)


BAD: list[tuple[int, str, Any]] = [  # status, path, body
    (400, "/v1/completions", {"prompt": [5], "temperature": -1}),
    (400, "/v1/completions", {"prompt": ""}),
    (400, "/v1/completions", {"prompt": [97]}),
    (400, "/v1/completions", {"prompt": [5] * 600}),
    (400, "/v1/completions", {"prompt": [5], "n": 0}),
    (400, "/v1/chat/completions", {"messages": [{"role": "user"}]}),
    (400, "/generate", {"prompt": [5], "top_k": -5}),
    (400, "/generate", {"prompt": [5], "no_such_field": 1}),
    (404, "/v1/chat/completions", {"model": "no-such-model-xyz", "messages": [{"role": "user", "content": "a"}]}),
    (400, "/generate", b'{"prompt'),
    (405, "/health", {}),
]


async def bad_request(visitor: Visitor) -> None:
    status, path, body = visitor.rng.choice(BAD)
    content = body if isinstance(body, bytes) else json.dumps(body)
    response = await visitor.http.post(path, content=content, headers={"content-type": "application/json"})
    expect(response.status_code == status, f"{path} {body} should be {status}", response.text)
    expect(set(response.json()["error"]) == {"message", "type", "param", "code"}, path, response.text)
    nowhere = await visitor.http.get(f"/nowhere/{visitor.rng.getrandbits(64):x}")
    expect(nowhere.status_code == 404, "nowhere", nowhere.text)


async def look_around(visitor: Visitor) -> None:
    """Who scrapes the metrics, and a page that is opened and shut."""
    for path in ("/health", "/metrics", "/metrics/summary", "/v1/models"):
        response = await visitor.http.get(path)
        expect(response.status_code == 200, path, response.text)
    async with visitor.http.stream("GET", "/events", headers=HEADERS) as response:
        expect(response.status_code == 200, "/events", response.status_code)
        lines = response.aiter_lines()
        for _ in range(3):
            await anext(lines)


Kind = Callable[[Visitor], Awaitable[None]]
KINDS: tuple[Kind, ...] = (
    *(plain_completion, streamed_chat, copy_task, hang_up_on_a_stream, long_prompt, several_choices, stop_string),
    *(streamed_chat, bad_request, seeded_with_logprobs, hang_up_without_a_word, copy_task, salted, look_around),
)


# -- the clients --------------------------------------------------------------------------------------


async def put_under_load(
    url: str, plan: Plan, tokenizer: Any, seconds: float, seen: Seen, tick: Callable[[float], None]
) -> None:
    """tick: called about once a second with the seconds since the start."""
    started = time.perf_counter()

    def clock() -> float:
        return time.perf_counter() - started

    async def visit(number: int, kinds: tuple[Kind, ...]) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as http:
            visitor = Visitor(http, number, plan, tokenizer, seen)
            for kind in itertools.islice(itertools.cycle(kinds), number, None):
                if clock() >= seconds:
                    return
                try:
                    await kind(visitor)
                except Exception as error:
                    seen.failures.append(f"at {clock():.1f} s, {kind.__name__}: {error!r}")
                seen.counts[kind.__name__] += 1

    async def probe(visitor: Visitor) -> None:
        """The same streamed request again and again, timed event by event."""
        asked = plan.plain[0]
        body = {"prompt": asked.prompt, "max_new_tokens": MAX_TOKENS, "ignore_eos": True}
        tokens: list[int] = []
        last = clock()
        async for event in visitor.events("/generate", body):
            now = clock()
            if tokens and "token_ids" in event:
                seen.gaps[int(now // 60)].append(now - last)
            tokens += event.get("token_ids", [])
            last = now
        visitor.compare(tokens, asked.token_ids, asked)

    async def watch() -> None:
        while clock() < seconds:
            tick(clock())
            await asyncio.sleep(1.0)

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        group.create_task(visit(0, (probe,)))
        for number in range(1, NUM_CLIENTS + 1):
            group.create_task(visit(number, KINDS))
