"""The steps of a run in a line each."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from handmade_run import STEP, byte_tokenizer, rollout, write_run
from rich.console import Console

from data.errors import UserError
from data.store import RunStore
from relax_core.show import scale
from relax_core.show.overview import read_overview, sparkline
from relax_core.show.reading import read_step
from relax_core.show.text import coloured_text, overview_text, sample_text, step_text, tokens_text, visible
from relax_core.show.tokens import Vocabulary

METRICS = {
    "reward/mean": 0.25,
    "response_len/mean": 12.0,
    "truncated_ratio": 0.5,
    "zero_std/fraction": 0.75,
    "loss": 0.125,
    "eval/sums": 0.5,
    "eval/sums-pass@1": 0.1,
}


def finished(store: RunStore, step: int, **metrics: Any) -> None:
    """A finished step, without tables."""
    store.append_jsonl("metrics.jsonl", {"step": step, **METRICS, **metrics})
    counters = {"samples": 4 * (step + 1), "response_tokens": 1000 * (step + 1)}
    manifest = {"format": 2, "step": step, "weights": {"version": step + 1}, "counters": counters, "tables": {}}
    store.write_manifest(step, {**manifest, "wall_seconds": 2.5})


def shown(content: Any, width: int = 120) -> str:
    out = io.StringIO()
    Console(file=out, width=width, markup=False, highlight=False).print(content)
    return out.getvalue()


def test_a_curve_goes_from_the_lowest_block_to_the_highest() -> None:
    # 0 and 1 are the first and the last of eight blocks; 0.5 is 3.5, which rounds to 4: the fifth
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([2.0, 2.0]) == "▄▄"
    assert sparkline([]) == ""
    # of four values in a width of two the means 0.5 and 2.5
    assert sparkline([0.0, 1.0, 2.0, 3.0], width=2) == "▁█"


def test_a_finished_step_has_its_metrics_and_seconds(tmp_path: Path) -> None:
    store = RunStore(str(tmp_path))
    finished(store, 0)
    finished(store, 1, **{"reward/mean": 0.75})
    overview = read_overview(store)
    row = overview.rows[0]
    # a quarter of the groups is mixed where three quarters have no spread
    assert (row.step, row.reward, row.length, row.mixed, row.loss, row.seconds) == (0, 0.25, 12.0, 0.25, 0.125, 2.5)
    assert overview.rewards == [0.25, 0.75]
    assert overview.facts["reward"] == "0.250 -> 0.750"
    assert overview.facts["eval/sums"] == "0.500 -> 0.500"
    assert "eval/sums-pass@1" not in overview.facts
    assert overview.facts["so far"] == "8 samples, 2,000 response tokens"
    assert overview.facts["weights"] == "version 2"


def test_a_step_that_was_committed_twice_counts_once(tmp_path: Path) -> None:
    store = RunStore(str(tmp_path))
    finished(store, 0)
    finished(store, 0, **{"reward/mean": 0.5})
    store.append_jsonl("metrics.jsonl", {"note": "not of a step"})
    assert [row.reward for row in read_overview(store).rows] == [0.5]


def test_a_step_that_is_not_finished_says_how_far_it_is(tmp_path: Path) -> None:
    store = write_run(tmp_path)
    finished(store, 3)
    (tmp_path / "steps/000005/pieces").mkdir(parents=True)
    overview = read_overview(store)
    assert [(row.step, row.finished, list(row.stages)) for row in overview.rows] == [
        (3, True, []),
        (STEP, False, ["generate", "reward", "advantage"]),
        (5, False, []),
    ]
    assert overview.facts["step 5"] == "not finished: samples are being generated"


def test_of_many_steps_the_newest_are_rows_and_all_are_the_curve(tmp_path: Path) -> None:
    store = RunStore(str(tmp_path))
    for step in range(6):
        finished(store, step)
    overview = read_overview(store, last=2)
    assert [row.step for row in overview.rows] == [4, 5]
    assert len(overview.rewards) == 6
    assert "and 4 earlier steps" in shown(overview_text(overview))


def test_a_folder_that_is_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no rollouts"):
        read_overview(RunStore(str(tmp_path)))


def test_a_folder_with_evaluations_alone_says_how_to_see_them(tmp_path: Path) -> None:
    store = RunStore(str(tmp_path))
    store.write_table("evaluations/000003/sums.parquet", rollout())
    with pytest.raises(UserError, match="only evaluations: sums") as error:
        read_overview(store)
    assert error.value.fix == "Add --eval sums."


def test_a_terminal_acts_on_nothing_that_a_response_holds(tmp_path: Path) -> None:
    sample = read_step(write_run(tmp_path), STEP).samples[0]
    sample.response = "\x1b[2J[bold]gone[/bold]\r\u202e"
    text = shown(sample_text(sample))
    assert "\\x1b[2J[bold]gone[/bold]\\r\\u202e" in text
    assert "\x1b" not in text
    assert visible("a\n\tb é 好") == "a\n\tb é 好"


def test_the_samples_of_both_ends_are_shown(tmp_path: Path) -> None:
    shown_step = read_step(write_run(tmp_path), STEP)
    text = shown(step_text(shown_step, shown_step.samples, "reward", reverse=False, limit=1))
    assert text.index("Highest reward") < text.index("000004-0000-000") < text.index("Lowest reward")
    assert text.index("Lowest reward") < text.index("000004-0000-001")
    assert "000004-0001" not in text
    assert "gap mean 0.1 max 0.2" in text
    text = shown(step_text(shown_step, shown_step.samples, "length", reverse=True, limit=1))
    assert text.index("Shortest") < text.index("Longest")


def test_tokens_of_a_sample_have_the_colours_of_their_gaps(tmp_path: Path) -> None:
    store = write_run(tmp_path / "run")
    content = coloured_text(read_step(store, STEP).samples[0], Vocabulary(byte_tokenizer(tmp_path / "model")))
    assert content is not None
    out = io.StringIO()
    Console(file=out, width=120, force_terminal=True, color_system="truecolor").print(content)
    # "A": -0.2 of 0.2, 0.6 of orange on the dark ground; "B": 0.1, 0.3 of blue
    for letter, colour, alpha in (("A", scale.BELOW, 0.6), ("B", scale.ABOVE, 0.3)):
        red, green, blue = scale.over(colour, alpha, scale.DARK[0])
        assert re.search(rf"48;2;{red};{green};{blue}m{letter}", out.getvalue())
    assert "é" in out.getvalue()


def test_the_tokens_with_the_largest_gap_of_a_sample_are_listed(tmp_path: Path) -> None:
    sample = read_step(write_run(tmp_path), STEP).samples[0]
    content = tokens_text(sample, None)
    lines = shown(content).splitlines()
    # token 0 is "A" (65), -1.2 against -1; token 1 is "B", -0.9
    assert lines[1].startswith("Tokens with the largest gap")
    assert lines[3].split() == ["0", "65", "-", "-1", "-1.2", "-0.2", "1", "1", "3"]
    assert lines[4].split() == ["1", "66", "-", "-1", "-0.9", "0.1", "1", "1", "4"]
