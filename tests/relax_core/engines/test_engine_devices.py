"""Which GPUs an engine's process sees."""

import os
from pathlib import Path

import pytest

from relax_core.engines.devices import VISIBLE, fullest, gpus, seen_by_engine

MACHINE = [("0", "GPU-a"), ("1", "GPU-b"), ("2", "GPU-c")]


@pytest.mark.parametrize(
    ("own", "seen"),
    [
        ("1", "1,0,2"),
        ("2,0", "2,0,1"),  # two ranks on these, in this order
        ("GPU-b", "GPU-b,GPU-a,GPU-c"),
        ("1,0,2", None),  # all are there already (devices that are shared)
        ("", None),  # a CPU
    ],
)
def test_its_own_devices_come_first_and_the_others_behind_them(own: str, seen: str | None) -> None:
    assert seen_by_engine({VISIBLE: own}, MACHINE) == ({} if seen is None else {VISIBLE: seen})


def test_a_machine_that_does_not_tell_changes_nothing() -> None:
    assert seen_by_engine({VISIBLE: "0"}, []) == {}
    assert seen_by_engine({}, MACHINE) == {}


def test_a_machine_without_gpus_has_no_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert fullest() is None
    assert gpus() == []


def test_what_a_gpu_does_not_tell_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\necho "4096, 2048"\necho "4096, [N/A]"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert fullest() == (4.0, 2.0)
