"""The learning run: sums that are held out, what a run's steps are read as, the table and the picture of them."""

import json
import math
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu"


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    yield from imported("curves", monkeypatch)


@pytest.fixture
def learning(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    yield from imported("learning", monkeypatch)


def imported(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """As a program beside its neighbours; what it changes in this process is taken back."""
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    before = set(sys.modules)
    yield __import__(name)
    for other in set(sys.modules) - before:
        if str(getattr(sys.modules[other], "__file__", None) or "").startswith(str(FOLDER)):
            del sys.modules[other]


def test_no_held_out_sum_is_seen_in_training(learning: ModuleType) -> None:
    training, held_out = learning.sums()

    def pairs(prompt: str) -> list[frozenset[str]]:
        return [frozenset(line.split(" =")[0].split(" + ")) for line in prompt.splitlines()]

    asked = {pairs(row["input"])[-1] for row in held_out}
    seen = {pair for row in training for pair in pairs(row["input"])}
    assert len(asked) == len(held_out) == 256
    assert not asked & seen
    for row in training[:50] + held_out[:50]:
        lines = row["input"].splitlines()
        assert len(lines) == 5
        results = [sum(map(int, line.split(" =")[0].split(" + "))) for line in lines]
        assert [int(line.split("= ")[1]) for line in lines[:-1]] == results[:-1]
        assert int(row["label"]) == results[-1]
    assert learning.sums() == (training, held_out)


def recorded(run: Path, steps: int) -> None:
    """A run whose rewards are 0.1, 0.2, ..., evaluated before the first step (0.25) and after the second (0.5)."""
    lines = []
    for step in range(steps):
        folder = run / "steps" / f"{step:06d}"
        (folder / "stages").mkdir(parents=True)
        spent = {"generate": 1.0 + step, "train": 0.5, "evaluate": 2.0 if step == 1 else 0.0}
        (folder / "manifest.json").write_text(json.dumps({"wall_seconds": 2.0 + step, "seconds": spent}))
        lines.append(
            {"step": step, "reward/mean": 0.1 * (step + 1), "train_rollout_logprob_abs_diff": 0.01, "entropy_loss": 1}
        )
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for step, stage, value in ((0, "evaluate_before", 0.25), (1, "evaluate", 0.5)):
        found = {"values": {"metrics": {"eval/sums": value}}}
        (run / "steps" / f"{step:06d}" / "stages" / f"{stage}.json").write_text(json.dumps(found))


def test_steps_are_read_with_their_evaluations_by_updates_done(curves: ModuleType, tmp_path: Path) -> None:
    assert curves.finished(tmp_path / "nothing") == []
    recorded(tmp_path / "run", 4)
    rows = curves.finished(tmp_path / "run")
    assert [row["reward"] for row in rows] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert math.isnan(rows[0]["grad_norm"])  # not recorded
    assert curves.evaluations(rows) == [(0, 0.25), (2, 0.5)]
    assert curves.middle(rows) == 4.5  # of 4 and 5: the first two warm up
    assert curves.middle(rows, "generate") == 3.5
    # a step that is being written ends what is read
    (tmp_path / "run/steps/000003/manifest.json").write_text("{")
    assert len(curves.finished(tmp_path / "run")) == 3


def test_json_table_and_picture_are_written_and_made_again_from_the_json(curves: ModuleType, tmp_path: Path) -> None:
    recorded(tmp_path / "run", 3)
    runs: dict[int, Any] = {0: curves.finished(tmp_path / "run"), 1: []}
    about = {"steps": 60}
    curves.write(runs, about, tmp_path, whole=False)
    content = json.loads((tmp_path / "learning.json").read_text())
    assert ["seed 0: steps", "3", "60"] in content["rows"]
    assert not (tmp_path / "learning.md").exists()
    runs = {int(seed): rows for seed, rows in content["seeds"].items()}
    curves.write(runs, about, tmp_path, whole=True)
    shown = (tmp_path / "learning.md").read_text()
    assert "| seed 0: held-out sums, greedy, first to last | 0.250 -> 0.500 (best 0.500) | rises |" in shown
    pytest.importorskip("matplotlib", reason="the picture needs the extra `plot`")
    assert (tmp_path / "learning.png").stat().st_size > 10_000


@pytest.mark.parametrize("cpu", [True, False])
def test_the_options_of_a_run_are_known_and_further_ones_win(learning: ModuleType, tmp_path: Path, cpu: bool) -> None:
    from relax_core.config.parser import read_given

    chosen = Namespace(work=tmp_path, model=tmp_path / "model", steps=60, lr="2e-5", cpu=cpu, rehearse=False)
    chosen.more = ["--lr", "1e-5"]
    config, _, notes = read_given(learning.options(chosen, 7), {})
    assert not notes
    assert config.rollout.rollout_stop == ["\n"]
    assert (config.rollout.rollout_batch_size, config.rollout.n_samples_per_prompt) == (32, 8)
    assert config.optimizer.lr == 1e-5  # what is given further wins
    assert config.cluster.colocate is not cpu
    assert config.run.run_dir == str(tmp_path / "seed-7")


def test_something_else_than_a_model_is_told_in_a_line(
    learning: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(sys, "argv", ["learning.py", str(tmp_path / "file"), "--work", str(tmp_path / "work")])
    with pytest.raises(SystemExit, match=r"learning: .*file exists but is not a complete model folder"):
        learning.main()
