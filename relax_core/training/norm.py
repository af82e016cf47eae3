"""RMSNorm for Megatron's layer specification, usable under sequence parallelism.

Guarantee: the same numbers as ``torch.nn.RMSNorm``. Under sequence parallelism each rank normalises its own tokens, so
the weight's gradient is partial: it is marked, and Megatron's finalisation of gradients sums it over the ranks.
(Megatron's own wrapper of torch's norm refuses sequence parallelism.)
"""

from typing import Any

import torch


class RMSNorm(torch.nn.RMSNorm):
    """``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension.

    Args:
        config: Megatron's TransformerConfig.
        hidden_size: size of the last dimension.
        eps: added to the mean square.
        kwargs: further arguments with which Megatron builds norms; without meaning here.
    """

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
