"""Slices that go to the trainer while their step generates.

4 groups of 2 samples, a global batch of all 8 in 2 slices of 4 samples: a slice is 2 groups.
"""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from data.errors import UserError
from data.ragged import Ragged
from data.schema import REWARD, ROLLOUT
from data.schema import table as make_table
from relax_core.config import RelaxConfig, with_options
from relax_core.rewards.outcome import Outcome
from relax_core.run.advantage import batch_table
from relax_core.run.feeding import SliceFeeder, feeds, with_slices
from relax_core.run.order import Stopped

GROUPS, SAMPLES = 4, 2
SCORES = {f"g{g}-{k}": float((g + k) % 2) for g in range(GROUPS) for k in range(SAMPLES)}


def config(**options: Any) -> RelaxConfig:
    values = {
        "fully_async": True,
        "rollout_batch_size": GROUPS,
        "n_samples_per_prompt": SAMPLES,
        "global_batch_size": GROUPS * SAMPLES,
        "num_iters_per_train_update": 2,
        **options,
    }
    return with_options(RelaxConfig(), values)


def rows(*groups: int) -> pa.Table:
    ids = [f"g{g}-{k}" for g in groups for k in range(SAMPLES)]
    n = len(ids)
    return make_table(
        ROLLOUT,
        {
            "sample_id": ids,
            "group_id": [one.split("-")[0] for one in ids],
            "prompt_id": ids,
            "group_index": np.array([g for g in groups for _ in range(SAMPLES)], np.int64),
            "index": np.array([g * SAMPLES + k for g in groups for k in range(SAMPLES)], np.int64),
            "step": np.zeros(n, np.int32),
            "seed": np.zeros(n, np.int64),
            "prompt": ["p"] * n,
            "tokens": Ragged.from_list([[1, 2, 3]] * n, np.int32),
            "prompt_length": np.full(n, 1, np.int32),
            "response_length": np.full(n, 2, np.int32),
            "response": ["r"] * n,
            "label": pa.nulls(n, pa.string()),
            "metadata": ["{}"] * n,
            "loss_mask": Ragged.from_list([[1, 1]] * n, np.uint8),
            "rollout_log_probs": Ragged.from_list([[-1.0, -2.0]] * n, np.float32),
            "weight_versions": Ragged.from_list([[0]] * n, np.int32),
            "token_versions": Ragged.from_list([[0, 0]] * n, np.int32),
            "status": ["completed"] * n,
            "finish_reason": ["stop"] * n,
            "remove_sample": np.zeros(n, bool),
            "abort_count": np.zeros(n, np.int32),
        },
    )


def rewards(rollout: pa.Table) -> pa.Table:
    ids = rollout["sample_id"].to_pylist()
    scores = pa.array([SCORES[one] for one in ids], pa.float32())
    known = {"sample_id": ids, "group_id": rollout["group_id"], "reward": scores, "raw_reward": scores}
    return make_table(REWARD, {**known, "rm_type": ["mine"] * len(ids)})


class Trainer:
    """Takes slices, after ``fails`` of them none."""

    def __init__(self, fails: int | None = None) -> None:
        self.slices: list[pa.Table] = []
        self.fails, self.got = fails, threading.Condition()

    def accumulate(self, number: int, table: pa.Table) -> None:
        with self.got:
            if number == self.fails:
                raise UserError("no memory")
            assert number == len(self.slices)
            self.slices.append(table)
            self.got.notify_all()

    def wait(self, count: int) -> None:
        with self.got:
            assert self.got.wait_for(lambda: len(self.slices) >= count, 10)


def feeder(trainer: Trainer, turn: Callable[[], None] = lambda: None, **options: Any) -> SliceFeeder:
    return SliceFeeder(config(**options), turn, trainer.accumulate)


def scored(to: SliceFeeder, *groups: int) -> None:
    ids = [f"g{g}-{k}" for g in groups for k in range(SAMPLES)]
    to.outcomes(ids, [Outcome(SCORES[one], SCORES[one]) for one in ids])


