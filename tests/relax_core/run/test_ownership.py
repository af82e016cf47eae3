"""Folders of checkpoints and the runs that they belong to."""

import json
import shutil
from pathlib import Path

import pytest
from configs import valid_config

from data.errors import UserError
from data.store import RunStore
from relax_core.config.examine import examine
from relax_core.run.ownership import claim, is_within
from relax_core.run.records import StageRecord, StageRecords
from relax_core.run.recovery import History


def run(folder: Path, place: Path, key: str = "") -> History:
    """A run that saves in ``place``; with a key it has made the update of step 0."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").touch()
    store = RunStore(str(folder))
    records = StageRecords(store)
    if key:
        records.write(0, StageRecord("train", key))
    return History(store, records, str(place), "first")


def checkpoint(place: Path, weights_id: str, step: int = 0) -> None:
    """A complete checkpoint, of no files."""
    folder = place / f"iter_{step:07d}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "relax_state.json").write_text(json.dumps({"files": {}, "weights_id": weights_id}))


def test_an_empty_folder_becomes_the_runs_own(tmp_path: Path) -> None:
    one = run(tmp_path / "one", tmp_path / "saved")
    claim("--save", one)
    checkpoint(tmp_path / "saved", "any")
    claim("--save", one)  # whatever it has become: it is its own
    assert json.loads((tmp_path / "saved" / "relax_run.json").read_text()) == {"run": str(tmp_path / "one")}


def test_checkpoints_of_another_run_are_refused_with_both_names(tmp_path: Path) -> None:
    claim("--save", run(tmp_path / "one", tmp_path / "saved"))
    checkpoint(tmp_path / "saved", "k")
    with pytest.raises(UserError) as caught:
        claim("--critic-save", run(tmp_path / "two", tmp_path / "saved"))
    text = str(caught.value)
    assert f"--critic-save {tmp_path}/saved holds checkpoints of the run {tmp_path}/one (step 0)" in text
    assert f"this run is {tmp_path}/two" in text
    assert "give its --run-dir" in text
    assert not (tmp_path / "two" / "saved").exists()
    # also where the other one is a copy that knows the weights: both would go on writing there
    with pytest.raises(UserError):
        claim("--save", run(tmp_path / "copy", tmp_path / "saved", key="k"))


def test_what_another_run_left_unfinished_hinders_nobody(tmp_path: Path) -> None:
    claim("--save", run(tmp_path / "one", tmp_path / "saved"))
    (tmp_path / "saved" / "iter_0000000").mkdir()
    claim("--save", run(tmp_path / "two", tmp_path / "saved"))


def test_a_run_that_was_moved_keeps_its_checkpoints(tmp_path: Path) -> None:
    claim("--save", run(tmp_path / "one", tmp_path / "saved", key="k"))
    checkpoint(tmp_path / "saved", "k")
    shutil.move(tmp_path / "one", tmp_path / "two")
    claim("--save", run(tmp_path / "two", tmp_path / "saved"))
    assert json.loads((tmp_path / "saved" / "relax_run.json").read_text()) == {"run": str(tmp_path / "two")}


def test_checkpoints_without_a_name_belong_to_whoever_made_them(tmp_path: Path) -> None:
    checkpoint(tmp_path / "saved", "k")
    with pytest.raises(UserError, match="of another run, which wrote no name"):
        claim("--save", run(tmp_path / "new", tmp_path / "saved"))
    claim("--save", run(tmp_path / "old", tmp_path / "saved", key="k"))


def test_a_folder_in_the_run_directory_needs_no_name(tmp_path: Path) -> None:
    one = run(tmp_path / "one", tmp_path / "one" / "checkpoints")
    checkpoint(tmp_path / "one" / "checkpoints", "any")
    claim("--save", one)
    assert not (tmp_path / "one" / "checkpoints" / "relax_run.json").exists()
    assert not is_within(str(tmp_path / "one-more"), str(tmp_path / "one"))


def test_the_check_of_the_options_sees_another_runs_folder(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    claim("--save", run(tmp_path / "one", saved))
    checkpoint(saved, "k")
    [text] = map(str, examine(valid_config(tmp_path, save=str(saved), run_dir=str(tmp_path / "two"))).errors)
    assert text.startswith(f"--save {saved}: holds checkpoints of the run {tmp_path}/one, and this is the run")
    [text] = map(str, examine(valid_config(tmp_path, save=str(saved))).errors)
    assert "this is a new run. Name an empty folder" in text
    assert examine(valid_config(tmp_path, save=str(saved), run_dir=str(tmp_path / "one"))).errors == []
