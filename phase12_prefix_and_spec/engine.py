"""Phase 12, the final engine: phase 9 with an allocator that remembers and a runner that guesses."""

from typing import Any

from phase03_request_queue.request_queue import RequestQueue
from phase08_paged_attention.paged_kv_cache import PagedKVCache
from phase09_preemption.block_copier import BlockCopier
from phase09_preemption.cpu_swap_manager import CPUSwapManager
from phase12_prefix_and_spec.draft_length import AdaptiveLength, FixedLength
from phase12_prefix_and_spec.prefix_cache import NoPrefixCache, PrefixCachingAllocator
from phase12_prefix_and_spec.proposers import DraftModelProposer, NgramProposer, NoProposer, Proposer
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
    make_allocator = PrefixCachingAllocator if config.enable_prefix_caching else NoPrefixCache
    allocator = make_allocator(int(config.kv_num_blocks), config.kv_block_size)
    cache = PagedKVCache.for_model(model, allocator.num_blocks, allocator.block_size)
    swap = CPUSwapManager(config.num_swap_blocks, BlockCopier(cache, config.num_swap_blocks))
    proposer = make_proposer(config, model, draft_model)
    make_length = AdaptiveLength if config.adaptive_speculation else FixedLength
    draft_length = make_length(config.num_speculative_tokens)
    return StepEngine(
        inputs=InputProcessor(model, config, tokenizer, pool_slots=config.num_kv_slots),
        intake=RequestQueue(config.queue_capacity, config.queue_timeout_s),
        scheduler=Scheduler(config, allocator, swap, events),
        runner=SpeculativeRunner(model, Sampler(), cache, allocator.block_tables, proposer, draft_length),
        events=events,
    )


def make_proposer(config: EngineConfig, model: Any, draft_model: Any) -> Proposer:
    """Raises InvalidConfig where the draft model is missing."""
    if config.speculative_method == "ngram":
        return NgramProposer()
    if config.speculative_method == "draft":
        if draft_model is None:
            raise InvalidConfig('speculative_method: "draft" needs a draft model; pass one, or use "ngram"')
        return DraftModelProposer(draft_model, model.get_input_embeddings().num_embeddings)
    return NoProposer()
