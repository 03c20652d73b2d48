"""Phase 12, the final engine: phase 9 with an allocator that remembers and a runner that guesses."""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Any

from phase03_request_queue.request_queue import RequestQueue
from phase08_paged_attention.forward import make_forward
from phase08_paged_attention.model_runner import ModelRunner
from phase08_paged_attention.paged_kv_cache import PagedKVCache
from phase09_preemption.block_copier import BlockCopier
from phase09_preemption.cpu_swap_manager import CPUSwapManager
from phase12_prefix_and_spec.draft_length import AdaptiveLength, FixedLength
from phase12_prefix_and_spec.draft_model import DraftModelProposer
from phase12_prefix_and_spec.prefix_cache import Allocator, NoPrefixCache, PrefixCachingAllocator
from phase12_prefix_and_spec.proposers import NgramProposer, Proposer
from phase12_prefix_and_spec.scheduler import Scheduler
from phase12_prefix_and_spec.spec_decode import SpeculativeRunner
from shared.config import EngineConfig
from shared.engine import StepEngine
from shared.engine_setup import resolve_for_model
from shared.errors import InvalidConfig
from shared.events import EventLog
from shared.input_processor import InputProcessor
from shared.sampler import Sampler


def build_engine(model: Any, config: EngineConfig, tokenizer: Any = None, draft_model: Any = None) -> StepEngine:
    config = resolve_for_model(config, model, with_blocks=True)
    events = EventLog()
    allocator = make_allocator(config)
    cache = PagedKVCache.for_model(model, allocator.num_blocks, allocator.block_size)
    swap = CPUSwapManager(config.num_swap_blocks, BlockCopier(cache, config.num_swap_blocks))
    return StepEngine(
        inputs=InputProcessor(model, config, tokenizer, pool_slots=config.num_kv_slots),
        intake=RequestQueue(config.queue_capacity, config.queue_timeout_s),
        scheduler=Scheduler(config, allocator, swap, events),
        runner=make_runner(config, model, draft_model, cache, allocator.block_tables),
        events=events,
    )


def make_allocator(config: EngineConfig) -> Allocator:
    """Of the target's pool, and of the draft model's: each knows what its own blocks hold."""
    make = PrefixCachingAllocator if config.enable_prefix_caching else NoPrefixCache
    return make(int(config.kv_num_blocks), config.kv_block_size)


def make_runner(
    config: EngineConfig, model: Any, draft_model: Any, cache: PagedKVCache, block_tables: Mapping[str, Seq[int]]
) -> ModelRunner:
    """Phase 8's where nothing is guessed. Raises InvalidConfig where a draft model is missing or no use."""
    if config.speculative_method == "off":
        return ModelRunner(make_forward(model, config), Sampler(), cache, block_tables)
    if config.speculative_method == "draft" and draft_model is None:
        raise InvalidConfig('speculative_method: "draft" needs a draft model (--draft-model); or use "ngram"')
    proposer: Proposer = NgramProposer()
    if config.speculative_method == "draft":
        proposer = DraftModelProposer(draft_model, model, config, make_allocator(config))
    make_length = AdaptiveLength if config.adaptive_speculation else FixedLength
    draft_length = make_length(config.num_speculative_tokens)
    return SpeculativeRunner(make_forward(model, config), Sampler(), cache, block_tables, proposer, draft_length)
