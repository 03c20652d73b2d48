"""What the `openai` package, of any version, asks of a server that runs: one line per check, exit code 1 if one failed.

    python tests/outside/openai_client.py --base-url http://127.0.0.1:8001/v1 [--api-key KEY]

Imports nothing but `openai`, so it runs in an environment that has a version of it and not this project.
"""

import argparse
import asyncio
import platform
import sys
import traceback
from collections.abc import Callable
from typing import Any

import openai
from openai import AsyncOpenAI, OpenAI

CHECKS: list[Callable[[OpenAI, str], None]] = []
QUESTION: list[Any] = [{"role": "user", "content": "Name three fruits."}]
PROMPT = "The capital of France is"
TOOL: Any = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


def check(function: Callable[[OpenAI, str], None]) -> Callable[[OpenAI, str], None]:
    CHECKS.append(function)
    return function


def refused(error: type[Exception], call: Callable[[], Any]) -> Any:
    """The error that `call` has to end with."""
    try:
        call()
    except error as found:
        return found
    raise AssertionError(f"no {error.__name__}")


@check
def models(client: OpenAI, model: str) -> None:
    assert model in [found.id for found in client.models.list()]
    assert client.models.retrieve(model).id == model


@check
def chat(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=QUESTION, max_completion_tokens=12)
    (choice,) = answer.choices
    assert (choice.message.role, choice.finish_reason) == ("assistant", "length")
    assert choice.message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


@check
def chat_with_turns_and_parts(client: OpenAI, model: str) -> None:
    messages: list[Any] = [
        {"role": "system", "content": "You are brief."},
        {"role": "user", "content": [{"type": "text", "text": "Say hi."}]},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "Again."},
    ]
    assert client.chat.completions.create(model=model, messages=messages, max_tokens=4).choices[0].message.content


