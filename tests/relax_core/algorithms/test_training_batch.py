"""From scored rollouts to training rows, by hand."""

import numpy as np
import pyarrow as pa
import pytest

from data.errors import UserError
from data.ragged import Ragged
from data.schema import FORWARD, REWARD, ROLLOUT
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


def config(samples: int, **algorithm: object) -> RelaxConfig:
    return RelaxConfig.model_validate({"rollout": {"n_samples_per_prompt": samples}, "algorithm": algorithm})


def test_rewards_are_matched_by_id_and_normalised_by_group() -> None:
    """Group a: 1, 0 -> mean 0.5, unbiased std 0.70711 -> +-0.70711; group b: 0, 1. Rewards in another order."""
    batch, _ = training_batch(
        rollout(["a0", "b0", "a1", "b1"], ["a", "b", "a", "b"]),
        rewards({"b1": 1.0, "a1": 0.0, "b0": 0.0, "a0": 1.0}),
        config(2),
    )
    advantages = Ragged.from_arrow(batch["advantages"])
    assert [float(row[0]) for row in advantages] == pytest.approx([0.70711, -0.70711, -0.70711, 0.70711], abs=1e-4)
    assert all(row[0] == row[1] for row in advantages)


def test_a_sample_without_a_score_weighs_nothing_and_is_no_part_of_its_group() -> None:
    """Scores 1, 0 and none: the two scored ones are normalised as a pair, the third has mask 0 and advantage 0."""
    batch, _ = training_batch(
        rollout(["a0", "a1", "a2"], ["a"] * 3), rewards({"a0": 1, "a1": 0, "a2": None}), config(3)
    )
    assert batch["loss_mask"].to_pylist() == [[1, 1], [1, 1], [0, 0]]
    assert batch["advantages"].to_pylist()[2] == [0, 0]
    assert batch["advantages"].to_pylist()[0][0] == pytest.approx(0.70711, abs=1e-4)
    assert batch["reward"].to_pylist() == [1, 0, None]


@pytest.mark.parametrize("policy", ["exclude", "zero"])
def test_nan_is_never_trained_on_and_told(policy: str, caplog: pytest.LogCaptureFixture) -> None:
    """Scores NaN, none, 3, 1. Without both: (3, 1) -> +-0.70711. With zero for the one without: (0, 3, 1), mean 4/3,
    unbiased deviation 1.52753 -> -0.87287, 1.09109, -0.21822; NaN is in neither."""
    given = config(4)
    given.reward.no_score_policy = policy  # type: ignore[assignment]
    ids = ["a0", "a1", "a2", "a3"]
    scores = {"a0": float("nan"), "a1": None, "a2": 3.0, "a3": 1.0}
    batch, _ = training_batch(rollout(ids, ["a"] * 4), rewards(scores), given)
    masks = [sum(mask) for mask in batch["loss_mask"].to_pylist()]
    advantages = [row[0] for row in batch["advantages"].to_pylist()]
    assert masks == ([0, 0, 2, 2] if policy == "exclude" else [0, 2, 2, 2])
    wanted = [0.70711, -0.70711] if policy == "exclude" else [-0.87287, 1.09109, -0.21822]
    np.testing.assert_allclose(advantages[-len(wanted) :], wanted, rtol=1e-4)
    assert "1 of 4 samples have the reward NaN and are not trained on" in caplog.text


def test_a_removed_sample_counts_in_its_group_but_is_not_trained_on() -> None:
    """Scores 1, 0, 0: mean 1/3, unbiased std 0.57735 -> 1.1547 for the first although the third is removed."""
    table = rollout(["a0", "a1", "a2"], ["a"] * 3, [False, False, True])
    batch, _ = training_batch(table, rewards({"a0": 1, "a1": 0, "a2": 0}), config(3))
    assert batch["loss_mask"].to_pylist() == [[1, 1], [1, 1], [0, 0]]
    assert batch["advantages"].to_pylist()[0][0] == pytest.approx(1.1547, abs=1e-3)


def test_without_advantages_all_are_zero_and_masks_are_as_ever() -> None:
    """Neither sizes of groups nor an estimator's metrics count: a group of one, and leave-one-out."""
    table = rollout(["a0", "a1", "b0", "b1"], ["a", "a", "b", "b"], [False, True, False, False])
    none = config(2, disable_compute_advantages_and_returns=True, advantage_estimator="rloo")
    batch, metrics = training_batch(table, rewards({"a0": 1, "a1": 1, "b0": 0, "b1": None}), none)
    assert batch["advantages"].to_pylist() == batch["returns"].to_pylist() == [[0, 0]] * 4
    assert batch["loss_mask"].to_pylist() == [[1, 1], [0, 0], [1, 1], [0, 0]]
    assert (batch["reward"].to_pylist(), metrics) == ([1, 1, 0, None], {})


def test_ids_that_do_not_match_are_an_error() -> None:
    with pytest.raises(UserError, match="same samples"):
        training_batch(rollout(["a0", "a1"], ["a", "a"]), rewards({"a0": 1.0}), config(2))


