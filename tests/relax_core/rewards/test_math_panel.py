"""Every row of the panel of answers that are numbers and mathematics has its score, at once and in full."""

import json
from pathlib import Path
from typing import Any

import pytest

from data.errors import UserError
from relax_core.rewards import registry
from relax_core.rewards.types import UNDECIDED, RewardInput

FOLDER = Path(__file__).resolve().parents[2] / "data/rewards"
TYPES = ("math", "deepscaler", "dapo", "openr1mm", "geo3k", "mopd", "gsm8k", "gsm8k_flexible", "exact_number")


def panel(kind: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / f"{kind}.jsonl").read_text().splitlines()]


def rows() -> list[Any]:
    return [pytest.param(row, id=f"{kind}:{i}") for kind in TYPES for i, row in enumerate(panel(kind), 1)]


def sample_of(row: dict[str, Any]) -> RewardInput:
    return RewardInput("000000-0000-000", "p", row["response"], row["label"], row.get("metadata", {}))


def score_of(value: Any) -> float | None:
    return value["score"] if isinstance(value, dict) else value


@pytest.mark.parametrize("row", rows())
def test_a_row_has_its_score(row: dict[str, Any]) -> None:
    spec, sample = registry.get(row["type"]), sample_of(row)
    if row["score"] == "error":
        for function in filter(None, (spec.quick, spec.function)):
            with pytest.raises(UserError) as caught:
                function(sample)
            # an unknown name is the registry's error, which names the reward
            assert "000000-0000-000" in caught.value.problem or "no reward named" in caught.value.problem
            assert caught.value.fix
        return
    value = spec.function(sample)
    assert score_of(value) == (None if row["score"] is None else pytest.approx(row["score"])), row["reason"]
    if spec.quick is not None and (quick := spec.quick(sample)) is not UNDECIDED:
        assert quick == value


def test_every_row_has_a_reason_and_the_type_of_its_file() -> None:
    for kind in TYPES:
        assert all(row["type"] == kind and row["reason"] for row in panel(kind))


def test_sympy_is_asked_for_few_rows() -> None:
    """Those that it is asked for have answers that are no mathematics, or no value."""
    quick = registry.get("math").quick
    assert quick is not None
    graded = [row for row in panel("math") if row["score"] in (0, 1)]
    left = [row for row in graded if quick(sample_of(row)) is UNDECIDED]
    assert len(left) < 0.05 * len(graded)
    assert {row["score"] for row in left} == {0}


def test_the_panel_is_large() -> None:
    assert len(rows()) > 600