def test_slices_are_the_groups_that_finish_first_with_the_rows_of_the_stored_batch():
    trainer = Trainer()
    one = feeder(trainer)
    one.rows(rows(2))
    scored(one, 2)
    one.rows(rows(0))
    assert trainer.slices == []  # group 0 has no scores yet
    scored(one, 0)
    trainer.wait(1)
    scored(one, 3)  # scores may be there first
    one.rows(rows(1, 3))
    scored(one, 1)
    trainer.wait(2)
    known = one.end()
    assert known == {"g2": 0, "g0": 0, "g3": 1, "g1": 1}
    whole = rows(0, 1, 2, 3)
    batch = with_slices(batch_table(whole, rewards(whole), None, config())[0], config(), known)
    assert batch["slice"].to_pylist() == [0, 0, 1, 1, 0, 0, 1, 1]
    for number, table in enumerate(trainer.slices):
        stored = batch.filter(pa.array([value == number for value in batch["slice"].to_pylist()]))
        assert table.drop_columns(["slice"]).equals(stored.drop_columns(["slice"]))


def test_samples_that_a_generation_hands_over_again_count_once():
    """Of group 0 one sample is there when the generation fails; done again, it hands that over and then the other."""
    trainer = Trainer()
    one = feeder(trainer)
    one.rows(rows(2))
    scored(one, 2, 0)
    one.rows(rows(0).slice(0, 1))
    one.rows(rows(2))
    one.rows(rows(0).slice(0, 1))  # not the second one of two
    one.rows(rows(0).slice(1, 1))
    trainer.wait(1)
    assert one.end() == {"g2": 0, "g0": 0}
    assert sorted(trainer.slices[0]["sample_id"].to_pylist()) == ["g0-0", "g0-1", "g2-0", "g2-1"]


def test_no_slice_goes_to_the_trainer_before_the_step_has_its_turn():
    trainer, turn = Trainer(), threading.Event()
    one = feeder(trainer, lambda: turn.wait(10) and None)
    one.rows(rows(0, 1))
    scored(one, 0, 1)
    assert trainer.slices == []
    turn.set()
    trainer.wait(1)
    assert one.end() == {"g0": 0, "g1": 0}


def test_a_step_that_never_has_its_turn_feeds_nothing():
    def turn() -> None:
        raise Stopped

    trainer = Trainer()
    one = feeder(trainer, turn)
    one.rows(rows(0, 1, 2, 3))
    scored(one, 0, 1, 2, 3)
    one.end()
    assert trainer.slices == []


@pytest.mark.parametrize("fails", [0, 1])
def test_after_a_refused_slice_no_further_one_is_sent_and_the_batch_is_still_whole(fails: int):
    trainer = Trainer(fails)
    one = feeder(trainer)
    one.rows(rows(3, 2, 1, 0))
    scored(one, 3, 2, 1, 0)
    trainer.wait(fails)
    assert one.end() == {"g3": 0, "g2": 0, "g1": 1, "g0": 1}
    assert len(trainer.slices) == fails


def test_groups_without_scores_wait_for_the_whole_batch_and_get_the_slices_that_are_left():
    trainer = Trainer()
    one = feeder(trainer)
    one.rows(rows(0, 1, 2, 3))
    scored(one, 3)
    one.outcomes(["g1-0"], [Outcome(1.0, 1.0)])  # half of a group
    one.outcomes([], RuntimeError("the reward failed"))
    assert one.end() == {}
    whole = rows(0, 1, 2, 3)
    batch = with_slices(batch_table(whole, rewards(whole), None, config())[0], config(), {})
    assert batch["slice"].to_pylist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_rows_behind_the_first_global_batch_have_no_slice():
    """Two updates of 4 samples, each in 2 slices of 2: group 3 finished first, then 1."""
    options = config(global_batch_size=4)
    whole = rows(0, 1, 2, 3)
    batch = with_slices(batch_table(whole, rewards(whole), None, options)[0], options, {"g3": 0, "g1": 1})
    assert batch["slice"].to_pylist() == [None, None, 1, 1, None, None, 0, 0]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, True),
        ({"num_iters_per_train_update": 1}, False),  # the only slice is the step's whole batch
        ({"num_iters_per_train_update": 1, "global_batch_size": 4}, True),  # the first of two updates
        ({"fully_async": False}, False),
        ({"normalize_advantages": True}, False),
        ({"over_sampling_batch_size": 6}, False),
        ({"use_opd": True, "opd_type": "sglang"}, False),  # passes over the whole rollout come first
    ],
)
def test_slices_are_fed_where_a_part_of_a_step_is_enough(options: dict[str, Any], expected: bool):
    assert feeds(config(**options)) is expected
