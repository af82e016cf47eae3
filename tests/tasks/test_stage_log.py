"""The line about what a stage came to."""

import logging

import pyarrow as pa

from data.errors import UserError
from tasks.stage_log import _said_plainly, stage_facts


def test_generate_says_samples_tokens_and_what_did_not_end_well() -> None:
    rollout = pa.table({"status": ["completed", "truncated", "completed"], "response_length": [10, 20, 30]})
    assert stage_facts("generate", {"rollout": rollout}, {}, 2.0) == (
        "3 samples, 60 response tokens, 30 tokens/s, 1 truncated"
    )


def test_reward_says_the_scores_and_the_first_failure() -> None:
    reward = pa.table(
        {"reward": pa.array([0.0, 1.0, None], pa.float32()), "error": [None, None, "TypeError: no number"]}
    )
    assert stage_facts("reward", {"reward": reward}, {}, 0.1) == (
        "2 of 3 samples scored, mean 0.5, 0 to 1, 1 failed, the first: TypeError: no number"
    )


def test_reward_of_nothing_scored_has_no_mean() -> None:
    reward = pa.table({"reward": pa.array([None, float("nan")], pa.float32())})
    assert stage_facts("reward", {"reward": reward}, {}, 0.1) == "0 of 2 samples scored"


def test_an_update_says_its_loss_its_gradient_and_its_speed() -> None:
    metrics = {"loss": 0.25, "grad_norm": 1.5, "tokens": 1000.0, "other": 1.0}
    assert stage_facts("train", {}, metrics, 2.0) == "loss 0.25, grad_norm 1.5, 500 tokens/s"


def test_a_mistake_of_the_user_is_told_without_where_in_the_code_it_was_found() -> None:
    error = UserError("--lr 3: too large.", "Lower --lr.")
    record = logging.LogRecord("prefect", logging.ERROR, "", 0, "failed: %r", (error,), (UserError, error, None))
    assert _said_plainly(record)
    assert (record.getMessage(), record.exc_info) == ("--lr 3: too large. Lower --lr.", None)
    bug = ValueError("a bug")
    record = logging.LogRecord("prefect", logging.ERROR, "", 0, "failed: %r", (bug,), (ValueError, bug, None))
    assert _said_plainly(record)
    assert record.exc_info is not None
