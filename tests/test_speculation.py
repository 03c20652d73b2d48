"""Phase 12's guesses: what counts as right, and where guesses come from."""

from itertools import pairwise
from typing import Any

import pytest

from phase08_paged_attention.model_runner import ModelRunner
from phase12_prefix_and_spec.acceptance import accepted_length
from phase12_prefix_and_spec.draft_model import DraftModelProposer
from phase12_prefix_and_spec.prefix_cache import Allocator, NoPrefixCache, PrefixCachingAllocator
from phase12_prefix_and_spec.proposers import NgramProposer, Outlook, Proposer
from shared.config import EngineConfig
from shared.errors import InvalidConfig
from shared.reference import greedy_reference
from shared.request import Request
from shared.sequence import Sequence
from shared.step import StepPlan
from shared.tiny_models import tiny_llama
from tests.fakes import make_sequence
from tests.helpers import PA, PB, PC, Q


def guesses(proposer: Proposer, seq: Sequence, token_ids: list[int], num_tokens: int) -> list[int]:
    return list(proposer.propose([Outlook(seq, token_ids, num_tokens)])[0].token_ids)


@pytest.mark.parametrize(
    ("draft", "chosen", "expected"),
    [
        ([], [5], 0),
        ([5], [5, 6], 1),
        ([5], [4, 6], 0),
        ([5, 6, 7], [5, 6, 7, 8], 3),
        ([5, 6, 7], [5, 9, 7, 8], 1),
        ([5, 6, 7], [4, 6, 7, 8], 0),
    ],
)
def test_a_guess_counts_only_if_all_before_it_were_right(draft: list[int], chosen: list[int], expected: int) -> None:
    assert accepted_length(draft, chosen) == expected


def test_ngram_copies_what_followed_the_last_few_tokens_before() -> None:
    seq = make_sequence(3)
    proposer = NgramProposer()
    text = [1, 2, 3, 4, 5, 6, 7, 2, 3, 4]
    assert guesses(proposer, seq, text, 3) == [5, 6, 7]
    assert guesses(proposer, seq, text, 99) == [5, 6, 7, 2, 3, 4]
    assert guesses(proposer, seq, [*text, 9], 3) == []


def test_ngram_takes_the_latest_match_and_the_longest_first() -> None:
    seq = make_sequence(3)
    proposer = NgramProposer(sizes=(3, 2))
    assert guesses(proposer, seq, [1, 2, 7, 1, 2, 8, 1, 2], 1) == [8]
    assert guesses(proposer, make_sequence(3), [0, 1, 2, 7, 5, 1, 2, 8, 0, 1, 2], 1) == [7]


def test_ngram_forgets_whoever_is_released_and_minds_no_stranger() -> None:
    seq, proposer = make_sequence(3), NgramProposer(sizes=(1,))
    assert guesses(proposer, seq, [5, 5], 1) == [5], "the very first token counts as well"
    proposer.release(seq)
    proposer.release(make_sequence(3))
    assert not proposer._indexed
    assert not proposer._ends


def test_ngram_grown_token_by_token_says_the_same_as_from_scratch() -> None:
    text = [(i * i) % 7 for i in range(60)]
    grown, seq = NgramProposer(), make_sequence(3)
    for end in range(1, len(text)):
        fresh = guesses(NgramProposer(), make_sequence(3), text[:end], 4)
        assert guesses(grown, seq, text[:end], 4) == fresh
    grown.release(seq)
    assert not grown._ends


def proposer_of(draft: Any = None, allocator: Allocator | None = None, budget: int = 512) -> DraftModelProposer:
    config = EngineConfig(prefill_budget_tokens=budget)
    return DraftModelProposer(draft or tiny_llama(), tiny_llama(), config, allocator or NoPrefixCache(64, 4))


def sequence_of(token_ids: list[int], name: str = "s") -> Sequence:
    seq = make_sequence(len(token_ids), name=name)
    seq.request = Request(token_ids, seq.params)
    seq.token_ids = list(token_ids)
    return seq


def count_runs(proposer: DraftModelProposer) -> list[list[int]]:
    """Tokens of each row, of each pass, as they happen."""
    passes: list[list[int]] = []
    execute = proposer.runner.execute

    def counted(plan: StepPlan) -> Any:
        passes.append([item.num_tokens for item in plan.items])
        return execute(plan)

    proposer.runner.execute = counted  # type: ignore[method-assign]
    return passes


HISTORIES = [PA, [*PA, 8], [*PA, 8, 62, 18, 72, 11], [*PA, 8, 62, 18, 72, 11, 5], [*PA, 8, 62, 18, 72, 11, 5, 9, 4, 4]]


@pytest.mark.parametrize("make_allocator", [NoPrefixCache, PrefixCachingAllocator])
def test_the_draft_model_guesses_its_own_greedy_continuation_after_any_history(make_allocator: type[Allocator]) -> None:
    """Accepted in full, in part, not at all: its progress goes back to what turned out right."""
    proposer, seq = proposer_of(allocator=make_allocator(64, 4)), sequence_of(PA)
    for history in HISTORIES:
        assert guesses(proposer, seq, history, 4) == greedy_reference(tiny_llama(), history, 4)
        proposer.allocator.check_integrity()
    proposer.release(seq)
    assert not proposer._views
    assert proposer.allocator.num_free_blocks == 64


