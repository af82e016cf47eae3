"""Processes for tests that need torch.distributed."""

import os
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import ranks
from ranks import run_ranks


def told(variable: str) -> dict[str, Any]:
    return {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", variable)} | {"folder": os.getcwd()}


def one_fails() -> str:
    if os.environ["RANK"] == "1":
        raise ValueError("no rank 1")
    time.sleep(600)
    return "never"


def leaves() -> int:
    os._exit(7)


def test_every_rank_has_the_variables_and_the_folder_of_the_test(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in ("a", "b"):
        monkeypatch.setenv("OF_THE_TEST", value)
        assert run_ranks(2, "test_ranks:told", {"variable": "OF_THE_TEST"}) == [
            {"RANK": str(rank), "WORLD_SIZE": "2", "OF_THE_TEST": value, "folder": str(tmp_path)} for rank in range(2)
        ]


def test_a_rank_that_fails_is_told_and_nothing_is_left_behind() -> None:
    with pytest.raises(AssertionError, match=r"rank 1, exit code 1:[\s\S]*ValueError: no rank 1") as raised:
        run_ranks(2, "test_ranks:one_fails")
    assert "rank 0" not in str(raised.value)
    with pytest.raises(AssertionError, match="rank 0, exit code 7"):
        run_ranks(1, "test_ranks:leaves")
    source = psutil.Process(ranks._sources[-1]._process.pid)
    assert source.children() == []
    names = [path.read_text().strip() for path in Path(f"/proc/{source.pid}/task").glob("*/comm")]
    names.remove("jemalloc_bg_thd")  # pyarrow's allocator knows forks
    assert len(names) == 1, names  # which is what makes forks of it sound


def test_ranks_that_take_too_long_are_killed() -> None:
    with pytest.raises(AssertionError, match=r"rank 0, killed after 0\.5 s"):
        run_ranks(1, "test_ranks:one_fails", timeout=0.5)
