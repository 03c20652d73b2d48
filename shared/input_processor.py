"""From a request to the state an engine keeps of it: the checks that need the model's numbers are here."""

import itertools
import secrets
import time
from collections.abc import Container
from typing import Any

from shared.config import EngineConfig
from shared.errors import InvalidRequest, SetupError
from shared.output import RequestMetrics
from shared.request import Request
from shared.request_state import RequestState
from shared.sequence import Sequence
from shared.text_stream import NullTextStream, TextStream

LENGTH_NAMES = ("max_position_embeddings", "max_seq_len", "seq_length", "n_positions")  # by family
TOO_LONG = "context_length_exceeded"  # OpenAI's code: its clients shorten the prompt when they see it


class InputProcessor:
    """Checks a request against the model and makes its sequences (vLLM: `InputProcessor`).

    model: a transformers causal LM, read for its vocabulary and EOS ids only.
    config: resolved, so that max_model_len is a number.
    pool_slots: tokens whose K/V the pool holds, from phase 6 on. reserves_all: a request that could outgrow the
    pool is refused, because nobody would give memory back (phases 6 and 8).
    """

    def __init__(
        self,
        model: Any,
        config: EngineConfig,
        tokenizer: Any = None,
        *,
        pool_slots: int | None = None,
        reserves_all: bool = False,
    ) -> None:
        self.pool_slots = pool_slots
        self.reserves_all = reserves_all
        self.tokenizer = tokenizer
        self.vocab_size: int = model.get_input_embeddings().num_embeddings
        self.eos_token_ids = eos_token_ids(model)
        self.max_model_len = int(config.max_model_len)
        # The last token is never run, so a sequence that has the pool to itself can be one longer than it.
        self.longest_sequence = self.max_model_len if pool_slots is None else min(self.max_model_len, pool_slots + 1)
        self._numbers = itertools.count(1)

    def process(self, request: Request, ids_in_use: Container[str] = ()) -> RequestState:
        """Raises InvalidRequest, naming the field, for what this model cannot serve."""
        if not isinstance(request, Request):
            raise InvalidRequest("request", f"must be a shared.request.Request, got {type(request).__name__}")
        self._check(request)
        request_id = request.request_id or self._new_id(ids_in_use)
        sequences = [self._make_sequence(request, request_id, index) for index in range(request.params.n)]
        return RequestState(request_id, request, sequences, RequestMetrics(arrival_time=time.perf_counter()))

    def _new_id(self, ids_in_use: Container[str]) -> str:
        return next(name for n in self._numbers if (name := f"req-{n}") not in ids_in_use)

    def _make_sequence(self, request: Request, request_id: str, index: int) -> Sequence:
        params = request.params
        return Sequence(
            request_id=request_id,
            index=index,
            request=request,
            token_ids=list(request.prompt_token_ids),
            seed=secrets.randbits(63) if params.seed is None else params.seed,
            eos_token_ids=frozenset() if params.ignore_eos else self.eos_token_ids,
            max_num_tokens=min(len(request.prompt_token_ids) + params.max_tokens, self.longest_sequence),
            text_stream=self._text_stream(request),
        )

    def _text_stream(self, request: Request) -> TextStream | NullTextStream:
        if self.tokenizer is None:
            return NullTextStream()
        return TextStream(self.tokenizer, request.params.stop, request.prompt_token_ids)

    def _check(self, request: Request) -> None:
        prompt, params = request.prompt_token_ids, request.params
        if len(prompt) >= self.max_model_len:
            raise InvalidRequest(
                "prompt_token_ids",
                f"has {len(prompt)} tokens, but a sequence may hold {self.max_model_len} with its output; "
                "shorten the prompt",
                code=TOO_LONG,
            )
        self._check_pool(request)
        for name, ids in (
            ("prompt_token_ids", prompt),
            ("stop_token_ids", params.stop_token_ids),
            ("logit_bias", params.logit_bias or ()),
        ):
            if (largest := max(ids, default=0)) >= self.vocab_size:
                raise InvalidRequest(name, f"token id {largest} is outside the vocabulary (0 to {self.vocab_size - 1})")
        if params.stop and self.tokenizer is None:
            raise InvalidRequest("stop", "needs a tokenizer: pass one to build_engine, or use stop_token_ids")

    def _check_pool(self, request: Request) -> None:
        """What can never run is refused at the door: at the head of a line it would hold up everybody for ever."""
        if self.pool_slots is None:
            return
        num_prompt = len(request.prompt_token_ids)
        if num_prompt > self.pool_slots:
            raise InvalidRequest(
                "prompt_token_ids",
                f"has {num_prompt} tokens, but the K/V pool holds {self.pool_slots}; shorten the prompt, "
                "or give the engine more kv_num_blocks",
                code=TOO_LONG,
            )
        longest = min(num_prompt + request.params.max_tokens, self.max_model_len) - 1  # the last token is never run
        if self.reserves_all and longest > self.pool_slots:
            raise InvalidRequest(
                "max_tokens",
                f"{num_prompt} prompt tokens and {request.params.max_tokens} more need {longest} slots of K/V, "
                f"but the pool holds {self.pool_slots}; ask for fewer, or give the engine more kv_num_blocks",
            )


def eos_token_ids(model: Any) -> frozenset[int]:
    """The ids that end an output: generation_config's if it names any, else the model config's."""
    for config in (getattr(model, "generation_config", None), model.config.get_text_config()):
        ids = getattr(config, "eos_token_id", None)
        if ids is not None:
            return _checked_eos(ids)
    return frozenset()


def _checked_eos(ids: Any) -> frozenset[int]:
    """Raises SetupError for what no output could ever end with, such as an id in quotes."""
    ids = ids.tolist() if hasattr(ids, "tolist") else ids
    listed = ids if isinstance(ids, list | tuple | set) else [ids]
    if any(type(token_id) is not int for token_id in listed):
        raise SetupError(f"eos_token_id: {ids!r} is no token id and no list of them; mend the model's config files")
    return frozenset(listed)


def model_max_len(model: Any) -> int | None:
    """The longest sequence a model was made for, in tokens; None where its config names none, as Bloom's may not."""
    config = model.config.get_text_config()
    lengths = [length for name in LENGTH_NAMES if (length := getattr(config, name, None))][:1]
    return min([*map(int, lengths), *_lengths_of_one_rope(config)], default=None)


def _lengths_of_one_rope(config: Any) -> list[int]:
    """Longrope (Phi-3) turns longer sequences by other angles; Hugging Face looks at a step's longest for all of it."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kinds = [rope, *(kind for kind in rope.values() if isinstance(kind, dict))]  # one for all layers, or by their type
    name = "original_max_position_embeddings"
    return [
        int(kind.get(name) or getattr(config, name))
        for kind in kinds
        if kind.get("rope_type", kind.get("type")) == "longrope"
    ]
