"""What people are told about estimators is what the registry says, and the options know them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from configs import valid_config

from data.errors import UserError
from relax_core.algorithms.recipes import RECIPES
from relax_core.algorithms.registry import Demand, estimator_names, estimators
from relax_core.config.estimators import algorithms_text, demand_text, honoured_estimators
from relax_core.config.examine import examine
from relax_core.config.options import OPTIONS


def test_the_choices_of_the_option_are_the_registered_estimators() -> None:
    assert set(OPTIONS["advantage_estimator"].choices) == set(estimator_names())


def test_every_registered_estimator_is_honoured() -> None:
    assert honoured_estimators() == estimator_names()


def test_every_estimator_and_recipe_is_told_with_all_its_demands() -> None:
    text = algorithms_text()
    for spec in estimators():
        own = algorithms_text(spec.name)
        assert own in text
        assert ("not supported" in own) is (spec.name not in honoured_estimators())
        words = " ".join(own.split())
        assert all(demand_text(demand) in words for demand in spec.all_demands)
    assert all(recipe.summary in text for recipe in RECIPES)


@pytest.mark.parametrize(
    ("demand", "text"),
    [
        (Demand("kl_coef", "", allowed=(0,)), "--kl-coef 0"),
        (Demand("use_kl_loss", "", allowed=(True,)), "--use-kl-loss"),
        (Demand("use_kl_loss", "", allowed=(False,)), "no --use-kl-loss"),
        (
            Demand("num_steps_per_rollout", "", allowed=(None, 1)),
            "--num-steps-per-rollout 1 or no --num-steps-per-rollout",
        ),
        (Demand("kl_loss_type", "", allowed=("k2",), when="use_kl_loss"), "--kl-loss-type k2 with --use-kl-loss"),
        (Demand("kl_coef", "", above=0), "--kl-coef above 0"),
        (Demand("n_samples_per_prompt", "", at_least=2), "--n-samples-per-prompt 2 or more"),
    ],
)
def test_a_demand_is_a_few_words(demand: Demand, text: str) -> None:
    assert demand_text(demand) == text


def breaking(demand: Demand) -> Any:
    """A value that the demand does not allow."""
    if demand.at_least is not None:
        return demand.at_least - 1
    if demand.above is not None:
        return 0.0
    candidates: tuple[Any, ...] = ("k3", 2) if isinstance(OPTIONS[demand.option].default, str | int) else ("x.f", 2)
    if isinstance(OPTIONS[demand.option].default, bool):
        candidates = (True, False)
    typed = {"text": str, "choice": str, "int": int, "float": int, "bool": bool}[OPTIONS[demand.option].kind]
    return next(value for value in candidates if isinstance(value, typed) and value not in (demand.allowed or ()))


@pytest.mark.parametrize(
    ("name", "demand"), [(spec.name, demand) for spec in estimators() for demand in spec.all_demands]
)
def test_the_checks_tell_every_demand_of_the_registry(name: str, demand: Demand, tmp_path: Path) -> None:
    options = {"advantage_estimator": name, demand.option: breaking(demand)} | (
        {demand.when: True} if demand.when else {}
    )
    report = examine(valid_config(tmp_path, **options), sources=dict.fromkeys(options, "command line"))
    told = " ".join(map(str, report.problems))
    if demand.option == "fully_async":  # told at the estimator
        assert f"--advantage-estimator {name} (command line): cannot be used with --fully-async" in told
    else:
        assert demand.reason.format(advantage_estimator=name) in told


def test_a_wrong_name_gets_the_nearest() -> None:
    with pytest.raises(UserError, match=r"no estimator or recipe .grop.*\n?.*Did you mean grpo\?"):
        algorithms_text("grop")


def test_the_command_needs_no_torch() -> None:
    code = (
        "import sys; from flows.cli.main import main; main(['algorithms', 'gspo']); assert 'torch' not in sys.modules"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert told.startswith("gspo\n")
