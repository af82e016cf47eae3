"""Steps of a long run in groups."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from loop import plain_functions

from flows.groups import FEW, SIZE, Groups, group_size


@pytest.mark.parametrize(
    ("total", "size"),
    [(1, 0), (FEW, 0), (FEW + 1, SIZE), (500, SIZE), (FEW * SIZE, SIZE), (FEW * SIZE + 1, SIZE + 1), (10_000, 250)],
)
def test_a_run_has_groups_when_its_steps_would_be_too_many_for_a_graph(total: int, size: int) -> None:
    assert group_size(total) == size
    if size:
        assert -(-total // size) <= FEW


def open_groups() -> list[str]:
    return sorted(one.name for one in threading.enumerate() if one.name.startswith("steps-"))


def test_a_group_ends_with_its_last_step_and_all_of_them_with_the_run() -> None:
    run: Any = SimpleNamespace(id="run", total_steps=3 * SIZE)

    def steps() -> None:
        with Groups(run, 3) as groups:
            for step in (3, 4, SIZE, SIZE + 1):
                groups.context(step)
            assert open_groups() == ["steps-000003", f"steps-{SIZE:06d}"]
            groups.finished(SIZE - 1)
            groups._ending[-1].wait(60)
            assert open_groups() == [f"steps-{SIZE:06d}"]
            raise ValueError("a step has failed")

    with plain_functions(), pytest.raises(ValueError, match="a step"):
        steps()
    assert open_groups() == []
