"""Every row of the panel of text rewards has its score."""

import json
from pathlib import Path
from typing import Any

import pytest

from data.errors import UserError
from relax_core.rewards import registry
from relax_core.rewards.types import UNDECIDED, RewardInput

FOLDER = Path(__file__).resolve().parents[2] / "data/rewards"
TYPES = ("gpqa", "multiple_choice", "f1", "ifbench", "mix")


def rows() -> list[Any]:
    found = []
    for kind in TYPES:
        for number, line in enumerate((FOLDER / f"{kind}.jsonl").read_text().splitlines(), 1):
            row = json.loads(line)
            found.append(pytest.param(row, id=f"{kind}:{number}"))
    return found


def sample_of(row: dict[str, Any]) -> RewardInput:
    given = {name: row[name] for name in ("prompt", "response_length", "status") if name in row}
    given = {"prompt": "p", **given}
    return RewardInput(
        sample_id="row", response=row["response"], label=row["label"], metadata=row.get("metadata", {}), **given
    )


def score_of(value: Any) -> float | None:
    return value["score"] if isinstance(value, dict) else value


@pytest.mark.parametrize("row", rows())
def test_a_row_has_its_score(row: dict[str, Any]) -> None:
    spec = registry.get(row["type"])
    if row["score"] == "error":
        with pytest.raises(UserError) as caught:
            spec.function(sample_of(row))
        assert "row" in caught.value.problem
        assert caught.value.fix
        return
    score = score_of(spec.function(sample_of(row)))
    assert score == (None if row["score"] is None else pytest.approx(row["score"], abs=1e-6)), row["reason"]
    if spec.quick is not None and (quick := spec.quick(sample_of(row))) is not UNDECIDED:
        assert score_of(quick) == score


def test_every_row_has_a_reason_and_its_own_type() -> None:
    for kind in TYPES:
        for line in (FOLDER / f"{kind}.jsonl").read_text().splitlines():
            row = json.loads(line)
            assert row["type"] == kind
            assert row["reason"]


def test_the_panel_is_large_enough() -> None:
    assert len(rows()) >= 150
