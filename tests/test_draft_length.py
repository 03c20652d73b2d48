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


class KnownThreshold(StepCost):
    """A machine of which only this is known: how likely a guess must be to pay."""

    threshold = 0.0


def machine_with(threshold: float) -> StepCost:
    cost = KnownThreshold()
    cost.threshold = threshold  # type: ignore[misc]
    return cost


@pytest.mark.parametrize(
    ("threshold", "expected"), [(0.7, 0), (2 / 3, 0), (0.5, 1), (0.3, 2), (0.2, 3), (0.19, 4), (0.0, 4)]
)
def test_the_last_guess_is_the_last_that_pays(threshold: float, expected: int) -> None:
    """Of a new sequence two guesses of three are taken to be right: 0.67, 0.44, 0.30, 0.198."""
    assert AdaptiveLength(4, machine_with(threshold)).choose(make_sequence(3)) == expected


def test_an_endless_streak_still_stops_somewhere() -> None:
    length, seq = AdaptiveLength(4, machine_with(0.97)), make_sequence(3)
    for _ in range(500):
        length.note_guesses(seq, 1, 1)
    assert length.choose(seq) == 1


def test_what_was_long_ago_counts_for_little() -> None:
    length, seq = AdaptiveLength(4, machine_with(0.5)), make_sequence(3)
    for num_right in [1] * 90 + [0] * 30:
        length.note_guesses(seq, num_right, 1)
    assert length.choose(seq) == 0


def test_where_guesses_pay_there_is_no_probing_and_the_count_of_silent_steps_begins_after_them() -> None:
    cost = machine_with(0.0)
    length, seq = AdaptiveLength(4, cost), make_sequence(3)
    assert [length.choose(seq) for _ in range(40)] == [4] * 40
    cost.threshold = 0.9  # type: ignore[misc]
    assert [length.choose(seq) for _ in range(33)] == ([0] * 15 + [1]) * 2 + [0]


def test_a_new_sequence_that_is_silent_from_the_start_is_probed_at_the_16th_step() -> None:
    length, seq = AdaptiveLength(4, machine_with(0.9)), make_sequence(3)
    assert [length.choose(seq) for _ in range(16)] == [0] * 15 + [1]


def test_steps_that_are_noted_are_what_its_cost_is_read_off() -> None:
    length = AdaptiveLength(4)
    for step in range(200):
        length.note_step(2, 2 + step % 3, 3, 0.03 + 0.002 * (2 + step % 3))
    assert length.cost.per_token == pytest.approx(0.002)
    assert length.cost.rows / length.cost.weight == pytest.approx(2)
    assert length.cost.out / length.cost.weight == pytest.approx(3)


def test_releasing_an_unknown_sequence_is_no_error() -> None:
    AdaptiveLength(4).release(make_sequence(3))
