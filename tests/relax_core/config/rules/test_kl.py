from pathlib import Path
from typing import Any

import pytest
from rule_cases import Case, check_case, check_names

from relax_core.config.rules.kl import RULES

KL: dict[str, Any] = {"use_kl_loss": True, "kl_loss_coef": 0.1}

CASES: list[tuple[str, Case]] = [
    (
        "kl-weight-needs-the-loss",
        Case({"kl_loss_coef": 0.1}, "--kl-loss-coef 0.1: has no effect without --use-kl-loss. Add it, or", KL),
    ),
    (
        "kl-loss-needs-a-weight",
        Case(
            {"use_kl_loss": True},
            "--use-kl-loss: needs --kl-loss-coef, the weight",
            KL | {"kl_loss_coef": 0},
        ),
    ),
    (
        "unbiased-kl-needs-the-loss",
        Case(
            {"use_unbiased_kl": True},
            "--use-unbiased-kl: has no effect without --use-kl-loss.",
            {**KL, "use_unbiased_kl": True},
        ),
    ),
    (
        "kl-in-one-place",
        Case(
            {**KL, "kl_coef": 0.2},
            "--kl-coef 0.2: excludes --kl-loss-coef 0.1: a KL is part of the rewards or of the loss.",
            KL,
        ),
    ),
    (
        "kl-type-needs-kl",
        Case({"kl_loss_type": "k3"}, "--kl-loss-type k3: has no effect without a KL.", {**KL, "kl_loss_type": "k3"}),
    ),
    (
        "reference-is-read-for-kl",
        Case(
            {"ref_load": "{folder}/model", "load": "{folder}/other"},
            "--ref-load {folder}/model: is not read: the actor starts from --load, and without --use-kl-loss",
            {"ref_load": "{folder}/model"},  # the actor starts there
        ),
    ),
    (
        "reference-where-the-actor-starts",
        Case(
            {**KL, "load": "{folder}/model"},
            "--load {folder}/model: is the reference of the KL too, since no --ref-load is given.",
            {"load": "{folder}/model"},
        ),
    ),
    (
        "reference-updates-need-kl",
        Case(
            {"ref_update_interval": 5},
            "--ref-update-interval 5: has no effect without --use-kl-loss or --kl-coef",
            {**KL, "ref_update_interval": 5},
        ),
    ),
]


def test_every_rule_has_a_case() -> None:
    check_names(RULES, CASES)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_rule_tells_what_breaks_it_and_nothing_else(tmp_path: Path, name: str, case: Case) -> None:
    check_case(tmp_path, RULES, name, case)
