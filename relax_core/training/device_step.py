"""An optimiser step that the device itself takes, or passes over where a number is not finite.

Guarantee: the host launches it without waiting for the gradient, so that a GPU is never idle between the backward pass
and the new weights. Where the loss or the gradient's norm is not finite nothing changes: no weight, no moment, no
count. Else the step is the one of ``relax_core.training.optimizer.apply``, up to the rounding of the clipped gradient
(which is divided by ``norm / clip`` instead of multiplied by ``clip / norm``).
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from relax_core.training.distributed import gather_objects

EPSILON = 1e-6
"""Added to the norm before clipping, as Megatron does."""


def decides(optimizer: Any, device: torch.device) -> bool:
    """Whether the devices of all ranks can: torch's own fused Adam, on GPUs, without a loss scale. Collective.

    Args:
        optimizer: Megatron's, of the trainer; on a rank on which everything is frozen it has no part.
    """
    parts = [part for part in optimizer.chained_optimizers if part.optimizer is not None]
    able = waits_for(device) and all(
        isinstance(part.optimizer, torch.optim.AdamW)
        and getattr(part, "grad_scaler", None) is None
        and all(group["fused"] for group in part.optimizer.param_groups)
        for part in parts
    )
    return all(gather_objects(able))


def waits_for(device: torch.device) -> bool:
    """Whether a host would wait for such a device."""
    return device.type == "cuda"


@torch.no_grad()
def device_norm(optimizer: Any, device: torch.device) -> Tensor:
    """Norm of the gradient over all ranks, float32 [] on ``device``, the rank's. Makes the optimiser's gradients ready:
    call it once a step."""
    optimizer.prepare_grads()
    totals = []
    for part in optimizer.chained_optimizers:
        gradients = [gradient.detach() for gradient in _counted(part)()]
        total = torch.zeros((), device=device)
        if gradients:
            total = torch.stack(torch._foreach_norm(gradients)).float().square().sum()
        group = part.get_grad_stats_parallel_group()
        if dist.get_world_size(group) > 1:
            dist.all_reduce(total, group=group)
        totals.append(total)
    return torch.stack(totals).sum().sqrt()


def _counted(part: Any) -> Any:
    """What gives the gradients that this rank counts in the norm; Megatron renamed it in 0.19."""
    return getattr(part, "get_main_grads_for_grad_norm", None) or part.get_grads_for_grad_norm


@torch.no_grad()
def step_where_finite(optimizer: Any, norm: Tensor, loss: Tensor, clip_grad: float) -> None:
    """Clip by ``norm`` and take the step, if both numbers are finite.

    Args:
        norm: as ``device_norm`` gives it.
        loss: [] over all ranks, the same on each.
        clip_grad: 0: the gradient is not clipped.
    """
    skip = (~(torch.isfinite(norm) & torch.isfinite(loss))).float()
    scale = ((norm + EPSILON) / clip_grad).clamp(min=1.0) if clip_grad > 0 else None
    inner = [part.optimizer for part in optimizer.chained_optimizers if part.optimizer is not None]
    try:
        for one in inner:
            one.found_inf, one.grad_scale = skip, scale
        optimizer.step_with_ready_grads()
    finally:
        for one in inner:
            del one.found_inf, one.grad_scale