def test_after_full_acceptance_the_draft_catches_up_with_the_guess_it_never_ran() -> None:
    proposer, seq = proposer_of(), sequence_of(PA)
    passes = count_runs(proposer)
    first = guesses(proposer, seq, PA, 3)
    guesses(proposer, seq, [*PA, *first, 50], 3)
    assert passes == [[8], [1], [1], [2], [1], [1]], "the last guess, and the token after it"
    guesses(proposer, seq, [*PA, *first, 50, 51], 1)
    assert passes[6:] == [[1]], "all guesses wrong: back to the token that came instead"


def test_all_sequences_of_a_step_are_guessed_at_in_the_same_passes() -> None:
    proposer = proposer_of()
    passes = count_runs(proposer)
    wanted = [(PA, 3), (PB, 1), (PC, 0), (Q[:20], 2)]
    outlooks = [Outlook(sequence_of(prompt, str(i)), prompt, k) for i, (prompt, k) in enumerate(wanted)]
    made = [list(guesses.token_ids) for guesses in proposer.propose(outlooks)]
    assert made == [greedy_reference(tiny_llama(), prompt, k) if k else [] for prompt, k in wanted]
    assert passes == [[8, 8, 20], [1, 1], [1]]


def test_whoever_is_not_in_the_step_was_preempted_and_loses_its_kv() -> None:
    proposer = proposer_of()
    a, b = sequence_of(PA, "a"), sequence_of(PB, "b")
    proposer.propose([Outlook(a, PA, 2), Outlook(b, PB, 2)])
    proposer.propose([Outlook(a, [*PA, 1], 0)])
    assert set(proposer.allocator.block_tables) == {"a"}, "it is in the step, though it wants no guess"
    assert guesses(proposer, b, PB, 3) == greedy_reference(tiny_llama(), PB, 3)
    assert set(proposer.allocator.block_tables) == {"b"}


def test_a_long_history_is_caught_up_with_in_chunks_and_not_guessed_at_before() -> None:
    proposer, seq = proposer_of(budget=16), sequence_of(Q[:40])
    passes = count_runs(proposer)
    text = Q[:40]
    for expected in (0, 0, 2):
        made = guesses(proposer, seq, text, 2)
        assert len(made) == expected
        text = [*text, 7]
    assert made == greedy_reference(tiny_llama(), text[:-1], 2)
    assert passes == [[16], [16], [10], [1]]


def test_what_one_pass_has_no_budget_for_waits_for_the_next_step_and_not_for_the_next_pass() -> None:
    proposer = proposer_of(budget=12)
    outlooks = [Outlook(sequence_of(prompt, str(i)), prompt, 2) for i, prompt in enumerate((PA, PB, PC))]
    passes = count_runs(proposer)
    assert [len(guesses.token_ids) for guesses in proposer.propose(outlooks)] == [2, 0, 0]
    assert passes == [[8, 4], [1]]


def test_a_full_pool_of_the_drafts_own_costs_guesses_and_nothing_else() -> None:
    proposer = proposer_of(allocator=NoPrefixCache(3, 4))
    a, b = sequence_of(PA, "a"), sequence_of(PB, "b")
    made = proposer.propose([Outlook(a, PA, 3), Outlook(b, PB, 3)])
    assert [len(guesses.token_ids) for guesses in made] == [3, 0]


def test_the_drafts_pool_remembers_prefixes_and_never_a_guess() -> None:
    proposer = proposer_of(allocator=PrefixCachingAllocator(64, 2))
    passes = count_runs(proposer)
    first = sequence_of(PA, "first")
    wrong = guesses(proposer, first, PA, 4)
    proposer.release(first)
    assert proposer.allocator.find_prefix(sequence_of([*PA, *wrong, 1])) == proposer.allocator.find_prefix(
        sequence_of([*PA, 1])
    )
    guesses(proposer, sequence_of([*PA, 3], "second"), [*PA, 3], 1)
    assert passes[-1] == [1]


def test_the_draft_is_the_same_runner_as_the_targets() -> None:
    assert type(proposer_of().runner) is ModelRunner


def test_padding_of_another_size_is_cut_or_filled() -> None:
    wide = proposer_of(tiny_llama(vocab_size=104))
    for start, end in pairwise(range(0, 90, 7)):
        assert all(token < 97 for token in guesses(wide, sequence_of(Q[start:end]), Q[start:end], 6))
    narrow = proposer_of(tiny_llama(vocab_size=60))
    assert guesses(narrow, sequence_of([5, 61]), [5, 61], 3) == []
    assert len(guesses(narrow, sequence_of([5, 6]), [5, 6], 3)) == 3


def test_a_draft_model_with_another_vocabulary_is_refused_by_name() -> None:
    with pytest.raises(InvalidConfig, match="draft_model: embeds 2,000 tokens and the model 97"):
        proposer_of(tiny_llama(vocab_size=2000))
