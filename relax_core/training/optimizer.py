"""Megatron's optimiser, from our options.

Guarantee: a step is applied only when its gradient is finite, clipped to ``--clip-grad`` by the norm over all ranks.
The learning rates follow the options (see ``schedule``), not what a checkpoint was made with.
"""

import math
from importlib.util import find_spec
from typing import Any

import torch

from data.errors import UserError
from relax_core.config.sections import RelaxConfig
from relax_core.training.distributed import gather_objects
from relax_core.training.megatron import OptimizerConfig, clip_grad_by_total_norm_fp32, get_megatron_optimizer
from relax_core.training.megatron_config import megatron_object
from relax_core.training.model import number_format


def optimizer_config(config: RelaxConfig, device: torch.device) -> OptimizerConfig:
    """Megatron's configuration of the optimiser.

    Args:
        device: of the weights. On a CPU the optimiser's state is in host memory anyway: there is nothing to move.

    Raises:
        UserError: Megatron refuses it, or TransformerEngine is wanted and not installed.
    """
    options, half = config.optimizer, config.backend.fp16
    if options.use_precision_aware_optimizer and find_spec("transformer_engine") is None:
        raise UserError(
            "--use-precision-aware-optimizer needs TransformerEngine, which is not installed here.",
            "Install it, or give --no-use-precision-aware-optimizer.",
        )
    moved = options.optimizer_cpu_offload and device.type != "cpu"
    own = {
        "optimizer": options.optimizer,
        "lr": options.lr,
        "min_lr": options.min_lr,
        "weight_decay": options.weight_decay,
        "adam_beta1": options.adam_beta1,
        "adam_beta2": options.adam_beta2,
        "adam_eps": options.adam_eps,
        "clip_grad": options.clip_grad,
        "bf16": config.backend.bf16,
        "fp16": half,
        "params_dtype": number_format(config),
        "loss_scale": options.loss_scale if half else None,
        "initial_loss_scale": options.initial_loss_scale if half else None,
        "min_loss_scale": options.min_loss_scale if half else None,
        "use_distributed_optimizer": options.use_distributed_optimizer,
        "overlap_param_gather": options.overlap_param_gather,
        "use_precision_aware_optimizer": options.use_precision_aware_optimizer,
        "store_param_remainders": options.store_param_remainders,
        "optimizer_cpu_offload": moved,
        "optimizer_offload_fraction": 1.0 if moved else None,  # Megatron's own default moves nothing
        "overlap_cpu_optimizer_d2h_h2d": moved and options.overlap_cpu_optimizer_d2h_h2d,
    }
    return megatron_object(OptimizerConfig, "optimizer", config, own)


def build_optimizer(config: RelaxConfig, model: torch.nn.Module) -> Any:
    """Adam over the parameters that are trained (AdamW: decoupled weight decay, none on norms and biases).

    Args:
        model: in Megatron's data-parallel wrapper, with its weights loaded: main weights are copied from them.

    Raises:
        UserError: as ``optimizer_config``, or a state is to be moved to host memory that Megatron cannot move.
    """
    settings = optimizer_config(config, next(model.parameters()).device)
    if settings.optimizer_cpu_offload and not settings.use_precision_aware_optimizer:
        raise UserError(
            "--optimizer-cpu-offload needs --use-precision-aware-optimizer: Megatron moves the state of no other.",
            "Add it, and --use-distributed-optimizer.",
        )
    optimizer = get_megatron_optimizer(settings, [model])
    _fuse(optimizer)
    return optimizer


def _inner(optimizer: Any) -> list[Any]:
    """The optimisers inside Megatron's; a stage on which every parameter is frozen may have none."""
    return [part.optimizer for part in optimizer.chained_optimizers if part.optimizer is not None]


def _fuse(optimizer: Any) -> None:
    """One pass over the weights instead of ten, where Adam is torch's own (without TransformerEngine or Apex)."""
    for inner in _inner(optimizer):
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


@torch.no_grad()
def reset_moments(optimizer: Any) -> None:
    """Forget what the optimiser has learned of the gradients: moments and step counts are those of a fresh one."""
    for inner in _inner(optimizer):
        for state in inner.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                if name in state:
                    state[name].zero_()
            if isinstance(step := state.get("step"), torch.Tensor):
                step.zero_()
            elif step is not None:
                state["step"] = 0
        for group in inner.param_groups:  # the fused Adam of TransformerEngine and Apex counts here
            if "step" in group:
                group["step"] = torch.zeros_like(group["step"]) if isinstance(group["step"], torch.Tensor) else 0


@torch.no_grad()
def complete_states(optimizer: Any) -> int:
    """Give every parameter the state that it has before its first step, as checkpoints keep all states or none.

    A stage on which nothing is trained has no state, and in float16 no step may have been taken yet. Collective.

    Returns:
        The optimiser steps that Adam has counted, also on ranks without a parameter.
    """
    counted = 0
    for inner in _inner(optimizer):
        if not isinstance(inner, torch.optim.Adam):
            continue
        for parameter in (parameter for group in inner.param_groups for parameter in group["params"]):
            state = inner.state[parameter]
            if not state:
                state["step"] = torch.zeros((), device=parameter.device)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            counted = max(counted, int(state["step"]))
    return int(max(gather_objects(counted)))


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
            # where the precision-aware optimiser keeps gradients
            elsewhere = getattr(part.config, "use_precision_aware_optimizer_no_fp8_or_ds_fp8", False)
            if parameters := part.get_parameters():
                clip_grad_by_total_norm_fp32(parameters, clip_grad, norm, elsewhere)
    optimizer.step_with_ready_grads()
    schedule.step(1)
    return rate


def current_rate(optimizer: Any) -> float:
    """The learning rate of the next step."""
    return float(optimizer.param_groups[0]["lr"])


def loss_scale(optimizer: Any) -> float:
    """By what the loss is multiplied before the backward pass; 1 but for float16."""
    return float(optimizer.get_loss_scale())


def may_lower_scale(optimizer: Any) -> bool:
    """Whether the loss scale adapts itself and is not at its lower bound yet: an overflow then costs one step."""
    scalers: list[Any] = [getattr(part, "grad_scaler", None) for part in optimizer.chained_optimizers]
    return any(hasattr(scaler, "min_scale") and float(scaler.scale) > float(scaler.min_scale) for scaler in scalers)
