"""A run on one page of Markdown."""

from typing import Any

from relax_core.tracking.report import ROWS, added, curves_of, fenced, run_report

METRICS: list[dict[str, Any]] = [
    {"step": 0, "reward/mean": 0.25, "loss": 0.5, "response_len/mean": 3.0, "grad_norm": 1.0},
    {"step": 1, "reward/mean": 0.75, "loss": 0.25, "response_len/mean": 4.0, "grad_norm": 1.0, "eval/sums": 0.5},
]
SECONDS = {"generate": 6.0, "train": 2.0, "whole steps": 10.0}


def report(**changes: Any) -> str:
    given = {"total_steps": 4, "metrics": METRICS, "seconds": SECONDS, "made": 2, **changes}
    return run_report("/runs/my_run", **given)


def test_it_begins_with_where_the_run_is() -> None:
    assert report().startswith("## my\\_run: step 2 of 4, running\n")
    assert report(total_steps=2).startswith("## my\\_run: step 2 of 2, finished\n")
    assert "step 2 of 4, ended by an error: no \\<disk\\>\n" in report(ended="ended by an error: no <disk>")
    assert "step 0 of 4, running" in report(metrics=[], seconds={}, made=0)


def test_numbers_have_their_first_last_least_and_most() -> None:
    assert "| mean reward | 0.25 | 0.75 | 0.25 | 0.75 |" in report()
    assert "| eval/sums | 0.5 | 0.5 | 0.5 | 0.5 |" in report()


def test_reward_comes_first_then_an_evaluation_then_what_there_is_room_for() -> None:
    assert [curve.title for curve in curves_of(METRICS)] == ["mean reward", "eval/sums", "response length"]
    assert curves_of(METRICS)[1].points == [(1, 0.5)]
    assert curves_of([]) == []


def test_time_by_stage_is_the_longest_first_with_what_no_stage_took() -> None:
    # 10 s in 2 steps: generate 6, train 2, and 2 that no stage has
    rows = [line for line in report().splitlines() if line.endswith("% |")]
    assert rows == [
        "| generate | 3.00 | 6.0 | 60 % |",
        "| train | 1.00 | 2.0 | 20 % |",
        "| between the stages | 1.00 | 2.0 | 20 % |",
    ]


def test_seconds_add_up_over_steps() -> None:
    manifests = [{"seconds": {"train": 1.0}, "wall_seconds": 2.0}, {"seconds": {"train": 2.0}, "wall_seconds": 3.0}]
    assert added({}, manifests) == {"train": 3.0, "whole steps": 5.0}


def test_texts_of_a_model_cannot_end_their_block_and_are_no_markup() -> None:
    nasty = "```\n# not a title <img src=x>"
    sample = {"reward": 1.0, "length": 3, "label": "a`b", "prompt": "p", "response": nasty}
    text = report(best=[sample])
    assert f"````\np\n--- response ---\n{nasty}\n````" in text
    assert "a\\`b" in text
    assert fenced("`````") == "``````\n`````\n``````"


def event(kind: str, **more: Any) -> dict[str, Any]:
    return {"time": 0.0, "kind": kind, "step": 3, "who": "train", "cause": "a | b", **more}


def test_what_was_resumed_and_done_again_is_counted_and_told() -> None:
    events = [event("driver_started"), event("stage_finished"), event("driver_started"), event("stage_reused")]
    text = report(events=events)
    assert "| 1 | a stage was finished before, and was taken from the run directory |" in text
    assert "| 3 | stage reused | train | a \\| b |" in text
    assert text.count("| driver started |") == 1  # the first start is no resumption


def test_a_run_under_which_nothing_died_says_so() -> None:
    assert "one process has made every step" in report(events=[event("driver_started")])


def test_a_run_of_many_retries_has_a_table_that_can_be_read() -> None:
    text = report(events=[event("retry") for _ in range(200)])
    assert text.count("| retry |") == ROWS
    assert f"The newest {ROWS} of 200" in text
