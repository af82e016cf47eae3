"""Recipes: their options exist and keep the demands of their estimator; Dr.GRPO's and DAPO's losses by hand."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from data.errors import UserError
from relax_core.algorithms.assemble import PolicyObjective
from relax_core.algorithms.loss_parts import LossOptions, Tokens
from relax_core.algorithms.recipes import RECIPES, get_recipe
from relax_core.algorithms.reduce import StepSize, dr_grpo, step_weights, with_options
from relax_core.algorithms.registry import get_estimator
from relax_core.algorithms.rewards import normalize_rewards
from relax_core.algorithms.sequences import Sequences
from relax_core.config.options import OPTIONS
from relax_core.functions import load_function


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_recipe_names_options_and_keeps_the_demands_of_its_estimator(recipe):
    assert recipe.options.keys() <= OPTIONS.keys()
    values = {name: entry.default for name, entry in OPTIONS.items()} | recipe.options
    assert get_estimator(recipe.options["advantage_estimator"]).broken(values.__getitem__) == []
    assert get_recipe(recipe.name) is recipe


def test_an_unknown_recipe_suggests_the_nearest():
    with pytest.raises(UserError, match="Did you mean dapo"):
        get_recipe("dapoo")


def loss_of(recipe, reducer=None):
    """Two samples of 4 and 1 tokens, rewards 1 and 0 on policy."""
    options = {field.name: recipe.options.get(field.name, field.default) for field in dataclasses.fields(LossOptions)}
    options = LossOptions(**options)
    spec = get_estimator(recipe.options["advantage_estimator"])
    rewards = normalize_rewards(
        np.array([1.0, 0.0]), ["g", "g"], kind=spec.normalizer,
        std=not recipe.options.get("disable_grpo_std_normalization", False),
    )  # fmt: skip
    offsets, mask, size = torch.tensor([0, 4, 5]), torch.ones(5), StepSize(2, 5)
    weights = step_weights(mask, offsets, size, per_token=options.calculate_per_token_loss)
    advantages = torch.tensor(np.repeat(rewards, [4, 1]))
    tokens = Tokens(torch.full((5,), -1.0), advantages, mask, weights, Sequences(offsets), total_lengths=[5, 2])
    return PolicyObjective(spec, options, size, reducer=reducer)(tokens).loss.item()


def test_dr_grpo_divides_by_a_constant_and_by_no_spread():
    # A = 1/2 and -1/2, on policy: losses -1/2 x 4 and 1/2 x 1, sum -1.5 over 10 tokens and 2 samples
    recipe = get_recipe("dr_grpo")
    loaded = load_function(
        recipe.options["custom_pg_loss_reducer_function_path"], "--custom-pg-loss-reducer-function-path",
        "reducer(total_lengths, response_lengths, loss_masks, per_token)", arguments=4,
    )  # fmt: skip
    assert loaded.call is dr_grpo
    reducer = with_options(loaded.call, SimpleNamespace(rollout_max_response_len=10))
    assert loss_of(recipe, reducer) == pytest.approx(-1.5 / 10 / 2)


def test_dapo_is_a_mean_over_tokens_with_a_higher_upper_clip():
    # A = +-1/2 / (0.70711 + 1e-6): (-4 + 1) / 5 of 0.70711
    assert loss_of(get_recipe("dapo")) == pytest.approx(-3 / 5 * 0.7071058, rel=1e-5)
    assert get_recipe("dapo").options["eps_clip_high"] == 0.28


@pytest.mark.parametrize(("args", "per_token"), [(SimpleNamespace(), False), (None, False),
                                                 (SimpleNamespace(rollout_max_response_len=4), True)])  # fmt: skip
def test_dr_grpos_reducer_says_what_it_needs(args, per_token):
    with pytest.raises(UserError, match=r"Dr\.GRPO"):
        dr_grpo([2], [1], [torch.ones(1)], per_token, args=args)
