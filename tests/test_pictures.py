"""Pictures and step records: what is drawn is what an engine did."""

from shared.pictures import bars, block_map, budget_picture, timeline_picture
from shared.step_record import watch
from shared.workshop.lab import ask, build, fresh_model, play


def test_a_watched_engine_records_every_step_as_it_ran_it() -> None:
    engine = build(6, fresh_model(), kv_block_size=4, kv_num_blocks=16)
    records = watch(engine)
    outputs = engine.generate([ask([5, 17, 33, 8, 21], 3), ask([6, 18], 2)])
    engine.close()
    assert [[(row.kind, row.num_tokens) for row in record.rows] for record in records] == [
        [("prefill", 5), ("prefill", 2)],
        [("decode", 1), ("decode", 1)],
        [("decode", 1)],
    ]
    assert [record.number for record in records] == [1, 2, 3]
    assert [len(record.block_tables["req-1"]) for record in records] == [2, 2, 2]
    assert "req-1        prefill       5" in records[0].text
    assert [len(output.token_ids) for output in outputs] == [3, 2]


def test_played_requests_are_counted_in_forward_passes() -> None:
    requests = [ask([5, 17, 33], 4), ask([6, 18, 34], 4)]
    one, two, eight = (play(phase, requests) for phase in (1, 2, 8))
    assert [run.num_passes for run in (one, two, eight)] == [8, 8, 4]
    assert one.passes_to_first_token() == {"req-1": 1, "req-2": 5}
    assert two.passes_to_first_token() == {"req-1": 1, "req-2": 2}
    assert eight.passes_to_first_token() == {"req-1": 1, "req-2": 1}


def test_every_picture_is_a_png_with_one_bar_for_each_thing_that_was_run() -> None:
    run = play(6, [ask([5, 17, 33], 3), ask([6, 18], 2)], kv_block_size=4, kv_num_blocks=4)
    budget = budget_picture(run.records, budget=8)
    assert len(budget.axes[0].patches) == sum(len(record.rows) for record in run.records)
    blocks = block_map(run.records, num_blocks=4)
    assert len(blocks.axes[0].patches) == 4 * len(run.records)
    for picture in (budget, blocks, timeline_picture(run.events), bars({"a": 1.5, "b": 2}, "things")):
        assert picture._repr_png_().startswith(b"\x89PNG")
