"""Rules about the optimiser, its schedule, and float16."""

from pathlib import Path
from typing import Any

import pytest
from rule_cases import Case, check_case, check_names, report_of

from relax_core.config.options import get_option
from relax_core.config.rules.optimizer import RULES

FP16 = {"fp16": True, "use_distributed_optimizer": True}
STATIC = {**FP16, "loss_scale": 128.0}
SWITCHES = {"use_precision_aware_optimizer": True, "store_param_remainders": False}
ALL = {"initial_loss_scale": 65536.0, "min_loss_scale": 2.0, **SWITCHES}
VALUES_NOT_GIVEN = "uses values that were not given"

CASES: list[tuple[str, Case]] = [
    (
        "learning-rate-has-a-floor-below",
        Case({"min_lr": 1.0}, "--min-lr 1.0: is above --lr 1e-06.", {"min_lr": 1e-6, "lr_decay_style": "cosine"}),
    ),
    (
        "warm-up-begins-below",
        Case({"lr_warmup_init": 1.0}, "--lr-warmup-init 1.0: is above --lr 1e-06.", {"lr_warmup_init": 1e-7}),
    ),
    (
        "critics-rate-is-no-lower-than-the-schedule",
        Case(
            {"lr": 1e-4, "min_lr": 1e-5, "critic_lr": 1e-6, "advantage_estimator": "ppo"},
            "--critic-lr 1e-06: is below --min-lr 1e-05, with which its schedule begins or ends.",
            {"lr": 1e-4, "min_lr": 1e-5, "critic_lr": 1e-5, "advantage_estimator": "ppo"},
        ),
    ),
    (
        "warm-up-has-one-length",
        Case(
            {"lr_warmup_fraction": 0.5, "lr_warmup_iters": 1},
            "--lr-warmup-fraction 0.5: cannot be used with --lr-warmup-iters 1",
            {"lr_warmup_fraction": 0.5},
        ),
    ),
    (
        "last-phase-has-a-length",
        Case(
            {"lr_decay_style": "WSD"},
            "--lr-decay-style WSD: needs --lr-wsd-decay-iters",
            {"lr_decay_style": "WSD", "lr_wsd_decay_iters": 1},
        ),
    ),
    (
        "weight-decay-changes-somehow",
        Case(
            {"end_weight_decay": 0.5},
            "--end-weight-decay 0.5: differs from --weight-decay 0.01 and needs --weight-decay-incr-style",
            {"end_weight_decay": 0.5, "weight_decay_incr_style": "linear"},
        ),
    ),
    (
        "warm-up-ends-before-the-run",
        Case(  # 3 rollout steps with 2 updates each
            {"lr_warmup_iters": 6, "num_steps_per_rollout": 2},
            "--lr-warmup-iters 6: is not less than the run's 6 optimiser steps."
            " Give fewer warm-up steps or a larger --num-rollout.",
            {"lr_warmup_iters": 5, "num_steps_per_rollout": 2},
        ),
    ),
    (
        "warm-up-ends-before-the-run",
        Case(
            {"critic_lr_warmup_iters": 3, "advantage_estimator": "ppo"},
            "--critic-lr-warmup-iters 3: is not less than the run's 3 optimiser steps.",
            {"lr_warmup_iters": 9, "num_rollout": None, "num_epoch": 1},  # nobody knows yet how long that is
        ),
    ),
    (
        "one-number-format",
        Case({"bf16": True, "fp16": True}, "--bf16: excludes --fp16: weights have one format.", {"bf16": True}),
    ),
    (
        "float16-has-values-of-its-own",
        Case(
            FP16,
            "--fp16: uses values that were not given: --initial-loss-scale 32768, --min-loss-scale 1,"
            " --use-precision-aware-optimizer, --no-store-param-remainders. Give them to decide yourself.",
            {**FP16, **ALL},
            {"initial_loss_scale": 32768.0, "min_loss_scale": 1.0, **SWITCHES},
        ),
    ),
    (
        "float16-has-values-of-its-own",
        Case(  # only what is missing is filled in, and told
            {**FP16, "initial_loss_scale": 1024.0, "store_param_remainders": True},
            "--fp16: uses values that were not given: --min-loss-scale 1, --use-precision-aware-optimizer. Give",
            {"use_distributed_optimizer": True},
            {
                "initial_loss_scale": 1024.0,
                "min_loss_scale": 1.0,
                "use_precision_aware_optimizer": True,
                "store_param_remainders": True,
            },
        ),
    ),
    (
        "float16-has-values-of-its-own",
        Case(  # a fixed scale leaves the two others alone
            STATIC,
            "--fp16: uses values that were not given: --use-precision-aware-optimizer, --no-store-param-remainders.",
            {**STATIC, **SWITCHES},
            {"initial_loss_scale": None, "min_loss_scale": None, **SWITCHES},
        ),
    ),
    (
        "loss-scales-are-positive",
        Case(
            {**FP16, "initial_loss_scale": 0.0},
            "--initial-loss-scale 0.0: must be a finite number above 0.",
            {**STATIC, "initial_loss_scale": 0.0},
        ),
    ),
    (
        "loss-scales-are-positive",
        Case(
            {**FP16, "min_loss_scale": -1.0},
            "--min-loss-scale -1.0: must be a finite number above 0.",
            {"min_loss_scale": -1.0},
        ),
    ),
    (
        "loss-scales-are-positive",
        Case(
            {**FP16, "initial_loss_scale": float("inf")},
            "--initial-loss-scale inf: must be a finite number above 0.",
            {**FP16, "initial_loss_scale": 65536.0},
        ),
    ),
    (
        "loss-scales-are-in-order",
        Case(
            {**FP16, "initial_loss_scale": 4.0, "min_loss_scale": 8.0},
            "--min-loss-scale 8.0: is above --initial-loss-scale 4.0.",
            {**STATIC, "initial_loss_scale": 4.0, "min_loss_scale": 8.0},
        ),
    ),
    (
        "loss-scales-are-in-order",
        Case(  # against the value that is filled in
            {**FP16, "min_loss_scale": 65536.0},
            "--min-loss-scale 65536.0: is above --initial-loss-scale 32768.0.",
            {**FP16, "min_loss_scale": 32768.0},
        ),
    ),
    (
        "loss-scales-are-in-order",
        Case(
            {**FP16, "initial_loss_scale": 4.0, "min_loss_scale": 8.0},
            "--min-loss-scale 8.0: is above",
            {**FP16, "initial_loss_scale": -4.0},  # told once
        ),
    ),
    (
        "precise-optimizer-is-distributed",
        Case(
            {"use_precision_aware_optimizer": True},
            "--use-precision-aware-optimizer: needs --use-distributed-optimizer. Add it, or give"
            " --no-use-precision-aware-optimizer.",
            {"use_precision_aware_optimizer": True, "use_distributed_optimizer": True},
        ),
    ),
    (
        "offloaded-optimizer-is-precise",
        Case(
            {"optimizer_cpu_offload": True},
            "--optimizer-cpu-offload: needs --use-precision-aware-optimizer.",
            {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True},
        ),
    ),
    (
        "overlapped-copies-are-made",
        Case(
            {"overlap_cpu_optimizer_d2h_h2d": True},
            "--overlap-cpu-optimizer-d2h-h2d: needs --optimizer-cpu-offload: without it nothing is copied.",
            {"overlap_cpu_optimizer_d2h_h2d": True, "optimizer_cpu_offload": True},
        ),
    ),
]


