"""A whole evaluation against an engine that answers over HTTP."""

import asyncio
import json
import time

import pytest
from fakes import FakeEngine

from data.errors import UserError
from data.prompts import PromptDataset, load_prompts
from relax_core.config.eval_set import EvalSet
from relax_core.config.sections import RelaxConfig
from relax_core.rollout.evaluate import evaluate_set


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model)


class RecordingEngine(FakeEngine):
    """A fake engine that keeps what it is asked for, and an answer as long as ``hold()`` says."""

    def __init__(self) -> None:
        super().__init__()
        self.sampling: list[dict] = []
        self.hold = lambda: False

    async def _generate(self, request):
        self.sampling.append((await request.json())["sampling_params"])
        until = time.monotonic() + 60
        while self.hold():
            assert time.monotonic() < until
            await asyncio.sleep(0.01)
        return await super()._generate(request)


@pytest.fixture
def engine():
    engine = RecordingEngine()
    engine.label = "0.ab12"  # as after the first sync
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def prompts(tokenizer, sums) -> PromptDataset:
    return load_prompts(str(sums), tokenizer=tokenizer, label_key="label")


def eval_set(**fields) -> EvalSet:
    return EvalSet(name="sums", path="sums.jsonl", **{"max_response_len": 4, "default_rm_type": "random", **fields})


def test_all_prompts_are_scored_and_again_with_the_same_seeds(tokenizer, engine, prompts):
    greedy, config = eval_set(n_samples_per_eval_prompt=2, temperature=0.0), RelaxConfig()
    seen = []
    table, metrics = evaluate_set(
        greedy, prompts, [engine.url], config, step=-1, tokenizer=tokenizer, progress=lambda *now: seen.append(now)
    )
    assert table.num_rows == engine.generate_calls == 16
    assert table["label"].to_pylist() == [json.dumps(str(row + 2)) for row in range(8) for _ in range(2)]
    assert metrics["eval/sums"] == pytest.approx(sum(table["reward"].to_pylist()) / 16)
    assert {"eval/sums-pass@1", "eval/sums-pass@2", "eval/sums-truncated_ratio"} <= set(metrics)
    assert seen[-1][:2] == (16, 16)

    engine.label = "3.ab12"
    again, _ = evaluate_set(greedy, prompts, [engine.url], config, step=2, tokenizer=tokenizer)
    assert again["seed"].equals(table["seed"])
    assert again["sample_id"].equals(table["sample_id"])


def test_an_engine_with_other_weights_is_refused(tokenizer, engine, prompts):
    with pytest.raises(UserError, match="needs version 6"):
        evaluate_set(eval_set(), prompts, [engine.url], RelaxConfig(), step=5, tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("fields", "asked"),
    [
        ({"temperature": 0.0}, {"temperature": 0.0}),
        ({"top_p": 0.5}, {"top_p": 0.5}),
        ({"top_k": 3}, {"top_k": 3}),
        ({"max_response_len": 2}, {"max_new_tokens": 2}),
        ({"min_new_tokens": 2}, {"min_new_tokens": 2}),
        ({"stop": ["END"]}, {"stop": ["END"]}),
        ({"stop_token_ids": [7]}, {"stop_token_ids": [7]}),
    ],
)
def test_what_a_set_says_of_sampling_is_asked_of_the_engine(tokenizer, engine, prompts, fields, asked):
    # the options of the rollout are none of an evaluation's business once its set is complete
    config = RelaxConfig.model_validate({"rollout": {"rollout_temperature": 0.9, "rollout_stop": ["no"]}})
    evaluate_set(eval_set(**fields), prompts, [engine.url], config, step=-1, tokenizer=tokenizer)
    assert len(engine.sampling) == 8
    for params in engine.sampling:
        assert {name: params.get(name) for name in asked} == asked
        assert params["temperature"] != 0.9
        assert params["stop"] != ["no"]


def test_the_context_of_a_set_bounds_prompt_and_response(tokenizer, engine, prompts):
    longest = int(prompts.tokens.lengths.max())
    wide = eval_set(max_response_len=50, max_context_len=longest + 3)
    evaluate_set(wide, prompts, [engine.url], RelaxConfig(), step=-1, tokenizer=tokenizer)
    assert min(params["max_new_tokens"] for params in engine.sampling) == 3


@pytest.mark.parametrize("samples", [1, 3])
def test_a_set_says_how_often_each_prompt_is_asked(tokenizer, engine, prompts, samples):
    often = eval_set(n_samples_per_eval_prompt=samples)
    table, _ = evaluate_set(often, prompts, [engine.url], RelaxConfig(), step=-1, tokenizer=tokenizer)
    assert table.num_rows == 8 * samples


def test_a_set_is_scored_by_its_own_reward(tokenizer, engine, prompts, tmp_path):
    (tmp_path / "own.py").write_text("def reward(sample):\n    return {'exact': 0.25, 'form': 0.75}\n")
    config = RelaxConfig.model_validate({"reward": {"rm_type": "random", "reward_key": "none"}})

    def scores(**fields):
        one = eval_set(custom_rm_path=f"{tmp_path}/own.py:reward", **fields)
        return evaluate_set(one, prompts, [engine.url], config, step=-1, tokenizer=tokenizer)[0]["reward"].to_pylist()

    assert scores(reward_key="exact") == [0.25] * 8
    assert scores(reward_key="form") == [0.75] * 8
    by_name = eval_set(default_rm_type="dummy")
    table, _ = evaluate_set(by_name, prompts, [engine.url], config, step=-1, tokenizer=tokenizer)
    assert (table["rm_type"].unique().to_pylist(), table["reward"].unique().to_pylist()) == (["dummy"], [0.0])


def test_samples_of_a_set_are_scored_once_each_while_others_are_generated(tokenizer, engine, prompts, tmp_path):
    """The engine keeps its last answer, of eight, until three are scored."""
    (tmp_path / "own.py").write_text(
        "import pathlib\n"
        "def reward(sample):\n"
        "    with open(pathlib.Path(__file__).parent / 'called', 'a') as log:\n"
        "        log.write(sample.sample_id + '\\n')\n"
        "    return 1.0\n"
    )
    log = tmp_path / "called"

    def called() -> list[str]:
        return log.read_text().split() if log.exists() else []

    engine.hold = lambda: len(engine.sampling) == 8 and len(called()) < 3
    one = eval_set(custom_rm_path=f"{tmp_path}/own.py:reward")
    table, _ = evaluate_set(one, prompts, [engine.url], RelaxConfig(), step=-1, tokenizer=tokenizer)
    assert sorted(called()) == sorted(table["sample_id"].to_pylist())