def test_leave_one_out_compares_with_the_others_and_says_how() -> None:
    """Group a: 1 - (0 + 0) / 2 = 1 and 0 - (1 + 0) / 2 = -0.5 twice; group b, all 1: 0 three times.

    Baselines: 0, 0.5, 0.5, 1, 1, 1; their mean is 2/3, that of |advantage| (1 + 0.5 + 0.5) / 6 = 1/3.
    """
    table = rollout([f"{g}{i}" for g in "ab" for i in range(3)], ["a"] * 3 + ["b"] * 3)
    scores = rewards({"a0": 1, "a1": 0, "a2": 0, "b0": 1, "b1": 1, "b2": 1})
    options = config(3, advantage_estimator="rloo")
    batch, metrics = training_batch(table, scores, options)
    assert [row[0] for row in batch["advantages"].to_pylist()] == [1, -0.5, -0.5, 0, 0, 0]
    assert metrics == pytest.approx(
        {
            "rloo/baseline_mean": 2 / 3,
            "rloo/adv_abs_mean": 1 / 3,
            "rloo/no_signal_frac": 0.5,
            "rloo/zero_adv_group_frac": 0.5,
            "rloo/dropped_group_frac": 0,
            "rloo/empty_response_frac": 0,
        }
    )
    assert training_batch(table, scores, config(3))[1] == {}


def test_advantages_are_standardised_over_the_trained_tokens_of_the_batch() -> None:
    """Scores 1, 0 and one removed: means 1/3; trained tokens (two each) hold 2/3, 2/3, -1/3, -1/3 of mean 1/6.

    Population variance 1/4: ((2/3 - 1/6) / 0.5, (-1/3 - 1/6) / 0.5) = (1, -1); the removed sample's tokens are 0.
    """
    table = rollout(["a0", "a1", "a2"], ["a"] * 3, [False, False, True])
    scores = rewards({"a0": 1, "a1": 0, "a2": 0})
    options = config(3, advantage_estimator="reinforce_plus_plus_baseline", normalize_advantages=True)
    batch, _ = training_batch(table, scores, options)
    assert np.allclose(batch["advantages"].to_pylist(), [[1, 1], [-1, -1], [0, 0]], atol=1e-6)
    assert np.allclose(batch["returns"].to_pylist(), [[2 / 3] * 2, [-1 / 3] * 2, [0, 0]])


def test_other_estimators_are_standardised_by_the_unbiased_deviation() -> None:
    """Normalised rewards +-0.70711 on two tokens each: mean 0, unbiased variance 4 x 0.5 / 3 -> +-0.86603."""
    scores = rewards({"a0": 1, "a1": 0})
    batch, _ = training_batch(rollout(["a0", "a1"], ["a"] * 2), scores, config(2, normalize_advantages=True))
    assert np.allclose(batch["advantages"].to_pylist(), [[0.86603] * 2, [-0.86603] * 2], atol=1e-4)


def passes(**columns: list[list[float]]) -> pa.Table:
    """What models gave for samples a1 and a0, in this order."""
    rows = {name: Ragged.from_list(values, np.float32) for name, values in columns.items()}
    return make_table(FORWARD, {"sample_id": ["a1", "a0"], "group_id": ["a"] * 2, "response_length": [2, 2], **rows})


REINFORCE = {"advantage_estimator": "reinforce_plus_plus", "kl_coef": 0.5, "gamma": 0.5}


def test_a_kl_in_the_rewards_is_of_the_same_sample_and_stored_with_the_batch() -> None:
    """a0: old - reference 1, 0, reward 1: rewards of the tokens -0.5 and 1 -> returns -0.5 + 0.5 x 1 = 0 and 1.

    a1: old - reference 0, 2, reward 0: 0 and -1 -> returns -0.5 and -1. Mean KL of the four tokens: 3/4.
    """
    table = passes(old_log_probs=[[-1, -1], [-1, -2]], ref_log_probs=[[-1, -3], [-2, -2]])
    scores = rewards({"a0": 1, "a1": 0})
    batch, metrics = training_batch(rollout(["a0", "a1"], ["a"] * 2), scores, config(2, **REINFORCE), forward=table)
    assert batch["returns"].to_pylist() == [[0, 1], [-0.5, -1]]
    assert batch["advantages"].to_pylist() == batch["returns"].to_pylist()
    assert batch["ref_log_probs"].to_pylist() == [[-2, -2], [-1, -3]]
    assert batch["values"].null_count == 2
    assert metrics == {"reward_kl": 0.75}


def test_with_the_engines_log_probs_the_kl_in_the_rewards_is_of_those() -> None:
    """Engine -1, -2; reference -1, -2 for a0 and -2, -2 for a1: KL 0, 0 and 1, 0. Returns: 0.5, 1 and -0.5, 0."""
    table = passes(ref_log_probs=[[-2, -2], [-1, -2]])
    options = config(2, **REINFORCE, use_rollout_logprobs=True)
    batch, _ = training_batch(rollout(["a0", "a1"], ["a"] * 2), rewards({"a0": 1, "a1": 0}), options, forward=table)
    assert batch["returns"].to_pylist() == [[0.5, 1], [-0.5, 0]]


def test_passes_over_other_samples_or_lengths_are_an_error() -> None:
    table = passes(old_log_probs=[[-1, -1], [-1, -2]], ref_log_probs=[[-1, -3], [-2, -2]])
    scores = rewards({"a0": 1, "a2": 0})
    with pytest.raises(UserError, match=r"rollout.parquet and forward.parquet .* e.g. a2"):
        training_batch(rollout(["a0", "a2"], ["a"] * 2), scores, config(2, **REINFORCE), forward=table)
    columns = {"old_log_probs": [[-1.0], [-1.0]], "ref_log_probs": [[-1.0], [-1.0]]}
    short = {name: Ragged.from_list(values, np.float32) for name, values in columns.items()}
    table = make_table(FORWARD, {"sample_id": ["a1", "a0"], "group_id": ["a"] * 2, "response_length": [1, 1], **short})
    with pytest.raises(UserError, match="old_log_probs of other lengths"):
        training_batch(
            rollout(["a0", "a1"], ["a"] * 2), rewards({"a0": 1, "a1": 0}), config(2, **REINFORCE), forward=table
        )
