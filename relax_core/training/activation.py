"""The gated activation of the MLP.

Guarantee: forward, the bits of ``silu(gate) * up``. Megatron's plain version reads and writes the widest tensor of a
layer several times more (an offset of zero, a concatenation of two gradients) and keeps three copies for the backward
pass; this one keeps its input only.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from relax_core.algorithms.compiled import compiled


class SwiGLU(torch.nn.Module):
    """``silu(gate) * up`` where the input is gate and up side by side: [..., 2 x ffn] to [..., ffn]."""

    def forward(self, gate_up: Tensor) -> Tensor:
        if gate_up.is_cuda:
            return swiglu(gate_up)
        return _SwiGLU.apply(gate_up)  # type: ignore[no-any-return]

    def sharded_state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Nothing to save; Megatron's MLP asks each of its parts."""
        return {}


@compiled
def swiglu(gate_up: Tensor) -> Tensor:
    """``SwiGLU.forward``, for torch to compile."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


class _SwiGLU(torch.autograd.Function):
    """silu is computed again on the way back, and both halves of the gradient are written in place."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        gate, up = gate_up.chunk(2, -1)
        return F.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (gate_up,) = ctx.saved_tensors  # type: ignore[attr-defined]
        gate, up = gate_up.chunk(2, -1)
        result = torch.empty(gate_up.shape, dtype=gate_up.dtype, device=gate_up.device)
        gate_gradient, up_gradient = result.chunk(2, -1)
        buffer = F.silu(gate)
        torch.mul(gradient, buffer, out=up_gradient)
        torch.mul(gradient, up, out=buffer)
        torch.ops.aten.silu_backward.grad_input(buffer, gate, grad_input=gate_gradient)
        return result
