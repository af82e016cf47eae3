"""What the terminal shows, with and without a terminal, and the closing summary."""

import asyncio
import io
import shlex
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pytest
from rich.console import Console

from data.store import RunStore
from relax_core.tracking import progress as module
from relax_core.tracking.jsonl import append_metrics
from relax_core.tracking.progress import Progress
from relax_core.tracking.summary import closing_summary, resume_command

METRICS = {
    "reward/mean": 0.5,
    "response_len/mean": 20.0,
    "loss": 0.0123,
    "tokens/response": 640.0,
    "samples/scored": 32.0,
    "eval/sums": 0.25,
    "eval/sums-pass@1": 0.25,
    "eval/sums-response_len/mean": 3.0,
}


def plain() -> tuple[Progress, io.StringIO]:
    out = io.StringIO()
    return Progress(Console(file=out, width=40, highlight=False)), out


def terminal() -> tuple[Progress, io.StringIO]:
    out = io.StringIO()
    return Progress(Console(file=out, width=80, force_terminal=True, highlight=False)), out


def test_a_step_is_one_plain_line_however_narrow():
    progress, out = plain()
    progress.begin("runs/a", 3)
    progress.step_done(0, METRICS, {"generate": 6.4, "train": 1.6})
    assert out.getvalue().splitlines() == [
        "run runs/a: 3 steps",
        # 640 response tokens in the 6.4 s of generate: 100 tokens/s
        "step 1/3  reward 0.500  length 20.0  loss 0.0123  100 tokens/s  8.0 s (generate 6.4 s, train 1.6 s)",
    ]


def test_metrics_that_are_missing_are_left_out():
    progress, out = plain()
    progress.step_done(4, {"samples/scored": 0.0}, {})
    assert out.getvalue() == "step 5  no sample has a score  0.0 s\n"


def test_a_critic_says_how_well_it_foresees():
    progress, out = plain()
    critic = {"critic/value_loss": 0.51234, "critic/explained_variance": 0.125, "critic/grad_norm": 1.0}
    progress.step_done(0, {"reward/mean": 0.5, "loss": 0.1, **critic}, {})
    assert out.getvalue() == "step 1  reward 0.500  loss 0.1  value loss 0.5123  explained variance 0.12  0.0 s\n"


def test_quick_stages_are_silent_and_those_with_counts_are_not():
    progress, out = plain()
    progress.begin("r", 2)
    with progress.stage(0, "commit"):
        pass
    with progress.stage(0, "generate"):
        progress.update(3, 4, 17)
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[1].startswith("step 1/2  generate  3/4  17 tokens  ")


def test_unfinished_stages_report_now_and_then(monkeypatch):
    monkeypatch.setattr(module, "PLAIN_INTERVAL_S", 0.0)
    progress, out = plain()
    with progress.stage(-1, "evaluate"):
        progress.update(0, 2, 0)
        progress.update(1, 2, 5)
    lines = out.getvalue().splitlines()
    assert [line.split("  ")[:3] for line in lines] == [
        ["before training", "evaluate", "0/2"],
        ["before training", "evaluate", "1/2"],
        ["before training", "evaluate", "1/2"],
    ]


def test_a_failed_stage_says_so_and_lets_the_error_through():
    progress, out = plain()
    with pytest.raises(ZeroDivisionError), progress.stage(0, "train"):
        raise ZeroDivisionError
    assert "train" in out.getvalue()
    assert "ended by ZeroDivisionError" in out.getvalue()
    progress.update(1, 1, 1)  # nothing runs: nothing to show, no error


def test_a_stage_that_ends_because_of_another_is_no_error():
    progress, out = plain()
    with pytest.raises(asyncio.CancelledError), progress.stage(0, "generate"):
        raise asyncio.CancelledError
    assert "stopped" in out.getvalue()
    assert "Error" not in out.getvalue()


@pytest.mark.parametrize(
    ("first", "text"), [(0, "r: 3 steps"), (1, "goes on with step 2 of 3"), (3, "is complete: 3 steps")]
)
def test_a_run_says_where_it_starts(first, text):
    progress, out = plain()
    progress.begin("r", 3, first)
    assert text in out.getvalue()


def test_reused_stages_and_notes_are_shown_as_they_are():
    progress, out = plain()
    progress.reused(0, "generate")
    progress.note("[bold]not markup[/bold]")
    assert out.getvalue() == "step 1  generate: finished before, reused\n[bold]not markup[/bold]\n"