@check
def chat_streamed_is_chat(client: OpenAI, model: str) -> None:
    whole = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=12)
    *chunks, last = client.chat.completions.create(
        model=model, messages=QUESTION, max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["length"]
    assert (last.choices, last.usage and last.usage.completion_tokens) == ([], 12)


@check
def chat_stream_helper(client: OpenAI, model: str) -> None:
    """It raises for an answer that `max_tokens` cut short, so this one ends with its first line."""
    with client.chat.completions.stream(model=model, messages=QUESTION, max_tokens=64, stop=["\n"]) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        assert stream.get_final_completion().choices[0].message.content == text != ""


@check
def a_stream_may_be_left(client: OpenAI, model: str) -> None:
    with client.chat.completions.create(model=model, messages=QUESTION, max_tokens=512, stream=True) as stream:
        assert next(iter(stream)).choices[0].delta.content
    assert client.completions.create(model=model, prompt=PROMPT, max_tokens=1).choices[0].text


@check
def completions(client: OpenAI, model: str) -> None:
    answer = client.completions.create(model=model, prompt=[PROMPT, "One, two,"], max_tokens=6, temperature=0)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert "Paris" in answer.choices[0].text
    stream = client.completions.create(model=model, prompt=PROMPT, max_tokens=6, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == answer.choices[0].text


@check
def several_choices(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=QUESTION, n=3, temperature=1, seed=1, max_tokens=16)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1


@check
def logprobs(client: OpenAI, model: str) -> None:
    told = (
        client.chat.completions.create(model=model, messages=QUESTION, max_tokens=3, logprobs=True, top_logprobs=2)
        .choices[0]
        .logprobs
    )
    assert told is not None
    assert told.content is not None
    assert [len(token.top_logprobs) for token in told.content] == [2, 2, 2]
    assert all(token.logprob == token.top_logprobs[0].logprob <= 0 for token in told.content)  # greedy: the likeliest
    scored = client.completions.create(model=model, prompt=PROMPT, max_tokens=1, echo=True, logprobs=1).choices[0]
    assert scored.text.startswith(PROMPT)
    assert scored.logprobs is not None
    first, *others = scored.logprobs.token_logprobs or []
    assert first is None
    assert all(value <= 0 for value in others if value is not None)


@check
def stop(client: OpenAI, model: str) -> None:
    whole = client.completions.create(model=model, prompt="One, two, three,", max_tokens=12).choices[0].text
    cut = client.completions.create(model=model, prompt="One, two, three,", max_tokens=12, stop=[","]).choices[0]
    assert (cut.text, cut.finish_reason) == (whole.partition(",")[0], "stop")


@check
def seed(client: OpenAI, model: str) -> None:
    def text(seed: int) -> str | None:
        answer = client.chat.completions.create(model=model, messages=QUESTION, temperature=1, seed=seed, max_tokens=16)
        return answer.choices[0].message.content

    assert text(7) == text(7) != text(8)


@check
def tools_and_formats_are_refused_by_name(client: OpenAI, model: str) -> None:
    create = client.chat.completions.create
    for name, value in (("tools", [TOOL]), ("response_format", {"type": "json_object"})):
        fields: Any = {name: value}
        error = refused(openai.BadRequestError, lambda fields=fields: create(model=model, messages=QUESTION, **fields))
        assert (error.status_code, error.param) == (400, name), error
        assert "is not offered by this server" in str(error)


@check
def error_classes(client: OpenAI, model: str) -> None:
    complete = client.completions.create
    wrong = refused(openai.BadRequestError, lambda: complete(model=model, prompt=PROMPT, temperature=-1))
    assert (wrong.param, wrong.type) == ("temperature", "invalid_request_error"), wrong
    too_long = refused(openai.BadRequestError, lambda: complete(model=model, prompt=[5] * 100_000))
    assert too_long.param == "prompt", too_long
    unknown = refused(openai.NotFoundError, lambda: complete(model="no-such-model", prompt=PROMPT))
    assert unknown.code == "model_not_found", unknown
    refused(openai.NotFoundError, lambda: client.embeddings.create(model=model, input="abc"))
    refused(openai.NotFoundError, lambda: client.responses.create(model=model, input="abc"))
    hasty = client.with_options(timeout=0.001, max_retries=0)
    refused(openai.APITimeoutError, lambda: hasty.completions.create(model=model, prompt=PROMPT))
    nobody = client.with_options(base_url="http://127.0.0.1:9/v1", max_retries=0)
    refused(openai.APIConnectionError, lambda: nobody.completions.create(model=model, prompt=PROMPT))
    if client.api_key != "unused":
        stranger = client.with_options(api_key="another")
        refused(openai.AuthenticationError, lambda: stranger.completions.create(model=model, prompt=PROMPT))


@check
def raw_responses(client: OpenAI, model: str) -> None:
    raw = client.completions.with_raw_response.create(model=model, prompt=PROMPT, max_tokens=1)
    assert raw.headers["x-request-id"]
    assert raw.parse().choices[0].text


@check
def many_at_once(client: OpenAI, model: str) -> None:
    async def ask_all() -> list[Any]:
        async with AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as fast:
            create = fast.chat.completions.create
            return await asyncio.gather(*(create(model=model, messages=QUESTION, max_tokens=8) for _ in range(6)))

    assert len({answer.choices[0].message.content for answer in asyncio.run(ask_all())}) == 1


def passes(function: Callable[[OpenAI, str], None], client: OpenAI, model: str) -> bool:
    try:
        function(client, model)
    except Exception:
        traceback.print_exc()
        print(f"FAILED  {function.__name__}", flush=True)
        return False
    print(f"ok      {function.__name__}", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base-url", default="http://127.0.0.1:8001/v1", help="of a server that runs (default: ours)")
    parser.add_argument("--api-key", default="unused", help="where the server wants one; wrong keys are tried then too")
    args = parser.parse_args()
    print(f"openai {openai.__version__}, Python {platform.python_version()}")
    with OpenAI(base_url=args.base_url, api_key=args.api_key, timeout=120) as client:
        model = client.models.list().data[0].id
        num_passed = sum(passes(function, client, model) for function in CHECKS)
    print(f"{num_passed} of {len(CHECKS)} checks passed")
    return 0 if num_passed == len(CHECKS) else 1


if __name__ == "__main__":
    sys.exit(main())
