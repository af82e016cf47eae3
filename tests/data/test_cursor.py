"""The cursor: which prompts come next, now and after a resume."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.cursor import Cursor, epoch_order
from data.errors import UserError

SIZES = st.lists(st.integers(0, 9), max_size=12)
SETS = {"rows": st.integers(1, 12), "seed": st.integers(0, 2**63), "shuffle": st.booleans()}


def draw(cursor: Cursor, sizes: list[int], rows: int, seed: int, shuffle: bool) -> tuple[list[int], Cursor]:
    taken: list[int] = []
    for n in sizes:
        part, cursor = cursor.take(n, rows, seed, shuffle)
        taken += part
    return taken, cursor


@given(sizes=SIZES, cut=st.integers(0, 12), **SETS)
def test_a_resumed_run_draws_what_the_uninterrupted_one_draws(
    sizes: list[int], cut: int, rows: int, seed: int, shuffle: bool
) -> None:
    whole, end = draw(Cursor(), sizes, rows, seed, shuffle)
    before, saved = draw(Cursor(), sizes[:cut], rows, seed, shuffle)
    epoch_order.cache_clear()  # a new process remembers nothing
    restored = Cursor.from_json(json.loads(json.dumps(saved.to_json())))
    after, resumed_end = draw(restored, sizes[cut:], rows, seed, shuffle)
    assert before + after == whole
    assert resumed_end == end


@given(sizes=SIZES, **SETS)
def test_every_epoch_visits_every_row_once_whatever_the_requests(
    sizes: list[int], rows: int, seed: int, shuffle: bool
) -> None:
    taken, end = draw(Cursor(), sizes, rows, seed, shuffle)
    # Independent of the requests' sizes: the concatenation of the epochs' orders.
    epochs = [epoch_order(rows, seed, epoch, shuffle).tolist() for epoch in range(end.epoch + 1)]
    assert taken == [row for epoch in epochs for row in epoch][: len(taken)]
    assert all(sorted(epoch) == list(range(rows)) for epoch in epochs)
    assert end.groups == len(taken) == sum(sizes)
    assert (end.epoch, end.offset) == divmod(len(taken), rows)


def test_a_set_smaller_than_the_request_is_taken_several_times() -> None:
    assert Cursor().take(5, rows=2, seed=42, shuffle=False) == ([0, 1, 0, 1, 0], Cursor(2, 1, 5))


def test_the_end_of_an_epoch_is_the_start_of_the_next() -> None:
    assert Cursor().take(4, rows=2, seed=42, shuffle=False) == ([0, 1, 0, 1], Cursor(2, 0, 4))


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_checkpoint_at_the_epoch_boundary_leads_to_exactly_the_second_epoch(shuffle: bool) -> None:
    # 60 steps of 4 prompts an epoch, 2 epochs, checkpoint after step 60.
    rows, steps = 240, 60
    whole, _ = draw(Cursor(), [4] * (2 * steps), rows, 7, shuffle)
    _, saved = draw(Cursor(), [4] * steps, rows, 7, shuffle)
    assert saved == Cursor(epoch=1, offset=0, groups=240)
    after, end = draw(saved, [4] * steps, rows, 7, shuffle)
    assert after == whole[240:]
    assert sorted(after) == list(range(240))
    assert end == Cursor(epoch=2, offset=0, groups=480)


def test_each_epoch_and_each_seed_has_its_own_order() -> None:
    orders = [tuple(epoch_order(50, seed, epoch, True).tolist()) for seed in (1, 2) for epoch in (0, 1)]
    assert len(set(orders)) == 4


def test_the_order_never_changes_between_versions() -> None:
    # NumPy's own words for default_rng([seed, epoch]).permutation, fixed here: another order would break every resume.
    assert epoch_order(8, 42, 0, True).tolist() == np.random.default_rng([42, 0]).permutation(8).tolist()
    assert epoch_order(8, 42, 0, True).tolist() == GOLDEN


GOLDEN = [3, 4, 2, 7, 6, 1, 5, 0]


def test_nothing_asked_moves_nothing() -> None:
    assert Cursor(1, 1, 9).take(0, rows=2, seed=0, shuffle=True) == ([], Cursor(1, 1, 9))


@pytest.mark.parametrize(
    ("cursor", "rows", "seed", "says"),
    [
        (Cursor(), 0, 0, "no rows"),
        (Cursor(), 3, -1, "--rollout-seed is -1"),
        (Cursor(offset=3), 3, 0, "has 3 rows now"),
    ],
)
def test_bad_sets_are_explained(cursor: Cursor, rows: int, seed: int, says: str) -> None:
    with pytest.raises(UserError, match=says):
        cursor.take(1, rows, seed, False)


def test_a_negative_request_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="negative"):
        Cursor().take(-1, 3, 0, False)
