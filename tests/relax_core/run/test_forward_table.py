"""Passes over a rollout: whose log-probs count, how parts come together, what is refused, what tells them apart."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tiny import make_tiny

from data.errors import UserError
from data.ragged import Ragged
from data.schema import FORWARD
from data.schema import table as make_table
from relax_core.config.forward import forward_needs
from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig
from relax_core.run.forward import joined, require_finite
from relax_core.run.start import compared_weights

REINFORCE: dict[str, Any] = {"advantage_estimator": "reinforce_plus_plus", "kl_coef": 0.1}


def passes(ids: list[str], **columns: list[list[float]]) -> pa.Table:
    rows = {name: Ragged.from_list(values, np.float32) for name, values in columns.items()}
    lengths = [len(row) for row in next(iter(columns.values()))]
    return make_table(FORWARD, {"sample_id": ids, "group_id": ["g"] * len(ids), "response_length": lengths, **rows})


def test_parts_are_joined_by_sample() -> None:
    first = passes(["a", "b"], old_log_probs=[[-1.0], [-2.0, -3.0]])
    second = passes(["b", "a"], values=[[0.5, 0.25], [1.0]])
    whole = joined([first, second])
    assert whole["values"].to_pylist() == [[1.0], [0.5, 0.25]]
    assert whole["old_log_probs"].to_pylist() == [[-1.0], [-2.0, -3.0]]
    with pytest.raises(UserError, match="different samples"):
        joined([first, passes(["a", "c"], values=[[0.0], [0.0, 0.0]])])


def test_a_number_that_is_not_finite_is_told_with_its_sample_and_token() -> None:
    table = passes(["a", "b", "c"], values=[[1.0], [], [2.0, float("nan")]])
    with pytest.raises(UserError, match="values of sample c is nan at response token 1"):
        require_finite(table, "values")
    require_finite(passes(["a"], values=[[1.0]]), "values")


def test_in_true_on_policy_mode_the_old_policy_is_never_the_engine() -> None:
    options = {**REINFORCE, "use_rollout_logprobs": True}
    assert forward_needs(with_options(RelaxConfig(), options)).policy == ("ref_log_probs",)
    own = with_options(RelaxConfig(), {**options, "true_on_policy_mode": True})
    assert forward_needs(own).policy == ("old_log_probs", "ref_log_probs")


def test_a_reference_that_was_replaced_in_its_place_is_another_one(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path / "model")
    config = with_options(RelaxConfig(), {**REINFORCE, "hf_checkpoint": str(folder), "ref_load": str(folder)})
    first = compared_weights(config, ["old_log_probs", "ref_log_probs"])
    assert set(first) == {"ref_log_probs"}
    assert compared_weights(config, ["ref_log_probs"]) == first
    shutil.rmtree(folder)
    make_tiny(folder, "llama")
    assert compared_weights(config, ["ref_log_probs"]) != first
