"""Rules about the optimiser, its schedule, and float16.

Guarantee: in float16, what nobody gave is filled in and told in one warning; a scale that is not used is neither filled
in nor judged.
"""

import math
from collections.abc import Iterator
from typing import Any

from relax_core.config.rules.base import Rule
from relax_core.config.rules.kinds import estimator
from relax_core.config.values import Values

FP16_SCALES = {"initial_loss_scale": 32768.0, "min_loss_scale": 1.0}
"""Scales of float16 that adapt themselves, where nobody gave others; a fixed --loss-scale leaves them unused."""

FP16_SWITCHES = {"use_precision_aware_optimizer": True, "store_param_remainders": False}
"""Switches of the optimiser in float16, where nobody gave them."""

_FP16 = ("fp16", "loss_scale", *FP16_SCALES, *FP16_SWITCHES)
_WARMUPS = ("lr_warmup_iters", "critic_lr_warmup_iters")


def _fallbacks(v: Values) -> dict[str, Any]:
    """The values that float16 needs and nobody gave."""
    if not v.fp16:
        return {}
    used = {**FP16_SCALES, **FP16_SWITCHES} if v.loss_scale is None else FP16_SWITCHES
    return {name: value for name, value in used.items() if v[name] is None}


def _told(v: Values) -> list[dict[str, Any]]:
    words = []
    for name, value in _fallbacks(v).items():
        flag = name.replace("_", "-")
        words.append((f"--{flag}" if value else f"--no-{flag}") if isinstance(value, bool) else f"--{flag} {value:g}")
    return [{"fallbacks": ", ".join(words)}] if words else []


def _adapts(v: Values) -> bool:
    """Whether the scale of the loss adapts itself."""
    return bool(v.fp16) and v.loss_scale is None


def _bad_scales(v: Values) -> Iterator[dict[str, Any]]:
    for name in FP16_SCALES:
        value = v[name]
        if _adapts(v) and value is not None and not (math.isfinite(value) and value > 0):
            yield {"option": name}


def _crossed_scales(v: Values) -> bool:
    low, first = v.min_loss_scale, v.initial_loss_scale
    # a first scale that is no scale is told by itself
    return _adapts(v) and None not in (low, first) and bool(0 < first < low)


def _late_warmups(v: Values) -> Iterator[dict[str, Any]]:
    if v.num_rollout is None:
        return
    total = v.num_rollout * (v.num_steps_per_rollout or 1)
    for name in _WARMUPS if estimator(v).needs_critic else _WARMUPS[:1]:
        if v[name] >= total:
            yield {"option": name, "total": total}


def _low_critic_rates(v: Values) -> Iterator[dict[str, Any]]:
    if estimator(v).needs_critic and v.critic_lr is not None and v.critic_lr != v.lr:
        for name in ("min_lr", "lr_warmup_init"):
            if v.critic_lr < v[name]:
                yield {"flag": f"--{name.replace('_', '-')}", "least": v[name]}


def _lone_weight_decays(values: Values) -> Iterator[dict[str, Any]]:
    if values.weight_decay_incr_style == "constant":
        for name in ("start_weight_decay", "end_weight_decay"):
            if values[name] is not None and values[name] != values.weight_decay:
                yield {"option": name}


