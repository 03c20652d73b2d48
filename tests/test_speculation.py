"""Phase 12's guesses, without weights: what counts as right, and where guesses come from."""

from itertools import pairwise

import pytest
import torch

from phase12_prefix_and_spec.acceptance import accepted_length
from phase12_prefix_and_spec.proposers import DraftModelProposer, NgramProposer
from shared.reference import greedy_reference
from shared.tiny_models import tiny_llama
from tests.fakes import make_sequence
from tests.helpers import PA, Q


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
    assert proposer.propose(seq, text, 3) == [5, 6, 7]
    assert proposer.propose(seq, text, 99) == [5, 6, 7, 2, 3, 4]
    assert proposer.propose(seq, [*text, 9], 3) == []


def test_ngram_takes_the_latest_match_and_the_longest_first() -> None:
    seq = make_sequence(3)
    proposer = NgramProposer(sizes=(3, 2))
    assert proposer.propose(seq, [1, 2, 7, 1, 2, 8, 1, 2], 1) == [8]
    assert proposer.propose(make_sequence(3), [0, 1, 2, 7, 5, 1, 2, 8, 0, 1, 2], 1) == [7]


def test_ngram_grown_token_by_token_says_the_same_as_from_scratch() -> None:
    text = [(i * i) % 7 for i in range(60)]
    grown, seq = NgramProposer(), make_sequence(3)
    for end in range(1, len(text)):
        fresh = NgramProposer().propose(make_sequence(3), text[:end], 4)
        assert grown.propose(seq, text[:end], 4) == fresh
    grown.release(seq)
    assert not grown._ends


@torch.inference_mode()
def test_the_draft_model_guesses_its_own_greedy_continuation_after_any_history() -> None:
    """Accepted in full, in part, not at all: its cache is rolled back to what turned out right."""
    proposer, seq = DraftModelProposer(tiny_llama(), 97), make_sequence(3)
    histories = [PA, [*PA, 8], [*PA, 8, 62, 18, 72, 11], [*PA, 8, 62, 5], [*PA, 9], Q[:4], [*PA, 8, 62]]
    for history in histories:
        expected = greedy_reference(tiny_llama(), history, 4)
        assert proposer.propose(seq, history, 4) == expected
    proposer.release(seq)
    assert not proposer._caches


@torch.inference_mode()
def test_a_draft_with_another_vocabulary_never_names_a_token_the_target_has_not() -> None:
    wide = DraftModelProposer(tiny_llama(vocab_size=104), 97)
    for start, end in pairwise(range(0, 90, 7)):
        assert all(token < 97 for token in wide.propose(make_sequence(3), Q[start:end], 6))
    narrow = DraftModelProposer(tiny_llama(vocab_size=60), 97)
    assert narrow.propose(make_sequence(3), [5, 61], 3) == []
