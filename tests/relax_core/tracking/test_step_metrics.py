"""Metrics of a rollout step: hand cases, and what an empty step gives."""

import json

import pyarrow as pa
import pytest

from data.errors import UserError
from relax_core.config import RelaxConfig, with_options
from relax_core.tracking.metrics import aligned, staleness_metrics, step_metrics, training_metrics, turn_metrics


def tables(rows: list[dict]) -> tuple[pa.Table, pa.Table]:
    """Only the columns that metrics need. Each row: group, reward; optional length, status, cached, response, raw."""
    ids = [f"{row['group']}-{i:03d}" for i, row in enumerate(rows)]
    rollout = pa.table(
        {
            "sample_id": pa.array(ids, pa.string()),
            "group_id": pa.array([row["group"] for row in rows], pa.string()),
            "status": pa.array([row.get("status", "completed") for row in rows], pa.string()),
            "prompt_length": pa.array([10] * len(rows), pa.int32()),
            "response_length": pa.array([row.get("length", 1) for row in rows], pa.int32()),
            "response": pa.array([row.get("response", "r") for row in rows], pa.string()),
            "prefix_cache_info": pa.array(
                [
                    json.dumps({"cached_tokens": row["cached"], "prompt_tokens": 10}) if "cached" in row else None
                    for row in rows
                ],
                pa.string(),
            ),
        }
    )
    reward = pa.table(
        {
            "sample_id": pa.array(ids, pa.string()),
            "reward": pa.array([row["reward"] for row in rows], pa.float32()),
            "raw_reward": pa.array([row.get("raw", row["reward"]) for row in rows], pa.float32()),
            "components": pa.array([row.get("components") for row in rows], pa.string()),
        }
    )
    return rollout, reward


def test_hand_case():
    rollout, reward = tables(
        [
            {"group": "a", "reward": 1, "length": 2, "cached": 0, "components": '{"acc": 1.0, "bad": null}'},
            {"group": "a", "reward": 0, "length": 4, "cached": 5, "components": '{"acc": 0.5}', "status": "truncated"},
            {"group": "b", "reward": 0, "length": 6, "cached": 5},
            {"group": "b", "reward": None, "length": 0, "status": "aborted"},
        ]
    )
    # Scores 1, 0, 0: mean 1/3, variance 1/3 * 2/3 = 2/9. Lengths 2, 4, 6, 0: mean 3, median 3. Cached 10 of 30.
    # pass@1: group a 1/2, group b 0/1 -> 1/4. pass@2: only group a has two scores: 1 - C(1,2)/C(2,2) = 1.
    # Group b has one score, so that only group a counts for the zero spread, and it has none.
    expected = {
        "samples/total": 4,
        "samples/scored": 3,
        "reward/mean": 1 / 3,
        "reward/std": (2 / 9) ** 0.5,
        "reward/max": 1,
        "reward/min": 0,
        "raw_reward": 1 / 3,
        "reward_component/acc": 0.75,
        "response_len/mean": 3,
        "response_len/median": 3,
        "response_len/max": 6,
        "response_len/min": 0,
        "prompt_len/mean": 10,
        "prompt_len/max": 10,
        "tokens/prompt": 40,
        "tokens/response": 12,
        "truncated_ratio": 0.25,
        "aborted_ratio": 0.25,
        "failed_ratio": 0,
        "repetition_frac": 0,
        "prefix_cache_hit_rate": 1 / 3,
        "zero_std/count": 0,
        "zero_std/fraction": 0,
        "pass@1": 0.25,
        "pass@2": 1,
    }
    assert step_metrics(rollout, reward) == pytest.approx(expected)


def test_rows_are_matched_by_id():
    rollout, reward = tables([{"group": "a", "reward": 1}, {"group": "b", "reward": 0}, {"group": "b", "reward": 0}])
    shuffled = reward.take([2, 0, 1])
    assert step_metrics(rollout, shuffled) == step_metrics(rollout, reward)
    assert aligned(shuffled, rollout).equals(reward)


def test_a_missing_reward_row_is_an_error_naming_the_sample():
    rollout, reward = tables([{"group": "a", "reward": 1}, {"group": "b", "reward": 0}])
    with pytest.raises(UserError, match="no row for sample b-001"):
        step_metrics(rollout, reward.slice(0, 1))


def test_all_aborted_gives_no_reward_metrics_and_no_crash():
    metrics = step_metrics(*tables([{"group": "a", "reward": None, "status": "aborted", "length": 0}] * 3))
    assert metrics["samples/scored"] == 0
    assert metrics["aborted_ratio"] == 1
    assert not any(name.startswith(("reward", "raw_reward", "pass@", "zero_std")) for name in metrics)


def test_no_samples_at_all():
    metrics = step_metrics(*tables([]))
    assert metrics == {"samples/total": 0, "samples/scored": 0, "tokens/prompt": 0, "tokens/response": 0}


def test_nan_rewards_are_not_scores():
    metrics = step_metrics(*tables([{"group": "a", "reward": 0.5}, {"group": "a", "reward": float("nan")}]))
    assert metrics["samples/scored"] == 1
    assert metrics["reward/mean"] == 0.5