@pytest.mark.parametrize(("name", "case"), CASES, ids=[name for name, _ in CASES])
def test_rules(tmp_path: Path, name: str, case: Case) -> None:
    check_case(tmp_path, RULES, name, case)


def test_every_rule_has_a_case() -> None:
    check_names(RULES, CASES)


def told(folder: Path, options: dict[str, Any]) -> list[str]:
    return [str(problem) for problem in report_of(folder, options).problems if VALUES_NOT_GIVEN in str(problem)]


def test_one_warning_lists_all_that_float16_fills_in(tmp_path: Path) -> None:
    assert len(told(tmp_path, FP16)) == 1
    assert told(tmp_path, {**FP16, **ALL}) == []
    assert told(tmp_path, {}) == []


def test_scales_beside_a_fixed_one_are_neither_filled_in_nor_judged_nor_told(tmp_path: Path) -> None:
    for scales in ({}, {"initial_loss_scale": -4.0, "min_loss_scale": 8.0}):
        report = report_of(tmp_path, {**STATIC, **SWITCHES, **scales})
        for name in ("initial_loss_scale", "min_loss_scale"):
            assert get_option(report.config, name) == scales.get(name)
        assert told(tmp_path, {**STATIC, **SWITCHES, **scales}) == []
        # whether the code honours the option is another question
        judged = [str(problem) for problem in report.problems if "has no effect in this version" not in str(problem)]
        assert not [problem for problem in judged if "-loss-scale" in problem]


def test_other_formats_keep_megatrons_values(tmp_path: Path) -> None:
    config = report_of(tmp_path, {"bf16": True}).config
    assert {name: get_option(config, name) for name in ALL} == dict.fromkeys(ALL)