RULES: tuple[Rule, ...] = (
    Rule(
        name="learning-rate-has-a-floor-below",
        option="min_lr",
        reads=("min_lr", "lr"),
        broken=lambda v: v.min_lr > v.lr,
        message="is above --lr {lr}.",
    ),
    Rule(
        name="warm-up-begins-below",
        option="lr_warmup_init",
        reads=("lr_warmup_init", "lr"),
        broken=lambda v: v.lr_warmup_init > v.lr,
        message="is above --lr {lr}.",
    ),
    Rule(
        name="critics-rate-is-no-lower-than-the-schedule",
        option="critic_lr",
        reads=("critic_lr", "lr", "min_lr", "lr_warmup_init", "advantage_estimator"),
        each=_low_critic_rates,
        message="is below {flag} {least}, with which its schedule begins or ends.",
    ),
    Rule(
        name="warm-up-has-one-length",
        option="lr_warmup_fraction",
        reads=("lr_warmup_fraction", "lr_warmup_iters"),
        broken=lambda v: v.lr_warmup_fraction is not None and v.lr_warmup_iters > 0,
        message="cannot be used with --lr-warmup-iters {lr_warmup_iters}: both say how long the warm-up is.",
        fix="Leave one out.",
    ),
    Rule(
        name="last-phase-has-a-length",
        option="lr_decay_style",
        reads=("lr_decay_style", "lr_wsd_decay_iters"),
        broken=lambda v: v.lr_decay_style == "WSD" and v.lr_wsd_decay_iters is None,
        message="needs --lr-wsd-decay-iters, the steps in which the rate goes down.",
    ),
    Rule(
        name="weight-decay-changes-somehow",
        option="start_weight_decay",
        reads=("start_weight_decay", "end_weight_decay", "weight_decay", "weight_decay_incr_style"),
        each=_lone_weight_decays,
        message="differs from --weight-decay {weight_decay} and needs --weight-decay-incr-style linear or cosine.",
        fix="Add it, or give --weight-decay alone.",
    ),
    Rule(
        name="warm-up-ends-before-the-run",
        option="lr_warmup_iters",
        reads=(*_WARMUPS, "num_rollout", "num_steps_per_rollout", "advantage_estimator"),
        each=_late_warmups,
        message="is not less than the run's {total} optimiser steps.",
        fix="Give fewer warm-up steps or a larger --num-rollout.",
    ),
    Rule(
        name="one-number-format",
        option="bf16",
        reads=("bf16", "fp16"),
        broken=lambda v: v.bf16 and v.fp16,
        message="excludes --fp16: weights have one format.",
        fix="Leave one of them out.",
    ),
    Rule(
        name="float16-has-values-of-its-own",
        option="fp16",
        reads=_FP16,
        each=_told,
        corrects=_fallbacks,
        message="uses values that were not given: {fallbacks}.",
        fix="Give them to decide yourself.",
        shows=False,
    ),
    Rule(
        name="loss-scales-are-positive",
        option="initial_loss_scale",
        reads=("fp16", "loss_scale", *FP16_SCALES),
        each=_bad_scales,
        message="must be a finite number above 0.",
    ),
    Rule(
        name="loss-scales-are-in-order",
        option="min_loss_scale",
        reads=("fp16", "loss_scale", *FP16_SCALES),
        broken=_crossed_scales,
        message="is above --initial-loss-scale {initial_loss_scale}.",
    ),
    Rule(
        name="precise-optimizer-is-distributed",
        option="use_precision_aware_optimizer",
        reads=("use_precision_aware_optimizer", "use_distributed_optimizer"),
        broken=lambda v: v.use_precision_aware_optimizer and not v.use_distributed_optimizer,
        message="needs --use-distributed-optimizer.",
        fix="Add it, or give --no-use-precision-aware-optimizer.",
    ),
    Rule(
        name="offloaded-optimizer-is-precise",
        option="optimizer_cpu_offload",
        reads=("optimizer_cpu_offload", "use_precision_aware_optimizer"),
        broken=lambda v: v.optimizer_cpu_offload and not v.use_precision_aware_optimizer,
        message="needs --use-precision-aware-optimizer.",
    ),
    Rule(
        name="overlapped-copies-are-made",
        option="overlap_cpu_optimizer_d2h_h2d",
        reads=("overlap_cpu_optimizer_d2h_h2d", "optimizer_cpu_offload"),
        broken=lambda v: v.overlap_cpu_optimizer_d2h_h2d and not v.optimizer_cpu_offload,
        message="needs --optimizer-cpu-offload: without it nothing is copied.",
    ),
)
