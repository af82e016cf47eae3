"""From scored rollouts to training rows, by hand."""

import numpy as np
import pyarrow as pa
import pytest

from data.errors import UserError
from data.ragged import Ragged
from data.schema import REWARD, ROLLOUT
from data.schema import table as make_table
from relax_core.algorithms.batch import training_batch
from relax_core.config import RelaxConfig


def rollout(ids: list[str], groups: list[str], removed: list[bool] | None = None) -> pa.Table:
    n = len(ids)
    return make_table(
        ROLLOUT,
        {
            "sample_id": ids,
            "group_id": groups,
            "prompt_id": groups,
            "group_index": np.zeros(n, np.int64),
            "index": np.arange(n),
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
            "status": ["completed"] * n,
            "finish_reason": ["stop"] * n,
            "remove_sample": np.array(removed or [False] * n),
            "abort_count": np.zeros(n, np.int32),
        },
    )


def rewards(scores: dict[str, float | None]) -> pa.Table:
    ids = list(scores)
    values = pa.array(list(scores.values()), pa.float32())
    return make_table(
        REWARD,
        {
            "sample_id": ids,
            "group_id": [i[0] for i in ids],
            "reward": values,
            "raw_reward": values,
            "rm_type": ["t"] * len(ids),
        },
    )


def config(samples: int) -> RelaxConfig:
    return RelaxConfig.model_validate({"rollout": {"n_samples_per_prompt": samples}})


def test_rewards_are_matched_by_id_and_normalised_by_group() -> None:
    """Group a: 1, 0 -> mean 0.5, unbiased std 0.70711 -> +-0.70711; group b: 0, 1. Rewards in another order."""
    batch = training_batch(
        rollout(["a0", "b0", "a1", "b1"], ["a", "b", "a", "b"]),
        rewards({"b1": 1.0, "a1": 0.0, "b0": 0.0, "a0": 1.0}),
        config(2),
    )
    advantages = Ragged.from_arrow(batch["advantages"])
    assert [float(row[0]) for row in advantages] == pytest.approx([0.70711, -0.70711, -0.70711, 0.70711], abs=1e-4)
    assert all(row[0] == row[1] for row in advantages)


def test_a_sample_without_a_score_weighs_nothing_and_is_no_part_of_its_group() -> None:
    """Scores 1, 0 and none: the two scored ones are normalised as a pair, the third has mask 0 and advantage 0."""
    batch = training_batch(rollout(["a0", "a1", "a2"], ["a"] * 3), rewards({"a0": 1, "a1": 0, "a2": None}), config(3))
    assert batch["loss_mask"].to_pylist() == [[1, 1], [1, 1], [0, 0]]
    assert batch["advantages"].to_pylist()[2] == [0, 0]
    assert batch["advantages"].to_pylist()[0][0] == pytest.approx(0.70711, abs=1e-4)
    assert batch["reward"].to_pylist() == [1, 0, None]


def test_a_removed_sample_counts_in_its_group_but_is_not_trained_on() -> None:
    """Scores 1, 0, 0: mean 1/3, unbiased std 0.57735 -> 1.1547 for the first although the third is removed."""
    table = rollout(["a0", "a1", "a2"], ["a"] * 3, [False, False, True])
    batch = training_batch(table, rewards({"a0": 1, "a1": 0, "a2": 0}), config(3))
    assert batch["loss_mask"].to_pylist() == [[1, 1], [1, 1], [0, 0]]
    assert batch["advantages"].to_pylist()[0][0] == pytest.approx(1.1547, abs=1e-3)


def test_ids_that_do_not_match_are_an_error() -> None:
    with pytest.raises(UserError, match="same samples"):
        training_batch(rollout(["a0", "a1"], ["a", "a"]), rewards({"a0": 1.0}), config(2))
