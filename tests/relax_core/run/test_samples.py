"""Samples as dictionaries: what is written is read back equal, and what slime writes is understood."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from data.errors import UserError
from data.ragged import Ragged
from data.schema import REWARD, ROLLOUT, table
from relax_core.run.samples import reward_table_of, rollout_samples, rollout_table_of, subsample


def tables(step: int = 3) -> tuple[pa.Table, pa.Table]:
    """Two groups of two samples: prompts of two tokens, responses of 1, 2, 0 and 3; the third was aborted."""
    ids = [f"{step:06d}-{group:04d}-{k:03d}" for group in range(2) for k in range(2)]
    groups = [sample_id[:-4] for sample_id in ids]
    lengths = np.array([1, 2, 0, 3])
    rollout = {
        "sample_id": ids,
        "group_id": groups,
        "prompt_id": ["a", "a", "b", "b"],
        "group_index": [6, 6, 7, 7],
        "index": [12, 13, 14, 15],
        "step": [step] * 4,
        "seed": [1, 2, 3, 4],
        "prompt": ["What?"] * 4,
        "tokens": Ragged.from_lengths(np.arange(14, dtype=np.int32), lengths + 2),
        "prompt_length": [2] * 4,
        "response_length": lengths,
        "response": ["a", "bc", "", "déf"],
        "label": ['"5"', "5", None, '{"n": 1}'],
        "metadata": ["{}", '{"é": 1}', "{}", "{}"],
        "loss_mask": Ragged.from_lengths(np.array([1, 1, 0, 1, 0, 1], np.uint8), lengths),
        "rollout_log_probs": Ragged.from_lengths(np.array([-0.1, -0.2, -3, -4, -5, -6], np.float32), lengths),
        "weight_versions": [[3], [3], [], [3]],
        "token_versions": [[3], [3, -1], [], None],
        "status": ["completed", "truncated", "aborted", "completed"],
        "finish_reason": ["stop", "length", "abort", "stop"],
        "remove_sample": [False, False, False, True],
        "prefix_cache_info": [json.dumps({"cached_tokens": 1, "prompt_tokens": 2}), None, None, None],
        "abort_count": [0, 0, 1, 0],
    }
    reward = {
        "sample_id": ids,
        "group_id": groups,
        "reward": [1.0, 0.25, None, 0.0],
        "raw_reward": [1.0, 0.5, None, 0.0],
        "rm_type": ["exact"] * 4,
        "components": ['{"acc": 1.0, "why": "ok"}', None, None, None],
        "error": [None, None, "the sample was aborted", None],
    }
    return table(ROLLOUT, rollout), table(REWARD, reward)


def test_what_is_written_is_read_back_equal() -> None:
    rollout, reward = tables()
    samples = rollout_samples(rollout, reward.take([3, 1, 0, 2]))  # matched by id
    again = rollout_table_of(samples, step=3, group_size=9)
    assert again.equals(rollout)
    assert reward_table_of(samples, again, None).equals(reward)
    # A file of version 1 has no token_versions: null.
    old = rollout_samples(rollout.drop_columns("token_versions"), reward)
    assert rollout_table_of(old, step=3, group_size=9)["token_versions"].null_count == 4


def test_a_sample_has_the_names_and_values_that_slime_reads() -> None:
    sample = rollout_samples(*tables())[1]
    assert sample["tokens"] == [3, 4, 5, 6]
    assert (sample["index"], sample["group_index"], sample["response_length"]) == (13, 6, 2)
    assert (sample["status"], sample["reward"], sample["label"]) == ("truncated", 0.25, 5)
    assert sample["metadata"] == {"é": 1}
    assert sample["loss_mask"] == [1, 0]
    assert sample["weight_versions"] == ["3"]
    assert (sample["spec_info"], sample["prefix_cache_info"]) == ({}, {})


SLIME: dict[str, Any] = {
    "group_index": 4,
    "index": 8,
    "prompt": [{"role": "user", "content": "What?"}],
    "tokens": [1, 2, 3, 4],
    "response": "ab",
    "response_length": 2,
    "label": "5",
    "reward": {"score": 1.0, "acc": True, "pred": "5"},
    "loss_mask": None,
    "weight_versions": ["v1", "7"],
    "rollout_log_probs": [-0.5, -0.25],
    "status": "completed",
    "metadata": {"raw_reward": 2.0},
    "train_metadata": None,
    "spec_info": {"spec_accept_token_num": 0},
    "prefix_cache_info": {"cached_tokens": 1, "total_prompt_tokens": 2},
}
"""As ``Sample.to_dict`` of slime makes it."""


def test_a_sample_of_slime_is_understood() -> None:
    rollout = rollout_table_of([SLIME, {**SLIME, "index": 9}], step=12, group_size=2)
    row = rollout.to_pylist()[1]
    assert (row["sample_id"], row["group_id"]) == ("000012-0000-001", "000012-0000")
    assert (row["group_index"], row["index"], row["step"], row["prompt_length"]) == (4, 9, 12, 2)
    assert json.loads(row["prompt"]) == SLIME["prompt"]
    assert (row["label"], row["loss_mask"], row["weight_versions"]) == ('"5"', [1, 1], [7])
    assert row["finish_reason"] == "stop"
    assert json.loads(row["prefix_cache_info"]) == {"cached_tokens": 1, "prompt_tokens": 2}
    reward = reward_table_of([SLIME, SLIME], rollout, "score").to_pylist()[0]
    assert (reward["reward"], reward["raw_reward"], reward["rm_type"]) == (1.0, 2.0, "recorded")
    assert json.loads(reward["components"]) == {"acc": True, "pred": "5"}


def test_samples_without_groups_form_groups_by_their_places() -> None:
    samples = [{**SLIME, "group_index": None, "index": None} for _ in range(5)]
    rollout = rollout_table_of(samples, step=0, group_size=2)
    assert rollout["group_index"].to_pylist() == [0, 0, 1, 1, 2]
    assert rollout["index"].to_pylist() == [0, 1, 2, 3, 4]


def test_scores_are_none_where_no_sample_has_one() -> None:
    samples = [{**SLIME, "reward": None}] * 2
    rollout = rollout_table_of([samples[0], {**samples[1], "index": 9}], 0, 2)
    assert reward_table_of(samples, rollout, None) is None
    mixed = reward_table_of([samples[0], {**SLIME, "reward": 0.5}], rollout, None)
    assert mixed["reward"].to_pylist() == [None, 0.5]
    assert mixed["error"].to_pylist() == ["no score was recorded", None]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"rollout_log_probs": None}, "Sample 0 of the recorded rollout has no rollout_log_probs"),
        ({"tokens": None}, "Sample 0 of the recorded rollout has no tokens"),
        ({"status": "pending"}, "Sample 0 of the recorded rollout is 'pending'"),
        ({"multimodal_train_inputs": {"pixels": [1]}}, "has multimodal_train_inputs that are no bytes"),
        ({"loss_mask": [1]}, "loss_mask"),
    ],
)
def test_what_a_sample_lacks_is_told(change: dict[str, Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        rollout_table_of([{**SLIME, **change}], 0, 1)


def test_a_score_in_a_dictionary_needs_its_key() -> None:
    rollout = rollout_table_of([SLIME], 0, 1)
    with pytest.raises(UserError, match=r"keys 'score', 'acc', 'pred'.*--reward-key"):
        reward_table_of([SLIME], rollout, None)


@pytest.mark.parametrize(
    ("groups", "share", "kept"),
    [
        (6, 0.5, [0, 4, 5]),  # three groups: one from the front, two from the end
        (6, 1.0, [0, 1, 2, 3, 4, 5]),
        (6, 0.01, [5]),  # at least one
        (5, 0.4, [0, 4]),
    ],
)
def test_a_subsample_has_whole_groups_from_both_ends(groups: int, share: float, kept: list[int]) -> None:
    samples = [{"group_index": group, "k": k} for group in range(groups) for k in range(3)]
    chosen = subsample(samples, share, group_size=3)
    assert [sample["group_index"] for sample in chosen] == [group for group in kept for _ in range(3)]
