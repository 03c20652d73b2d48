"""What a client asks for. Torch-free; what a field may be is checked once, here.

What needs to be known about the model (vocabulary, longest sequence) is checked at submit,
by `shared.input_processor`.
"""

import math
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from shared.errors import InvalidRequest

MAX_TOP_LOGPROBS = 20
MAX_N = 64
MAX_STOP_STRINGS = 16
MAX_STOP_STRING_CHARS = 256
MAX_STOP_TOKEN_IDS = 256  # they are gone through for every token
MAX_LOGIT_BIAS = 1024  # entries; they are written into the logits in every step
MAX_SALT_CHARS = 256
MAX_SHOWN_CHARS = 100  # of a wrong value, in a message
LOGIT_BIAS_RANGE = 100.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when to stop (vLLM: `SamplingParams`).

    max_tokens: most tokens to generate, >= 1.
    temperature: 0 is greedy (the default); below 1e-5 counts as 0.
    top_p, top_k, min_p: filters, in transformers' order (top_k, top_p, min_p), after the temperature.
        top_k 0 or -1 and top_p 1.0 keep all; every filter keeps at least one token.
    seed: makes the tokens depend on (seed, position) alone; None draws a fresh one.
    repetition_penalty: divides (positive) or multiplies (negative) logits of tokens seen in prompt or output.
    presence_penalty, frequency_penalty: subtracted from logits of generated tokens, once or per occurrence.
    logit_bias: token id -> number in [-100, 100] added to its logit; at most 1,024 of them.
    min_tokens: EOS, stop ids and stop strings do not count before this many tokens.
    stop: strings that end the output; the text never contains them.
    stop_token_ids: ids that end the output, at most 256; kept in `token_ids`, left out of the text.
    logprobs: None, or how many alternatives to report per token (0: the chosen one only).
    prompt_logprobs: the same for the prompt's own tokens, with the first output; None skips that work.
    n: independent completions of the same prompt.

    Raises InvalidRequest, which names the field.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    min_tokens: int = 0
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1

    def __post_init__(self) -> None:
        _check_int("max_tokens", self.max_tokens, low=1)
        _check_number("temperature", self.temperature, low=0.0)
        _check_number("top_p", self.top_p, low=0.0, high=1.0)
        _check_int("top_k", self.top_k, low=-1)
        _check_number("min_p", self.min_p, low=0.0, high=1.0)
        if self.seed is not None:
            _check_int("seed", self.seed, low=-(2**63), high=2**64 - 1)
        _check_number("repetition_penalty", self.repetition_penalty, low=0.0, low_is_allowed=False)
        _check_number("presence_penalty", self.presence_penalty, low=-2.0, high=2.0)
        _check_number("frequency_penalty", self.frequency_penalty, low=-2.0, high=2.0)
        _check_int("min_tokens", self.min_tokens, low=0, high=self.max_tokens)
        if not isinstance(self.ignore_eos, bool):
            raise InvalidRequest("ignore_eos", f"must be true or false, got {self.ignore_eos!r}")
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _check_int(name, getattr(self, name), low=0, high=MAX_TOP_LOGPROBS)
        _check_int("n", self.n, low=1, high=MAX_N)
        _set(self, "stop", _checked_stop_strings(self.stop))
        _set(self, "stop_token_ids", _checked_token_ids("stop_token_ids", self.stop_token_ids))
        _check_number_of("stop_token_ids", self.stop_token_ids, most=MAX_STOP_TOKEN_IDS)
        if self.logit_bias is not None:
            _set(self, "logit_bias", _checked_logit_bias(self.logit_bias))

    @property
    def is_greedy(self) -> bool:
        """True where the most likely token is taken; a temperature this small cannot be told from 0."""
        return self.temperature < 1e-5


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt and how to go on from it; one unit of cancellation, whatever its `n`.

    prompt_token_ids: at least one id. request_id: chosen by the engine if None; two live requests
    cannot share one. cache_salt: requests with different salts never share cached K/V (phase 12); up to 256 characters.

    Raises InvalidRequest, which names the field.
    """

    prompt_token_ids: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    request_id: str | None = None
    cache_salt: str | None = None

    def __post_init__(self) -> None:
        prompt = _checked_token_ids("prompt_token_ids", self.prompt_token_ids)
        if not prompt:
            raise InvalidRequest("prompt_token_ids", "is empty; there must be at least one token to go on from")
        _set(self, "prompt_token_ids", prompt)
        if not isinstance(self.params, SamplingParams):
            raise InvalidRequest("params", f"must be a SamplingParams, got {type(self.params).__name__}")
        for name in ("request_id", "cache_salt"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise InvalidRequest(name, f"must be a non-empty string or None, got {value!r}")
        if self.request_id and "/" in self.request_id:
            raise InvalidRequest("request_id", "must not contain '/': that is how completions are told apart")
        if self.cache_salt is not None:
            _check_salt(self.cache_salt)


def _set(record: object, name: str, value: object) -> None:
    """Store a normalized value in a frozen record that is still being made."""
    object.__setattr__(record, name, value)


def _check_int(name: str, value: object, *, low: int, high: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(name, f"must be a whole number, got {_shown(value)}")
    if value < low or (high is not None and value > high):
        raise InvalidRequest(name, f"must be {_range(low, high)}, got {_shown(value)}")


def _check_number(
    name: str, value: object, *, low: float, high: float | None = None, low_is_allowed: bool = True
) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        raise InvalidRequest(name, f"must be a finite number, got {_shown(value)}")
    too_low = value < low if low_is_allowed else value <= low
    if too_low or (high is not None and value > high):
        wanted = _range(low, high) if low_is_allowed else f"more than {low}"
        raise InvalidRequest(name, f"must be {wanted}, got {value}")


def _is_finite(value: float) -> bool:
    """As a float: a whole number over 1e308 is none."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _shown(value: object) -> str:
    """For a message; Python refuses to write out a number of thousands of digits."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}..."


def _range(low: float, high: float | None) -> str:
    return f"at least {low}" if high is None else f"between {low} and {high}"


def _check_number_of(name: str, entries: Sized, *, most: int) -> None:
    if len(entries) > most:
        raise InvalidRequest(name, f"at most {most} entries, got {len(entries)}")


def _check_salt(salt: str) -> None:
    """It is hashed by a step that many requests share: what cannot be hashed has to be refused here."""
    if len(salt) > MAX_SALT_CHARS:
        raise InvalidRequest("cache_salt", f"at most {MAX_SALT_CHARS} characters, got {len(salt)}")
    try:
        salt.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("cache_salt", "is no valid text: it has half a surrogate pair") from None


def _checked_token_ids(name: str, ids: Any) -> tuple[int, ...]:
    if isinstance(ids, str | bytes | Mapping) or not hasattr(ids, "__iter__"):
        raise InvalidRequest(name, f"must be a list of token ids, got {type(ids).__name__}")
    ids = tuple(ids)
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or token_id < 0:
            raise InvalidRequest(name, f"must hold token ids (whole numbers from 0), got {_shown(token_id)}")
    return ids


def _checked_stop_strings(stop: Any) -> tuple[str, ...]:
    stop = () if stop is None else (stop,) if isinstance(stop, str) else stop
    if not isinstance(stop, list | tuple):
        raise InvalidRequest("stop", f"must be a string or a list of strings, got {type(stop).__name__}")
    if len(stop) > MAX_STOP_STRINGS:
        raise InvalidRequest("stop", f"at most {MAX_STOP_STRINGS} strings, got {len(stop)}")
    for text in stop:
        if not isinstance(text, str) or not 0 < len(text) <= MAX_STOP_STRING_CHARS:
            raise InvalidRequest("stop", f"must hold strings of 1 to {MAX_STOP_STRING_CHARS} characters")
    return tuple(stop)


def _checked_logit_bias(bias: Any) -> Mapping[int, float]:
    if not isinstance(bias, Mapping):
        raise InvalidRequest("logit_bias", "must map token ids to numbers")
    _check_number_of("logit_bias", bias, most=MAX_LOGIT_BIAS)
    _checked_token_ids("logit_bias", bias.keys())
    for value in bias.values():
        _check_number("logit_bias", value, low=-LOGIT_BIAS_RANGE, high=LOGIT_BIAS_RANGE)
    return MappingProxyType(dict(bias))
