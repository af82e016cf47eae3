"""Scores of a run that distils: without a reward they are 0, which is a score."""

import logging
from typing import Any

import pytest
from effect_probes import rollout_table

from data.errors import UserError
from relax_core.config.eval_set import EvalSet
from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig
from relax_core.rewards.score import check_reward, score_evaluation, score_table

OPD = {"use_opd": True, "opd_type": "megatron"}


def config(**options: Any) -> RelaxConfig:
    return with_options(RelaxConfig(), {**OPD, **options})


def test_without_a_reward_every_sample_scores_0_and_nothing_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check_reward(config())
        table = score_table(rollout_table(), config())
    assert table["reward"].to_pylist() == [0.0] * 4
    assert table["reward"].null_count == 0
    assert set(table["decision"].to_pylist()) == {"distilled"}
    assert caplog.records == []
    with pytest.raises(UserError, match="has no reward"):
        score_table(rollout_table(), config(use_opd=False))


def test_a_reward_that_is_named_scores_as_ever() -> None:
    assert score_table(rollout_table(), config(rm_type="exact_number"))["reward"].to_pylist() != [0.0] * 4
    with pytest.raises(UserError, match="no reward named"):
        score_table(rollout_table(), config(rm_type="exact_numbr"))


def test_an_evaluation_needs_a_reward_all_the_same() -> None:
    sums = EvalSet(name="sums", path="sums.jsonl")
    with pytest.raises(UserError, match="has no reward"):
        score_evaluation(rollout_table(), sums, config())