def test_the_moving_line_of_a_terminal_goes_away_and_leaves_the_lines():
    progress, out = terminal()
    progress.begin("r", 2)
    with progress.stage(0, "generate"):
        progress.update(1, 4, 10)
        progress.note("a note meanwhile")
        with progress.stage(0, "evaluate"):
            pass
        progress.update(4, 4, 40)
    progress.step_done(0, METRICS, {"generate": 1.0})
    assert progress._live is None
    text = out.getvalue()
    assert "a note meanwhile" in text
    assert "generate  4/4  40 tokens" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h")  # the cursor is shown again


def test_threads_may_report_at_once_on_a_terminal():
    progress, _ = terminal()
    with progress.stage(0, "generate"):

        def work(number: int) -> None:
            for i in range(20):
                progress.update(i, 20, i)
                with progress.stage(0, f"s{number}"):
                    progress.note("x")

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads)
    assert progress._live is None


def test_the_closing_text_has_scores_and_commands():
    progress, out = plain()
    progress.begin("runs/a", 2)
    progress.step_done(0, {"reward/mean": 0.25}, {})
    progress.step_done(1, METRICS, {})
    text = progress.closing_text()
    assert "\n  mean reward 0.250 (step 1) -> 0.500 (step 2)\n" in text
    assert "\n  eval/sums 0.250 (step 2)\n" in text
    assert "pass@1" not in text
    assert "relax show runs/a --step 1 --html" in text
    assert text in out.getvalue()


def test_the_closing_text_of_a_resumed_run_begins_with_its_first_step():
    progress, _ = plain()
    earlier = [
        {"step": 0, "time": 1.0, "reward/mean": 0.125, "eval/sums": 0.5},
        {"step": 1, "time": 2.0, "reward/mean": None, "eval/sums": 0.75},  # NaN is null in the file
    ]
    progress.begin("runs/a", 4, 2, earlier)
    progress.step_done(2, {"reward/mean": 0.25}, {})
    text = progress.closing_text()
    assert "1 step done now, 4 in all" in text
    assert "mean reward 0.125 (step 1) -> 0.250 (step 3)" in text
    assert "eval/sums 0.500 (step 1) -> 0.750 (step 2)" in text
    assert progress.outcome() == "3 of 4 steps, mean reward 0.125 (step 1) -> 0.250 (step 3)"


def test_the_sql_of_the_summary_works(tmp_path):
    # A folder whose name needs quoting in the shell and in SQL.
    run = tmp_path / "it's a run"
    store = RunStore(str(run))
    for step, scores in enumerate(([0.0, 1.0], [1.0, 1.0])):
        ids = [f"{step}-{i}" for i in range(2)]
        rollout = {
            "sample_id": ids,
            "step": pa.array([step] * 2, pa.int32()),
            "response_length": [3, 4],
            "prompt": ["p", "q"],
            "response": ["a", "b"],
            "label": ["1", "2"],
        }
        store.write_table(store.step_path(step, "rollout.parquet"), pa.table(rollout))
        reward = pa.table({"sample_id": ids, "reward": np.array(scores, np.float32)})
        store.write_table(store.step_path(step, "reward.parquet"), reward)
        append_metrics(store, step, {"reward/mean": float(np.mean(scores)), "loss": 0.5})
    text = closing_summary(str(run), last_step=1)
    (command,) = [line.split(":", 1)[1] for line in text.splitlines() if " -c " in line]
    words = shlex.split(command)
    assert words[0] == sys.executable
    assert "0.5" in subprocess.run(words, check=True, capture_output=True, text=True).stdout  # mean reward of step 0


def test_a_run_without_steps_shows_no_tables():
    assert "parquet" not in closing_summary("r")


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["/x/bin/relax", "train", "--lr", "1"], "relax train --lr 1 --run-dir 'my run'"),
        (["relax", "train", "--run-dir", "my run"], "relax train --run-dir 'my run'"),
        (["relax", "train", "--run-dir=my run"], "relax train '--run-dir=my run'"),
        (["python"], "relax train --config 'my run/config.yaml' --run-dir 'my run'"),
        ([], "relax train --config 'my run/config.yaml' --run-dir 'my run'"),
    ],
)
def test_the_resume_command_is_the_same_command_with_the_run(argv, command, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: f"/x/bin/{name}")
    assert resume_command("my run", argv) == command
