"""Which checkpoints count as complete."""

import json
import logging
from pathlib import Path

import pytest

from relax_core.training.checkpoint_index import complete_iterations, newest_complete


def write(root: Path, iteration: int, weights_id: str = "w") -> Path:
    folder = root / f"iter_{iteration:07d}"
    folder.mkdir(parents=True)
    (folder / "__0_0.distcp").write_bytes(b"12345")
    (folder / "relax_state.json").write_text(json.dumps({"weights_id": weights_id, "files": {"__0_0.distcp": 5}}))
    return folder


def test_an_empty_or_missing_place_has_none(tmp_path: Path) -> None:
    assert newest_complete(str(tmp_path / "nowhere")) is None
    assert complete_iterations(str(tmp_path)) == []


def test_complete_ones_are_listed_newest_first(tmp_path: Path) -> None:
    for iteration in (2, 12, 5):
        write(tmp_path, iteration, f"w{iteration}")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("5")
    (tmp_path / "iter_x").mkdir()
    assert complete_iterations(str(tmp_path)) == [(12, "w12"), (5, "w5"), (2, "w2")]
    assert newest_complete(str(tmp_path)) == 12
    assert newest_complete(str(tmp_path), at_most=11) == 5
    assert newest_complete(str(tmp_path), at_most=1) is None


@pytest.mark.parametrize("damage", ["no marker", "half a marker", "a file is missing", "a file is short"])
def test_an_incomplete_newest_is_passed_over_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    write(tmp_path, 10)
    newest = write(tmp_path, 20)
    if damage == "no marker":
        (newest / "relax_state.json").unlink()
    elif damage == "half a marker":
        marker = newest / "relax_state.json"
        marker.write_text(marker.read_text()[:-9])
    elif damage == "a file is missing":
        (newest / "__0_0.distcp").unlink()
    else:
        (newest / "__0_0.distcp").write_bytes(b"1234")
    with caplog.at_level(logging.WARNING):
        assert newest_complete(str(tmp_path)) == 10
    assert "iter_0000020 is incomplete" in caplog.text
