"""Megatron's optimiser and learning-rate schedule, from our options.

Guarantee: a step is applied only when its gradient is finite, clipped to ``--clip-grad`` by the norm over all ranks.
The schedule counts optimiser steps and follows the options, not what a checkpoint was made with. As in Megatron the
warm-up starts at 0: step n (from 0) of a warm-up of w steps has the learning rate lr n / w.
"""

import math
from typing import Any

import torch

from data.errors import UserError
from relax_core.config.sections import RelaxConfig
from relax_core.training.megatron import (
    OptimizerConfig,
    OptimizerParamScheduler,
    clip_grad_by_total_norm_fp32,
    get_megatron_optimizer,
)
from relax_core.training.work import steps_per_rollout


def build_optimizer(config: RelaxConfig, model: torch.nn.Module) -> Any:
    """Adam over the model's parameters (AdamW: decoupled weight decay, none on norms and biases).

    Args:
        model: in Megatron's data-parallel wrapper, with its weights loaded: main weights are copied from them.
    """
    options = config.optimizer
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer=options.optimizer,
            lr=options.lr,
            min_lr=options.min_lr,
            weight_decay=options.weight_decay,
            adam_beta1=options.adam_beta1,
            adam_beta2=options.adam_beta2,
            adam_eps=options.adam_eps,
            clip_grad=options.clip_grad,
            bf16=config.backend.bf16,
            params_dtype=torch.bfloat16 if config.backend.bf16 else torch.float32,
            use_distributed_optimizer=options.use_distributed_optimizer,
        ),
        [model],
    )
    _fuse(optimizer)
    return optimizer


def _fuse(optimizer: Any) -> None:
    """One pass over the weights instead of ten, where Adam is torch's own (without TransformerEngine or Apex)."""
    for part in optimizer.chained_optimizers:
        inner = part.optimizer
        if isinstance(inner, torch.optim.AdamW):
            for group in inner.param_groups:
                group["fused"], group["foreach"] = True, False


def follow_options(optimizer: Any, config: RelaxConfig) -> None:
    """Put the options back into parameter groups that were loaded from a checkpoint, which holds its own."""
    options = config.optimizer
    for group in optimizer.param_groups:
        group["max_lr"], group["min_lr"] = options.lr, options.min_lr
        group["betas"], group["eps"] = (options.adam_beta1, options.adam_beta2), options.adam_eps
    _fuse(optimizer)


def build_schedule(config: RelaxConfig, optimizer: Any) -> Any:
    """The learning rate of every optimiser step; it decays over the whole run.

    Raises:
        UserError: a warm-up that is not shorter than the run, or a decay over a run of unknown length.
    """
    options = config.optimizer
    total = (config.rollout.num_rollout or 0) * steps_per_rollout(config)
    if not total and options.lr_decay_style != "constant":
        raise UserError(
            f"--lr-decay-style {options.lr_decay_style} needs the length of the run.", "Give --num-rollout."
        )
    if total and options.lr_warmup_iters >= total:
        raise UserError(
            f"--lr-warmup-iters {options.lr_warmup_iters} is not less than the run's {total} optimiser steps.",
            "Give fewer warm-up steps or a larger --num-rollout.",
        )
    if options.min_lr > options.lr:
        raise UserError(f"--min-lr {options.min_lr} is above --lr {options.lr}.", "Give a lower --min-lr.")
    total = total or options.lr_warmup_iters + 1
    return OptimizerParamScheduler(
        optimizer,
        init_lr=0.0,
        max_lr=options.lr,
        min_lr=options.min_lr,
        lr_warmup_steps=options.lr_warmup_iters,
        lr_decay_steps=total,
        lr_decay_style=options.lr_decay_style,
        start_wd=options.weight_decay,
        end_wd=options.weight_decay,
        wd_incr_steps=total,
        wd_incr_style="constant",
    )


def gradient_norm(optimizer: Any) -> float:
    """Norm of the gradient over all ranks. Makes the optimiser's gradients ready: call it once before ``apply``."""
    overflow = optimizer.prepare_grads()
    norm = float(optimizer.get_grad_norm())
    return math.inf if overflow else norm


def apply(optimizer: Any, schedule: Any, norm: float, clip_grad: float) -> float:
    """Clip by ``norm`` and take the step; the learning rate that it used."""
    rate = current_rate(optimizer)
    if clip_grad > 0:
        for part in optimizer.chained_optimizers:
            clip_grad_by_total_norm_fp32(part.get_parameters(), clip_grad, norm)
    optimizer.step_with_ready_grads()
    schedule.step(1)
    return rate


def current_rate(optimizer: Any) -> float:
    """The learning rate of the next step."""
    return float(optimizer.param_groups[0]["lr"])
