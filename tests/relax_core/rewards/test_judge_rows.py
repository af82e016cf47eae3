"""Rows that the judge is to be asked about."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from configs import valid_config

from data.errors import UserError
from data.prompts import PromptDataset
from data.ragged import Ragged
from relax_core.config.eval_set import EvalSet
from relax_core.rewards.judge import rows
from relax_core.rewards.judge.rows import check_judged


def prompts(*metadata: dict[str, Any], label: str | None = "5") -> PromptDataset:
    """A row for each of these metadata."""
    count = len(metadata)
    ids = [f"{row:08d}" for row in range(count)]
    tokens = Ragged.from_list([np.zeros(1)] * count, np.int32)
    return PromptDataset(ids, ["2+3="] * count, tokens, [label] * count, list(metadata), 0, "p.jsonl")


def check(folder: Path, given: PromptDataset, *sets: tuple[EvalSet, PromptDataset], **options: Any) -> None:
    check_judged(valid_config(folder, **{"rm_type": "judge", **options}), given, sets)


def test_rows_to_compare_have_a_reference(tmp_path: Path) -> None:
    good, bad = {"reference": "five"}, {"references": "five"}
    check(tmp_path, prompts(good, good), genrm_template="pairwise")
    with pytest.raises(UserError) as caught:
        check(tmp_path, prompts(good, bad), genrm_template="pairwise")
    assert "--prompt-data p.jsonl: Sample of row 00000001 lacks what the judge's template pairwise" in str(caught.value)
    assert "metadata.reference (to compare with)" in caught.value.fix


def test_a_template_that_the_row_names_wins(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="template rubric"):
        check(tmp_path, prompts({}, {"judge_template": "rubric"}))
    check(tmp_path, prompts({"judge_template": "rubric", "rubric": ["short"]}), genrm_template="pairwise")


def test_rows_that_look_alike_may_have_other_rubrics(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"row 00000001: its metadata\.rubric has the entry '3'"):
        check(tmp_path, prompts({"rubric": ["short"]}, {"rubric": [3]}), genrm_template="rubric")


def test_the_answer_is_compared_with_a_label(tmp_path: Path) -> None:
    check(tmp_path, prompts({}), rm_type="dapo-genrm")
    with pytest.raises(UserError, match="template correctness"):
        check(tmp_path, prompts({}, label=None), rm_type="dapo-genrm")


@pytest.mark.parametrize(
    ("options", "metadata"),
    [
        ({"rm_type": "boxed_judge"}, {}),
        ({"rm_type": "math"}, {"rm_type": "judge"}),
        ({"rm_type": "mix", "reward_mix": {"math": 1, "judge": 1}}, {}),
        ({"rm_type": "math"}, {"rm_type": "mix", "reward_mix": {"judge": 1}}),
    ],
)
def test_every_way_to_the_judge_is_looked_at(tmp_path: Path, options: dict[str, Any], metadata: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="template pairwise"):
        check(tmp_path, prompts(metadata), genrm_template="pairwise", **options)


def test_rows_of_other_rewards_are_left_alone(tmp_path: Path) -> None:
    check(tmp_path, prompts({}), rm_type="math", genrm_template="pairwise")
    check(tmp_path, prompts({}), custom_rm_path="mine.py:reward", genrm_template="pairwise")


def test_what_a_template_makes_of_an_empty_answer_is_no_mistake_of_the_row(tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text("{{ 1 / (answer | length) }} {{ metadata.unit }}")
    check(tmp_path, prompts({"unit": "m"}), genrm_template=str(template))


def test_an_evaluation_set_is_named(tmp_path: Path) -> None:
    one = EvalSet(name="sums", path="p.jsonl", default_rm_type="judge")
    with pytest.raises(UserError, match=r"Evaluation set sums, p\.jsonl: Sample of row 00000000 lacks"):
        check(tmp_path, prompts(), (one, prompts({})), rm_type="math", genrm_template="pairwise")
    own = EvalSet(name="sums", path="p.jsonl", custom_rm_path="mine.py:reward")
    check(tmp_path, prompts(), (own, prompts({})), rm_type="math", genrm_template="pairwise")


def test_many_rows_are_rendered_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(rows, "question", lambda sample, name: asked.append(sample.sample_id))
    check(tmp_path, prompts(*({"reference": str(number)} for number in range(1000))), genrm_template="pairwise")
    assert asked == ["of row 00000000"]
