"""Phase 8's packing: which token goes where, checked against a slow and plain reading of the definition."""

import torch

from phase08_paged_attention.gather_attention import AttentionGroup, attention_groups, visible
from phase08_paged_attention.packed_batch import pack
from shared.step import ScheduledSequence, StepPlan
from tests.fakes import make_sequence

BLOCK_SIZE = 4
TABLES = {"a": [7, 2, 5], "b": [0], "c": [3, 9, 1, 4]}
CPU = torch.device("cpu")


def mixed_plan() -> StepPlan:
    """a decodes at position 9, b runs its whole prompt of 3, c runs 6 tokens on top of 5."""
    items = []
    for name, num_prompt, num_computed, num_tokens in (("a", 10, 9, 1), ("b", 3, 0, 3), ("c", 14, 5, 6)):
        seq = make_sequence(num_prompt, name=name)
        seq.num_computed_tokens = num_computed
        items.append(ScheduledSequence.next_tokens(seq, num_tokens))
    return StepPlan(items)


def slot(name: str, position: int) -> int:
    return TABLES[name][position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE


def mixed_groups() -> list[AttentionGroup]:
    return list(attention_groups(pack(mixed_plan(), TABLES, BLOCK_SIZE, CPU), BLOCK_SIZE))


def test_tokens_positions_and_slots_stand_in_the_order_of_the_plan() -> None:
    batch = pack(mixed_plan(), TABLES, BLOCK_SIZE, CPU)
    places = [("a", 9), *(("b", p) for p in range(3)), *(("c", p) for p in range(5, 11))]
    assert batch.positions.tolist() == [position for _, position in places]
    assert batch.slots.tolist() == [slot(name, position) for name, position in places]
    assert batch.token_ids.tolist() == [10 + position for _, position in places]
    assert batch.rows.tolist() == [0, *[1] * 3, *[2] * 6]
    assert (batch.row_starts.tolist(), batch.context_lens.tolist()) == ([0, 1, 4, 10], [10, 3, 11])
    assert batch.block_tables.tolist() == [[7, 2, 5, 0], [0] * 4, [3, 9, 1, 4]]


def test_logits_are_wanted_only_where_a_row_reaches_its_last_known_token() -> None:
    batch = pack(mixed_plan(), TABLES, BLOCK_SIZE, CPU)
    assert (batch.logit_index.tolist(), batch.num_logits) == ([0, 3], [1, 1, 0])


def test_all_logits_of_a_scored_row_are_wanted() -> None:
    batch = pack(mixed_plan(), TABLES, BLOCK_SIZE, CPU, scored_rows={2})
    assert (batch.logit_index.tolist(), batch.num_logits) == ([0, 3, 4, 5, 6, 7, 8, 9], [1, 1, 6])


def test_decodes_and_chunks_form_one_group_each() -> None:
    decodes, chunks = mixed_groups()
    assert decodes.token_index.tolist() == [[0]]
    assert chunks.token_index.tolist() == [[1, 2, 3, 1, 1, 1], [4, 5, 6, 7, 8, 9]]
    assert chunks.is_query.tolist() == [[True] * 3 + [False] * 3, [True] * 6]


def test_the_context_is_every_position_up_to_the_last_one_run_and_padding_is_a_written_slot() -> None:
    decodes, chunks = mixed_groups()
    assert decodes.context_slots.tolist() == [[slot("a", p) for p in range(10)]]
    assert chunks.context_slots.tolist() == [
        [slot("b", p) for p in range(3)] + [slot("b", 0)] * 8,
        [slot("c", p) for p in range(11)],
    ]


def test_a_query_sees_itself_and_what_is_before_it_no_further_than_the_window() -> None:
    _, chunks = mixed_groups()
    seen = visible(chunks, None)
    assert seen[1, 0].tolist() == [position <= 5 for position in range(11)], "bottom-right, not top-left"
    assert seen[0, 0].tolist() == [True] + [False] * 10
    windowed = visible(chunks, 3)
    assert windowed[1, 5].tolist() == [8 <= position <= 10 for position in range(11)]
