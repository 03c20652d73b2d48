"""The two questions: are these tokens those of `generate()`, and if not, why?"""

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

from shared.config import EngineConfig
from shared.explain.again import command_for
from shared.explain.replay import BuildEngine, Case, MakeModel
from shared.explain.report import Divergence
from shared.explain.search import search


def explain(
    build_engine: BuildEngine,
    make_model: MakeModel,
    prompt_token_ids: Seq[int],
    max_tokens: int,
    got: Seq[int] | None = None,
    *,
    config: EngineConfig | None = None,
    served_with: Seq[Seq[int]] = (),
    row: int = 0,
    ignore_eos: bool = True,
    tokenizer: Any = None,
) -> Divergence | None:
    """Compare one greedy request with `generate()`: None if the tokens are equal, else why they may not be.

    build_engine: called as build_engine(model, config). make_model: gives a fresh, equal model at each call.
    got: the engine's tokens; None serves the request to get them.
    served_with: the prompts of all requests that were served together, this one at index `row`; empty if alone.
    tokenizer: for the text of the two tokens. Raises what the engine raises.

    Where tokens differ, the values of all layers at all positions are kept in memory, twice:
    4 bytes * layers * positions * about ten times the hidden size.
    """
    prompts = tuple(tuple(prompt) for prompt in served_with) or (tuple(prompt_token_ids),)
    case = Case(build_engine, make_model, config or EngineConfig(), prompts, row, ignore_eos)
    found = search(case, max_tokens, None if got is None else list(got))
    if found is None or tokenizer is None:
        return found
    tokens = {tokens[found.step] for tokens in (found.expected, found.got) if found.step < len(tokens)}
    return replace(found, texts={token: tokenizer.decode([token]) for token in tokens})


def assert_same_tokens(
    build_engine: BuildEngine,
    make_model: MakeModel,
    prompts: Seq[Seq[int]],
    got: Seq[Seq[int]],
    expected: Seq[Seq[int]],
    *,
    config: EngineConfig | None = None,
    together: bool = True,
    ignore_eos: bool = True,
    max_tokens: int | None = None,
) -> None:
    """Raise AssertionError with the report on the first request whose tokens are not the expected ones.

    got, expected: the output tokens of each of `prompts`. together: whether the requests were served in one call.
    max_tokens: of the requests; if None, the length of what is expected (with EOS, of the longest).
    The rest is as for `explain`.
    """
    __tracebackhide__ = True  # pytest shows the caller's line
    pairs = [(list(tokens), list(wanted)) for tokens, wanted in zip(got, expected)]
    wrong = [row for row, (tokens, wanted) in enumerate(pairs) if tokens != wanted]
    if len(got) != len(expected):
        raise AssertionError(f"{len(got)} outputs, but {len(expected)} were expected")
    if not wrong:
        return
    row, config = wrong[0], config or EngineConfig()
    title = f"{len(wrong)} of {len(got)} requests differ: {', '.join(map(str, wrong))}. Request {row}:"
    company = [list(prompt) for prompt in prompts] if together else [list(prompts[row])]
    place = row if together else 0
    options: dict[str, Any] = {"config": config, "served_with": company, "row": place, "ignore_eos": ignore_eos}
    tokens, wanted = pairs[row]
    limit = max_tokens or (len(wanted) if ignore_eos else max(map(len, expected)))
    try:
        found = explain(build_engine, make_model, prompts[row], limit, tokens, **options)
    except Exception as error:
        raise AssertionError(f"{title}\n{tokens} != {wanted}\n(not explained: {error!r})") from error
    if found is None:
        raise AssertionError(f"{title}\n{tokens} is what generate() gives now; {wanted} was expected")
    command = command_for(found, build_engine, make_model, config, company[:place] + company[place + 1 :])
    raise AssertionError(f"{title}\n{found}" + (f"\n    again       {command}" if command else ""))
