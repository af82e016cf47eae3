"""Which GPUs an engine's process sees."""

import pytest

from relax_core.engines.devices import VISIBLE, seen_by_engine

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
