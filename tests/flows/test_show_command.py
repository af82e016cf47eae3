"""``relax show`` on a run of the real loop, with fake models, and on runs written by hand."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeBackend
from handmade_run import IDS, STEP, batch, byte_tokenizer, reward, rollout, write_run
from loop import run_plain, small_config
from recorded_runs import OPTIONS, files

from data.schema import FORWARD
from data.schema import table as make_table
from data.store import RunStore
from flows.cli.main import main
from relax_core.tracking.summary import closing_summary


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, sums: Path) -> Path:
    """Two steps, with evaluations, of an estimator whose rewards have a KL: the trainer's log-probs are stored."""
    name = "reinforce_plus_plus"
    options = {"advantage_estimator": name, **OPTIONS[name], "num_rollout": 2}
    evaluated = {"eval_interval": 2, "eval_prompt_data": ["sums", str(sums)], "n_samples_per_eval_prompt": 1}
    config = small_config(tmp_path_factory.mktemp("shown"), tiny_model, sums, **options, **evaluated)
    return Path(run_plain(config, FakeBackend())["run"])


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """What the command prints."""
    capsys.readouterr()
    assert main(["show", *words]) == code
    seen = capsys.readouterr()
    return seen.err if code else seen.out


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in told(capsys, *words, "--json").splitlines()]


def test_a_run_shows_its_steps_and_the_samples_of_the_newest(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(run)
    text = told(capsys, str(run))
    assert "steps 0 to 1" in text
    assert "eval/sums" in text
    assert text.index("Step 1") < text.index("Highest reward") < text.index("000001-")
    assert "000000-" not in text
    assert files(run) == before


def test_steps_and_samples_are_rows_of_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = rows(capsys, str(run))
    assert [row["step"] for row in steps] == [0, 1]
    assert all(row["reward"] is not None and row["seconds"] is not None for row in steps)
    samples = rows(capsys, str(run), "--step", "0", "--sort", "gap")
    assert len(samples) == 4
    gaps = [row["gap_max"] for row in samples]
    assert gaps == sorted(gaps, reverse=True)
    assert rows(capsys, str(run), "--step", "0", "--sort", "gap", "--limit", "1") == samples[:1]
    one = samples[2]["sample_id"]
    assert rows(capsys, str(run), "--sample", one) == [samples[2]]
    assert len(rows(capsys, str(run), "--group", "000000-0001")) == 2


def test_a_page_is_written_here_under_the_name_of_run_and_step(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    told(capsys, str(run), "--html")
    text = (tmp_path / "run-step-1.html").read_text()
    assert "000001-0000" in text
    assert '"texts": [' in text  # the model's tokenizer is there
    told(capsys, str(run), "--step", "0", "--html", "out/page.html")
    assert "000000-0000" in (tmp_path / "out/page.html").read_text()


def test_the_commands_at_the_end_of_a_run_show_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "it's a run")
    monkeypatch.chdir(tmp_path)
    text = closing_summary("it's a run", last_step=STEP)
    overview, page = (shlex.split(line.split(":", 1)[1]) for line in text.splitlines() if " show " in line)
    assert overview[:2] == page[:2] == ["relax", "show"]
    assert "it's a run" in told(capsys, *overview[2:])
    told(capsys, *page[2:])
    assert (tmp_path / f"it's a run-step-{STEP}.html").exists()


def test_an_evaluation_is_shown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Evaluation sums of step 1" in told(capsys, str(run), "--eval", "sums")
    assert len(rows(capsys, str(run), "--eval", "sums")) == 8
    assert "It has results of: sums" in told(capsys, str(run), "--eval", "other", code=2)


def test_one_sample_is_shown_whole_with_its_tokens(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = write_run(tmp_path / "run", byte_tokenizer(tmp_path / "model"))
    text = told(capsys, store.url, "--sample", IDS[0])
    assert "AB7é" in text
    assert "Tokens with the largest gap" in text
    assert IDS[1] not in text
    assert "token ids" not in text


def test_log_probs_of_a_replay_stand_in_for_those_that_are_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made = rollout()
    store = RunStore(str(tmp_path / "run"))
    store.write_table(store.step_path(STEP, "rollout.parquet"), made)
    store.write_table(store.step_path(STEP, "reward.parquet"), reward())
    store.write_table(store.step_path(STEP, "batch.parquet"), batch(made, old_log_probs=[None] * 4))
    assert "no log-prob gap by token" in told(capsys, store.url)
    assert "No sample has a gap" in told(capsys, store.url, "--sort", "gap")
    assert "has no forward.parquet" in told(capsys, store.url, "--replayed", str(tmp_path), code=2)
    # in another order; -1.2 and -0.9 against -1 in the first two of five tokens: a mean of 0.3 / 5
    ids = {name: made[name] for name in ("sample_id", "group_id", "response_length")}
    forward = make_table(FORWARD, {**ids, "old_log_probs": batch(made)["old_log_probs"]})
    RunStore(str(tmp_path)).write_table("forward.parquet", forward.take([2, 0, 1, 3]))
    assert "gap mean 0.06 max 0.2" in told(capsys, store.url, "--replayed", str(tmp_path))


def test_a_replay_of_another_step_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, run: Path) -> None:
    store = RunStore(str(tmp_path))
    store.write_table(store.step_path(STEP, "rollout.parquet"), rollout())
    other = f"{run}/steps/000000"  # has a forward.parquet
    assert "of no sample of step 4" in told(capsys, store.url, "--replayed", other, code=2)
    assert "does not go with --eval" in told(capsys, str(run), "--eval", "sums", "--replayed", other, code=2)


def test_a_run_behind_a_url_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    store = RunStore("memory://shown/run")
    store.write_table(store.step_path(STEP, "rollout.parquet"), rollout())
    text = told(capsys, "memory://shown/run")
    assert "not finished: generate done" in text
    assert "no rewards yet" in text


def test_mistakes_say_what_there_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = write_run(tmp_path / "run")
    assert "no folder steps" in told(capsys, str(tmp_path), code=2)
    assert "has no step 9" in told(capsys, store.url, "--step", "9", code=2)
    assert "none of the 4 samples" in told(capsys, store.url, "--sample", "x", code=2)
    assert "must be 1 or more" in told(capsys, store.url, "--limit", "0", code=2)
    assert "Leave one out" in told(capsys, store.url, "--json", "--html", code=2)


def test_a_step_that_has_just_begun_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "steps/000000/pieces").mkdir(parents=True)
    text = told(capsys, str(tmp_path))
    assert "samples are being generated" in text
    assert "No step has a rollout yet" in text
    assert "no rollout of step 0 yet" in told(capsys, str(tmp_path), "--step", "0", code=2)


def test_nothing_heavy_is_imported(tmp_path: Path) -> None:
    store = write_run(tmp_path / "run", byte_tokenizer(tmp_path / "model"))
    heavy = ("torch", "transformers", "ray", "prefect", "megatron", "sglang")
    code = (
        "import sys\n"
        "from flows.cli.main import main\n"
        f"assert main(['show', {store.url!r}]) == 0\n"
        f"assert main(['show', {store.url!r}, '--html', {str(tmp_path / 'page.html')!r}]) == 0\n"
        f"print('heavy:', sorted(set({heavy!r}) & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("heavy: []\n")
