"""The evaluation sets of an open run: which prompts they give, and what their identity covers."""

import json
from types import SimpleNamespace

import pytest

from data.errors import UserError
from data.prompts import load_prompts
from relax_core.config import RelaxConfig, options_hash, stage_options
from relax_core.config.eval_set import EvalSet
from relax_core.config.eval_sets import complete_sets
from relax_core.config.options import option_values
from relax_core.run import prompts
from relax_core.run.session import RunSession

ROWS = [
    {"input": "1 + 1 =", "other": "2 + 2 =", "label": "2", "alt": "4", "metadata": {"rm_type": "gsm8k", "n": 1}},
    {"input": "a rather long prompt " * 10, "other": "3 + 3 =", "label": "?", "alt": "6", "meta2": {"m": 2}},
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(path)


@pytest.fixture
def load(tmp_path, tiny_model, file):
    """The prompts of one set with these fields, in a run with these options."""

    def load(_options=(), **fields):
        given = RelaxConfig.model_validate({**dict(_options), "checkpoint": {"hf_checkpoint": str(tiny_model)}})
        sets = complete_sets([EvalSet(name="a", path=file, **fields)], option_values(given))
        given.eval.eval_datasets = sets
        given.run.run_dir = str(tmp_path / "run")
        run = RunSession(given, {}, lambda *_: None, SimpleNamespace(), training=False)
        try:
            ((eval_set, prompts),) = run.evaluation_sets
        finally:
            run.close()
        assert eval_set == sets[0]
        return prompts

    return load


def test_the_columns_of_a_set(load):
    assert load(label_key="label").texts == [row["input"] for row in ROWS]
    other = load(input_key="other", label_key="alt", metadata_key="meta2")
    assert other.texts == ["2 + 2 =", "3 + 3 ="]
    assert other.labels == ['"4"', '"6"']
    assert other.metadata == [{}, {"m": 2}]


def test_a_set_may_have_no_labels_where_training_has_some(load):
    options = {"data": {"label_key": "no_such_column"}}
    with pytest.raises(UserError, match="no_such_column"):
        load(options)
    assert load(options, label_key="").labels == [None, None]


def test_tools_come_from_the_column_of_the_set(load, monkeypatch):
    seen = []
    monkeypatch.setattr(
        prompts, "load_prompts", lambda path, **given: seen.append(given) or load_prompts(path, **given)
    )
    load(tool_key="functions")
    assert seen[0]["tool_key"] == "functions"


def test_the_longest_prompt_of_a_set(load):
    assert len(load(max_prompt_len=20)) == 1
    assert load(max_prompt_len=20).dropped == 1
    assert len(load()) == 2


def test_what_a_set_adds_to_the_metadata_of_its_rows(load):
    assert load().metadata == [{"rm_type": "gsm8k", "n": 1}, {}]
    own = load(rm_type="exact_number", metadata_overrides={"n": 3})
    assert own.metadata == [{"rm_type": "exact_number", "n": 3}] * 2
    assert load(rm_type="a", metadata_overrides={"rm_type": "b"}).metadata[1] == {"rm_type": "b"}
    # --rm-type is for rows that name none
    assert load({"reward": {"rm_type": "dummy"}}).metadata == [{"rm_type": "gsm8k", "n": 1}, {}]
    assert load().fingerprint != own.fingerprint


@pytest.mark.parametrize("field", ["temperature", "min_new_tokens", "max_context_len", "rm_type", "metadata_overrides"])
def test_a_field_of_a_set_is_in_the_identity_of_the_evaluation_alone(field):
    value = {"rm_type": "x", "metadata_overrides": {"a": 1}}.get(field, 3)

    def hashes(**fields):
        config = RelaxConfig.model_validate({"eval": {"eval_datasets": [{"name": "a", "path": "a.jsonl", **fields}]}})
        return [options_hash(stage_options(config, s)) for s in ("generate", "reward", "train", "evaluate")]

    *before, evaluation = hashes()
    *after, changed = hashes(**{field: value})
    assert before == after
    assert evaluation != changed
