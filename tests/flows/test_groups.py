"""Steps of a long run in groups."""

import pytest

from flows.groups import FEW, SIZE, group_size


@pytest.mark.parametrize(
    ("total", "size"),
    [(1, 0), (FEW, 0), (FEW + 1, SIZE), (500, SIZE), (FEW * SIZE, SIZE), (FEW * SIZE + 1, SIZE + 1), (10_000, 250)],
)
def test_a_run_has_groups_when_its_steps_would_be_too_many_for_a_graph(total: int, size: int) -> None:
    assert group_size(total) == size
    if size:
        assert -(-total // size) <= FEW
