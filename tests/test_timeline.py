"""The timeline: what is drawn is what the events say."""

from shared.events import Event
from shared.timeline import draw, timelines

EVENTS = [
    Event("queued", 0, 0.0, "a"),
    Event("queued", 0, 1.0, "b"),
    Event("admitted", 1, 0.0, "a"),
    Event("chunk", 1, 2.0, "a", num_tokens=5, duration=2.0),
    Event("decode", 2, 4.0, "a", num_tokens=1, duration=2.0),
    Event("finished", 2, 4.0, "a"),
    Event("chunk", 3, 6.0, "b", num_tokens=3, duration=1.0),
    Event("chunk", 4, 7.0, "b", num_tokens=3, duration=1.0),
    Event("decode", 5, 8.0, "b", num_tokens=1, duration=1.0),
    Event("finished", 5, 8.0, "b"),
]


def test_each_request_is_queued_then_prefilled_then_decodes() -> None:
    first, second = (draw(line, start=0.0, seconds_per_cell=1.0, width=8) for line in timelines(EVENTS))
    assert first == "▒▒██"
    assert second == " ····▒▒█"


def test_a_prefill_shorter_than_a_cell_is_drawn_all_the_same() -> None:
    line = timelines(EVENTS)[1]
    assert "▒" in draw(line, start=0.0, seconds_per_cell=8.0, width=1)


def test_a_request_that_never_ran_is_queued_to_its_end() -> None:
    events = [Event("queued", 0, 0.0, "x"), Event("finished", 1, 3.0, "x", detail="abort")]
    assert draw(timelines(events)[0], start=0.0, seconds_per_cell=1.0, width=5) == "···"
