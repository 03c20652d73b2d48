"""How many guesses are verified, on machines that do not exist: step times are made up, decisions are checked."""

import pytest

from phase12_prefix_and_spec.draft_length import AdaptiveLength, FixedLength, StepCost
from tests.fakes import make_sequence


def machine(a: float, b: float, num_sequences: int = 1) -> StepCost:
    """A machine whose steps take a + b * T, seen with and without guesses."""
    cost = StepCost()
    for step in range(200):
        num_tokens = num_sequences * (1 + step % 3)
        cost.note(num_sequences, num_tokens, num_sequences, a + b * num_tokens)
    return cost


def test_the_cost_of_a_token_is_read_off_steps_of_different_size() -> None:
    assert machine(a=0.03, b=0.002).per_token == pytest.approx(0.002)
    assert machine(a=0.0, b=0.01, num_sequences=8).per_token == pytest.approx(0.01)


def test_nothing_is_known_from_steps_that_are_all_alike() -> None:
    cost = StepCost()
    assert cost.threshold == 0.0
    for _ in range(50):
        cost.note(8, 8, 8, 0.1)
    assert cost.per_token is None
    assert cost.threshold == 0.0


def with_record(cost: StepCost, num_right: int, num_tried: int, cap: int = 4) -> int:
    length, seq = AdaptiveLength(cap, cost), make_sequence(3)
    for number in range(60):
        length.note_guesses(seq, int(number * num_right / num_tried) - int((number - 1) * num_right / num_tried), 1)
    return length.choose(seq)


def test_where_weights_dominate_even_doubtful_guesses_pay() -> None:
    bandwidth_bound = machine(a=0.03, b=0.0005)
    assert with_record(bandwidth_bound, 9, 10) == 4
    assert with_record(bandwidth_bound, 3, 10) >= 2


def test_where_computing_dominates_only_sure_guesses_pay() -> None:
    compute_bound = machine(a=0.005, b=0.004, num_sequences=8)
    assert with_record(compute_bound, 3, 10) == 0
    assert with_record(compute_bound, 7, 10) == 0
    assert with_record(compute_bound, 1, 1) >= 1


def test_a_sequence_without_guesses_is_probed_now_and_then() -> None:
    length, seq = AdaptiveLength(4, machine(a=0.0, b=0.01, num_sequences=8)), make_sequence(3)
    for _ in range(40):
        length.note_guesses(seq, 0, 1)
    assert [length.choose(seq) for _ in range(48)].count(1) == 3


def test_each_sequence_has_its_own_record_and_leaves_nothing_behind() -> None:
    length, good, bad = AdaptiveLength(4, machine(a=0.03, b=0.004)), make_sequence(3), make_sequence(3)
    for _ in range(40):
        length.note_guesses(good, 4, 4)
        length.note_guesses(bad, 0, 1)
    assert length.choose(good) > length.choose(bad)
    for seq in (good, bad):
        length.release(seq)
    assert not any((length._right, length._tried, length._silent))


def test_fixed_is_fixed() -> None:
    assert FixedLength(3).choose(make_sequence(3)) == 3
