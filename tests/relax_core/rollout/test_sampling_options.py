"""Sampling options, seeds and budgets."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import UserError
from relax_core.config.eval_set import EvalSet
from relax_core.config.sections import RelaxConfig
from relax_core.rollout.sampling import Sampling, response_budget, sample_seed


def settings(**sections) -> RelaxConfig:
    return RelaxConfig.model_validate(sections)


def test_training_options_become_sglangs_parameters():
    config = settings(
        rollout={
            "rollout_temperature": 0.7,
            "rollout_top_p": 0.9,
            "rollout_top_k": 20,
            "rollout_max_response_len": 64,
            "rollout_stop": ["\n\n"],
            "rollout_stop_token_ids": [7],
            "rollout_skip_special_tokens": True,
        }
    )
    assert Sampling.for_training(config).params(seed=5, budget=10) == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "max_new_tokens": 10,
        "stop": ["\n\n"],
        "stop_token_ids": [7],
        "skip_special_tokens": True,
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
        "sampling_seed": 5,
    }


def test_every_call_gives_a_dict_of_its_own():
    sampling = Sampling(stop=("a",), max_new_tokens=100)
    first = sampling.params(1, 60)
    first["stop"].append("b")
    first["max_new_tokens"] = 1
    assert sampling.params(1, 60)["stop"] == ["a"]
    assert sampling.params(1, 60)["max_new_tokens"] == 60


def eval_set(**fields) -> EvalSet:
    return EvalSet(name="sums", path="sums.jsonl", **fields)


def test_a_set_says_how_its_responses_are_sampled():
    config = settings(rollout={"rollout_temperature": 0.7, "rollout_stop": ["x"], "rollout_skip_special_tokens": True})
    chosen = {"temperature": 0.0, "top_p": 0.5, "top_k": 3, "stop": ["END"], "stop_token_ids": [9]}
    sampling = Sampling.for_evaluation(eval_set(max_response_len=8, **chosen), config)
    assert sampling.max_new_tokens == 8
    params = sampling.params(0, 8)
    assert {name: params[name] for name in chosen} == chosen
    assert params["skip_special_tokens"] is True  # how tokens become text is the same for training and evaluation


def test_the_fewest_tokens_never_exceed_the_room_and_are_for_evaluation_only():
    sampling = Sampling.for_evaluation(eval_set(min_new_tokens=5), settings())
    assert sampling.params(0, 8)["min_new_tokens"] == 5
    assert sampling.params(0, 3)["min_new_tokens"] == 3
    assert "min_new_tokens" not in Sampling.for_evaluation(eval_set(min_new_tokens=0), settings()).params(0, 8)
    assert "min_new_tokens" not in Sampling.for_training(settings()).params(0, 8)


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_training_needs_a_positive_temperature(temperature):
    with pytest.raises(UserError, match="--rollout-temperature"):
        Sampling.for_training(settings(rollout={"rollout_temperature": temperature}))


@pytest.mark.parametrize(
    "fields",
    [{"temperature": -0.1}, {"top_p": 0.0}, {"top_p": 1.1}, {"top_k": 0}, {"max_response_len": 0}, {"stop": [""]}],
)
def test_fields_of_a_set_out_of_range_name_themselves(fields):
    with pytest.raises(UserError, match=f"{next(iter(fields))} of the evaluation set sums"):
        Sampling.for_evaluation(eval_set(**fields), settings())


@pytest.mark.parametrize("stop", [[""], ["x"] * 33])
def test_stop_strings_that_sglang_refuses(stop):
    with pytest.raises(UserError, match="--rollout-stop"):
        Sampling.for_training(settings(rollout={"rollout_stop": stop}))


def test_all_mistakes_are_named_at_once():
    with pytest.raises(UserError, match=r"--rollout-top-p.*--rollout-top-k"):
        Sampling.for_training(settings(rollout={"rollout_top_p": 0.0, "rollout_top_k": 0}))


def test_a_seed_is_the_documented_hash():
    # The first 32 bits of the digest without the last one.
    digest = hashlib.sha256(b"42/3/00000007/1").hexdigest()
    assert sample_seed(42, 3, "00000007", 1) == int(digest[:8], 16) // 2


@given(st.integers(0, 2**40), st.integers(-1, 10**6), st.integers(0, 10**8), st.integers(0, 1000))
def test_seeds_have_31_bits(run_seed, step, row, k):
    assert 0 <= sample_seed(run_seed, step, f"{row:08d}", k) < 2**31


def test_seeds_differ_in_each_of_their_parts():
    seeds = {
        sample_seed(run, step, f"{row:08d}", k)
        for run in range(3)
        for step in range(-1, 9)
        for row in range(10)
        for k in range(10)
    }
    assert len(seeds) == 3000  # 3000 draws of 2^31: one collision in about 480 tries


@pytest.mark.parametrize(
    ("arguments", "budget"),
    [
        ((10, 100, 1000, 0), 100),
        ((10, 100, 1000, 40), 60),  # 40 of 100 exist already
        ((10, 100, 60, 0), 50),  # clipped by the context
        ((10, 100, 60, 40), 10),
        ((60, 100, 60, 0), 0),  # no room
        ((70, 100, 60, 0), 0),
        ((10, 100, 1000, 100), 0),
        ((10, None, 60, 0), 50),
    ],
)
def test_budget(arguments, budget):
    prompt_length, max_new_tokens, context, produced = arguments
    assert response_budget(prompt_length, max_new_tokens, context, produced) == budget


@given(st.integers(0, 100), st.none() | st.integers(1, 100), st.integers(1, 100), st.integers(0, 100))
def test_a_budget_never_exceeds_a_bound(prompt_length, max_new_tokens, context, produced):
    budget = response_budget(prompt_length, max_new_tokens, context, produced)
    assert budget >= 0
    if budget:
        assert prompt_length + produced + budget <= context
        assert max_new_tokens is None or produced + budget <= max_new_tokens
