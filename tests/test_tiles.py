"""How a step's tokens are cut into tiles, against a slow and plain reading of the definition."""

import pytest

from phase08_paged_attention.kernels.tiles import tiles_of
from tests.attention_cases import batch_of

ROWS = [(9, 1), (30, 17), (5, 5), (64, 32), (100, 16)]  # context, tokens


@pytest.mark.parametrize("most", [1, 2, 5, 16, 100])
def test_every_token_is_in_one_tile_with_its_neighbours_of_the_same_row(most: int) -> None:
    batch, _ = batch_of(ROWS, 16)
    wanted, start = [], 0
    for row, (context, num_tokens) in enumerate(ROWS):
        for offset in range(0, num_tokens, most):
            num = min(most, num_tokens - offset)
            wanted.append([row, start + offset, context - num_tokens + offset, num])
        start += num_tokens
    assert tiles_of(batch, most).tolist() == wanted
