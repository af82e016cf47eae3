"""A whole evaluation against an engine that answers over HTTP."""

import json

import pytest
from fakes import FakeEngine

from data.errors import UserError
from data.prompts import load_prompts
from relax_core.config.sections import RelaxConfig
from relax_core.rollout.evaluate import evaluate_set


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.fixture
def engine():
    engine = FakeEngine()
    engine.label = "0.ab12"  # as after the first sync
    yield engine
    engine.stop()


def test_all_prompts_are_scored_and_again_with_the_same_seeds(tokenizer, engine, sums):
    prompts = load_prompts(str(sums), tokenizer=tokenizer, label_key="label")
    config = RelaxConfig.model_validate(
        {
            "rollout": {"rollout_max_response_len": 4},
            "eval": {"n_samples_per_eval_prompt": 2, "eval_temperature": 0.0},
            "reward": {"rm_type": "random"},
        }
    )
    seen = []
    table, metrics = evaluate_set(
        "sums", prompts, [engine.url], config, step=-1, tokenizer=tokenizer, progress=lambda *now: seen.append(now)
    )
    assert table.num_rows == engine.generate_calls == 16
    assert table["label"].to_pylist() == [json.dumps(str(row + 2)) for row in range(8) for _ in range(2)]
    assert metrics["eval/sums"] == pytest.approx(sum(table["reward"].to_pylist()) / 16)
    assert {"eval/sums-pass@1", "eval/sums-pass@2", "eval/sums-truncated_ratio"} <= set(metrics)
    assert seen[-1][:2] == (16, 16)

    engine.label = "3.ab12"
    again, _ = evaluate_set("sums", prompts, [engine.url], config, step=2, tokenizer=tokenizer)
    assert again["seed"].equals(table["seed"])
    assert again["sample_id"].equals(table["sample_id"])


def test_an_engine_with_other_weights_is_refused(tokenizer, engine, sums):
    prompts = load_prompts(str(sums), tokenizer=tokenizer, label_key="label")
    config = RelaxConfig.model_validate({"rollout": {"rollout_max_response_len": 4}, "reward": {"rm_type": "dummy"}})
    with pytest.raises(UserError, match="needs version 6"):
        evaluate_set("sums", prompts, [engine.url], config, step=5, tokenizer=tokenizer)