def test_zero_spread_groups_are_counted_by_reward():
    # Seven times 0.1 has a float32 spread that is not exactly zero when summed; still no signal.
    rows = (
        [{"group": "a", "reward": 0.1}] * 7 + [{"group": "b", "reward": 1.0}] * 2 + [{"group": "c", "reward": 1.0}] * 2
    )
    rows += [{"group": "d", "reward": r} for r in (0, 1)] + [
        {"group": "e", "reward": 1.0}
    ]  # e: one sample, not counted
    rows += [{"group": "f", "reward": -0.01}] * 2  # rounds to -0.0, shown as 0.0
    metrics = step_metrics(*tables(rows))
    counts = {name: value for name, value in metrics.items() if name.startswith("zero_std/")}
    assert counts == {
        "zero_std/count": 4,  # a, b, c, f
        "zero_std/fraction": 4 / 5,
        "zero_std/count_0.1": 1,
        "zero_std/count_1.0": 2,
        "zero_std/count_0.0": 1,
    }


def reported(rollout: pa.Table, reward: pa.Table, **options) -> dict[str, float]:
    return training_metrics(rollout, reward, with_options(RelaxConfig(), options))


def test_pass_at_k_of_training_is_reported_where_it_is_asked_for():
    rollout, reward = tables([{"group": "a", "reward": 1}, {"group": "a", "reward": 0}])
    plain = reported(rollout, reward)
    assert not any(name.startswith("pass@") for name in plain)
    assert reported(rollout, reward, log_passrate=True) == {**plain, "pass@1": 0.5, "pass@2": 1.0}


def turns(masks: list[list[int]], metadata: list[str] | None = None) -> pa.Table:
    return pa.table(
        {
            "loss_mask": pa.array(masks, pa.list_(pa.uint8())),
            "metadata": pa.array(metadata or ["{}"] * len(masks), pa.string()),
        }
    )


def test_turns_are_stretches_that_the_loss_mask_takes():
    # Turns of 2 and 1 tokens; none; one of 1, which touches the next sample's; none; one of 2.
    metrics = turn_metrics(turns([[1, 1, 0, 0, 1], [0], [1], [], [1, 1]]))
    assert metrics == {
        "num_turn/mean": 4 / 5,
        "num_turn/max": 2,
        "num_turn/min": 0,
        "turn_len/mean": 6 / 4,
        "turn_len/max": 2,
        "turn_len/min": 1,
        "response_len_without_observations/mean": 6 / 5,
        "response_len_without_observations/max": 3,
        "response_len_without_observations/min": 0,
    }


def test_metadata_may_say_how_many_turns_there_were():
    assert turn_metrics(turns([[1], [1]], ['{"round_number": 5}', "{}"]))["num_turn/max"] == 5


def test_turns_of_nothing():
    assert turn_metrics(turns([])) == {}
    assert turn_metrics(turns([[]]))["num_turn/max"] == 0


def test_turns_are_reported_where_they_are_asked_for():
    rollout, reward = tables([{"group": "a", "reward": 1}])
    rollout = rollout.append_column("loss_mask", pa.array([[1]], pa.list_(pa.uint8())))
    rollout = rollout.append_column("metadata", pa.array(["{}"]))
    assert reported(rollout, reward, log_multi_turn=True)["num_turn/mean"] == 1
    assert "num_turn/mean" not in reported(rollout, reward)


def test_shares_of_a_reward_category(caplog):
    kinds = ['{"kind": "format", "acc": 1.0}', '{"kind": "format", "acc": 0.0}', '{"kind": "wrong", "acc": 0.0}', None]
    rows = [{"group": "a", "reward": 0.5, "components": components} for components in kinds]
    metrics = reported(*tables(rows), log_reward_category="kind")
    assert {name: value for name, value in metrics.items() if name.startswith("error_cat")} == {
        "error_cat/format": 0.5,
        "error_cat/wrong": 0.25,  # the fourth sample has no category
    }
    assert metrics["reward_component/acc"] == pytest.approx(1 / 3)
    assert "reward_component/kind" not in metrics
    assert reported(*tables(rows), log_reward_category="acc")["error_cat/0"] == 0.5
    assert reported(*tables(rows), log_reward_category="score", reward_key="score")["error_cat/0.5"] == 1
    assert not caplog.records
    assert reported(*tables(rows), log_reward_category="other") == reported(*tables(rows))
    assert "--log-reward-category other: no reward has this key" in caplog.text


def test_staleness_counts_the_updates_behind_each_token():
    """Step 5: tokens of versions 3, 3, 5 | 4 (and one that no engine made) | none. Behind: 2, 2, 0, 1: mean 5/4."""
    versions = pa.array([[3, 3, 5], [4, -1], []], pa.list_(pa.int32()))
    rollout = pa.table(
        {
            "step": pa.array([5, 5, 5], pa.int32()),
            "token_versions": versions,
            "weight_versions": pa.array([[3, 5], [4], []], pa.list_(pa.int32())),
        }
    )
    assert staleness_metrics(rollout) == {
        "staleness/mean": 1.25,
        "staleness/max": 2.0,
        "staleness/mixed": pytest.approx(1 / 3),
    }


def test_staleness_of_versions_that_are_not_known_is_not_told():
    unknown = pa.array([None, [1]], pa.list_(pa.int32()))
    made_by = pa.array([[1], [1]], pa.list_(pa.int32()))
    rollout = pa.table({"step": pa.array([1, 1], pa.int32()), "token_versions": unknown, "weight_versions": made_by})
    assert staleness_metrics(rollout) == {}
