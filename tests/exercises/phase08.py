"""Phase 8: where K/V of a position is, and who sees what. (These import torch; there are no weights.)"""

from typing import Any

from tests.exercises.kit import expect, grades

TABLES = [[7, 2, 5, 0], [0, 0, 0, 0], [3, 9, 1, 4]]  # of the sequences a, b and c; shorter ones are padded
BLOCK_SIZE = 4


def slots(rows: list[int], positions: list[int]) -> list[int]:
    import torch

    from phase08_paged_attention.packed_batch import slots_of

    found: Any = slots_of(torch.tensor(TABLES), torch.tensor(rows), torch.tensor(positions), BLOCK_SIZE)
    return found.tolist()


@grades("8.1")
def a_token_is_written_where_its_block_table_says() -> None:
    expect(
        slots([0] * 10, list(range(10))),
        [28, 29, 30, 31, 8, 9, 10, 11, 20, 21],
        when="blocks of 4, the table of row 0 is [7, 2, 5]: the slots of its positions 0 to 9",
        because="Positions 0 to 3 are in block 7, and block 7 begins at slot 28.",
    )


@grades("8.1")
def each_row_goes_through_its_own_table() -> None:
    expect(
        slots([0, 1, 2, 2], [4, 2, 8, 13]),
        [8, 2, 4, 17],
        when="rows 0, 1, 2, 2 at positions 4, 2, 8, 13; tables [7, 2, 5], [0], [3, 9, 1, 4]: their slots",
        because="block_tables has a row per sequence, and rows says which one.",
    )


def seen_by(*rows: range, window: int | None = None) -> Any:
    """What `visible` says of rows whose queries are at these positions (as many in each)."""
    from types import SimpleNamespace

    import torch

    from phase08_paged_attention.gather_attention import visible

    positions = torch.tensor([list(row) for row in rows])
    context = torch.zeros(len(rows), int(positions.max()) + 1, dtype=torch.long)
    return visible(SimpleNamespace(positions=positions, context_slots=context), window)  # type: ignore[arg-type]


def positions(mask: Any) -> list[int]:
    return [position for position, is_seen in enumerate(mask.tolist()) if is_seen]


@grades("8.2")
def a_query_sees_itself_and_everything_before_it() -> None:
    seen = seen_by(range(3))
    expect(
        [positions(seen[0, query]) for query in range(3)],
        [[0], [0, 1], [0, 1, 2]],
        when="a whole prompt of 3 tokens is run: the positions each query sees",
        because="Causal: nothing after its own position, and a token sees itself.",
    )


@grades("8.2")
def a_chunk_with_context_before_it_sees_all_of_that() -> None:
    seen = seen_by(range(5, 8))
    expect(
        [positions(seen[0, query]) for query in range(3)],
        [list(range(6)), list(range(7)), list(range(8))],
        when="5 tokens are computed, a chunk of 3 is run (positions 5, 6, 7): the positions each query sees",
        because="Compare positions: bottom-right, not top-left. Place in the chunk and position are not the same.",
    )


@grades("8.2")
def two_rows_of_one_group_have_masks_of_their_own() -> None:
    seen = seen_by(range(6, 8), range(2))
    expect(
        [positions(seen[row, 0]) for row in range(2)],
        [list(range(7)), [0]],
        when="a's first query is at position 6, b's at position 0: the positions each sees",
        because="queries is [B, Q, 1], context [S]: compare the two and the shape comes by itself.",
    )


@grades("8.2")
def a_window_ends_the_view_backwards() -> None:
    seen = seen_by(range(5, 8), window=3)
    expect(
        [positions(seen[0, query]) for query in range(3)],
        [[3, 4, 5], [4, 5, 6], [5, 6, 7]],
        when="the same chunk at positions 5, 6, 7 with a sliding window of 3",
        because="A window of 3 shows three positions, its own among them.",
    )
