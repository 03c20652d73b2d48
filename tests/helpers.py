"""What several test files need: the cases' fixtures, engines of every phase, and what "clean" means."""

import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from shared.config import EngineConfig
from shared.reference import greedy_reference
from shared.registry import PHASES, Phase
from shared.request import Request, SamplingParams
from shared.tiny_models import FAMILIES, tiny_llama

PA = [5, 17, 33, 8, 21, 40, 11, 3]
PB = [6, 18, 34, 9, 22, 41, 12, 4]
PC = [7, 19, 35, 10, 23, 42, 13, 5]
LONG = 400  # tokens: more than a test waits for
Q = [(7 * i * i + 3 * i + 5) % 97 for i in range(96)]

T0_OUTPUTS = {
    "PA": [8, 62, 18, 72, 11, 28, 59, 91, 7, 4, 86, 95, 0, 11, 50, 73, 22, 83, 47, 14, 13, 14, 75, 7],
    "PB": [52, 59, 73, 26, 7, 35, 62, 81, 4, 6, 55, 2, 32, 26, 24, 9, 54, 71, 88, 62, 81, 45, 25, 19],
    "PC": [33, 61, 0, 62, 23, 7, 73, 56, 71, 88, 69, 35, 81, 17, 86, 54, 36, 36, 71, 0, 0, 55, 41, 7],
}

phase_ids = [f"phase{phase.number:02d}" for phase in PHASES]
step_phases = [phase for phase in PHASES if phase.number >= 2]


def cyclic_model(num_letters: int = 20, base: int = 10, vocab_size: int = 64) -> Any:
    """A model whose next token is the successor in a cycle: id base + i is followed by base + (i + 1) % n."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=vocab_size,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).to(torch.float64).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(vocab_size))
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight.zero_()
        for token in range(vocab_size):
            is_letter = base <= token < base + num_letters
            successor = base + (token - base + 1) % num_letters if is_letter else base
            model.lm_head.weight[successor, token] = 1.0
    return model


def rope_fields(rope: dict[str, Any]) -> dict[str, Any]:
    """RoPE's settings as this version of transformers spells them in a config: all in one since 5.0."""
    if hasattr(LlamaConfig(), "rope_parameters"):
        return {"rope_parameters": rope}
    scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
    return {"rope_theta": rope["rope_theta"], "rope_scaling": scaling}


def letter_tokenizer(num_letters: int = 20, base: int = 10, vocab_size: int = 64) -> PreTrainedTokenizerFast:
    """One token per letter: id base + i <-> chr(97 + i); the other ids read "<id>"."""
    vocab = {f"<{i}>": i for i in range(vocab_size) if not base <= i < base + num_letters}
    vocab |= {chr(97 + i): base + i for i in range(num_letters)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<3>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<1>", eos_token="<2>", pad_token="<0>", unk_token="<3>"
    )


@contextmanager
def open_engine(
    phase: Phase, model: Any = None, tokenizer: Any = None, draft_model: Any = None, **settings: Any
) -> Iterator[Any]:
    """An engine of a phase over a model of its own (T0 if none), checked and closed in the end."""
    engine = phase.build_engine()(model or tiny_llama(), EngineConfig(**settings), tokenizer, draft_model)
    harden(engine)
    try:
        yield engine
        assert_clean(engine)
    finally:
        engine.close()


def harden(engine: Any) -> None:
    """Make faults loud: a pool full of NaN, so that a stale read shows, and a check of all blocks after every step."""
    if cache := getattr(getattr(engine, "runner", None), "cache", None):
        cache.key.fill_(float("nan"))
        cache.value.fill_(float("nan"))
    if allocator := getattr(getattr(engine, "scheduler", None), "allocator", None):
        apply = engine.scheduler.apply

        def checked_apply(*args: Any) -> Any:
            outputs = apply(*args)
            allocator.check_integrity()
            if swap := getattr(engine.scheduler, "swap", None):
                swap.check_integrity()
            for seq in engine.scheduler.running:
                num_slots = len(allocator.block_tables.get(seq.name, ())) * allocator.block_size
                assert seq.num_computed_tokens <= num_slots, "K/V without a slot"
            return outputs

        engine.scheduler.apply = checked_apply


def greedy(prompt: Seq[int], max_tokens: int, **params: Any) -> Request:
    """A greedy request that runs to its full length."""
    return Request(prompt, SamplingParams(max_tokens=max_tokens, **{"ignore_eos": True} | params))


def named(request_id: str, prompt: Seq[int] = PA, max_tokens: int = LONG, **params: Any) -> Request:
    """The same, under an id of one's own; many tokens, unless said."""
    return replace(greedy(prompt, max_tokens, **params), request_id=request_id)


def token_lists(outputs: Seq[Any]) -> list[list[int]]:
    return [output.token_ids for output in outputs]


@lru_cache(maxsize=8)
def reference_model(family: str) -> Any:
    """Kept apart from the engines' models: an engine may change the attention of the one it owns."""
    return FAMILIES[family]()


@lru_cache(maxsize=4096)
def reference(family: str, prompt: tuple[int, ...], max_tokens: int, eos: tuple[int, ...] = ()) -> tuple[int, ...]:
    return tuple(greedy_reference(reference_model(family), prompt, max_tokens, eos))


def slow_down(engine: Any, seconds: float = 0.02) -> None:
    """The cases' "slowed": every forward pass takes this much longer."""
    wrap_model_forward(engine, lambda: time.sleep(seconds))


def wrap_model_forward(engine: Any, before: Callable[[], None]) -> None:
    """Call `before` ahead of every step's computation; it may sleep, or raise."""
    if hasattr(engine, "runner"):
        execute = engine.runner.execute

        def wrapped(plan: Any) -> Any:
            before()
            return execute(plan)

        engine.runner.execute = wrapped
    else:
        engine.model.register_forward_pre_hook(lambda *_: before())


def wait_until(condition: Callable[[], bool], seconds: float = 2.0) -> None:
    """A deadline may gate: fails if the condition has not come true in time."""
    deadline = time.perf_counter() + seconds
    while not condition():
        assert time.perf_counter() < deadline, f"not true within {seconds} s"
        time.sleep(0.002)


def assert_clean(engine: Any) -> None:
    """Within 2 s of the last request's end nothing is left of any request."""
    wait_until(lambda: engine.stats().num_requests == 0)
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_swapped) == (0, 0, 0)
    if stats.kv_blocks_total is not None:
        assert stats.kv_blocks_used == 0
        assert stats.kv_blocks_free == stats.kv_blocks_total
    if stats.swap_blocks_total is not None:
        assert stats.swap_blocks_used == 0
    wait_until(lambda: not getattr(engine.runner, "caches", None) if hasattr(engine, "runner") else True)


def assert_alive(engine: Any) -> None:
    """The cases' "alive": it serves the next request, within 5 s."""
    started = time.perf_counter()
    assert engine.generate([greedy(PA, 4)])[0].token_ids == T0_OUTPUTS["PA"][:4]
    assert time.perf_counter() - started < 5
