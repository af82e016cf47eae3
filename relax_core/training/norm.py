"""RMSNorm for Megatron's layer specification, usable under sequence parallelism.

Guarantee: the numbers of ``torch.nn.RMSNorm`` up to rounding. Under sequence parallelism each rank normalises its own
tokens, so the weight's gradient is partial: it is marked, and Megatron's finalisation of gradients sums it over the
ranks. (Megatron's own wrapper of torch's norm refuses sequence parallelism.)
"""

from typing import Any

import torch
from torch import Tensor

from relax_core.algorithms.compiled import compiled


class RMSNorm(torch.nn.RMSNorm):
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, computed in float32.

    Args:
        config: Megatron's TransformerConfig.
        hidden_size: size of the last dimension.
        eps: added to the mean square.
        kwargs: further arguments with which Megatron builds norms; without meaning here.
    """

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        self.epsilon = eps
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda:  # one kernel there; on a CPU torch composes it of a dozen passes and keeps three copies
            return rms_norm(x, self.weight, self.epsilon)
        return _RMSNorm.apply(x, self.weight, self.epsilon)  # type: ignore[no-any-return]


@compiled
def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """``RMSNorm.forward``, for torch to compile."""
    scaled = x.float()
    scaled = scaled * (scaled.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    return (scaled * weight.float()).to(x.dtype)


class _RMSNorm(torch.autograd.Function):
    """Keeps the input and one number per row.

    With ``n = x * scale`` and a gradient g: the weight's gradient is the sum of ``g n`` over rows, and the input's is
    ``scale * (g weight - n * mean(g n weight))``.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        wide = x.float()
        scale = (wide.square().mean(-1, keepdim=True) + epsilon).rsqrt()
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale).mul_(weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        x, weight, scale = ctx.saved_tensors
        gradient, wide_weight = gradient.float(), weight.float()
        normed = x.float() * scale
        product = gradient * normed
        weight_gradient = product.flatten(0, -2).sum(0)
        mean = torch.matmul(product, wide_weight).unsqueeze(-1) / x.shape[-1]
        x_gradient = torch.mul(gradient, wide_weight, out=product).addcmul_(normed, mean, value=-1).mul_(scale)
        return x_gradient.to(x.dtype), weight_gradient.to(weight.dtype), None
