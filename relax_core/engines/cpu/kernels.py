"""The package ``sgl_kernel`` of an engine on a CPU.

Guarantee: what SGLang's text path calls with the torch_native attention is here, in torch; any other name imports but
raises when it is called, naming itself, so that no result is ever made up.
"""

from collections.abc import Callable
from typing import Any

import torch

__version__ = "0.0.0+torch"
__path__: list[str] = []  # a package for the import system, without submodules


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write each request's new cache slots into its row of the request table.

    Args:
        req_pool_indices: [requests] row of each request.
        req_to_token: [rows, context] cache slot of each token; changed in place.
        start_offset, end_offset: [requests] columns that each request gets.
        out_cache_loc: [sum of the widths] the slots, request by request.
        pool_len: number of columns; implied by ``req_to_token``.
    """
    position = 0
    for row, start, end in zip(req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True):
        req_to_token[row, start:end] = out_cache_loc[position : position + end - start].to(req_to_token.dtype)
        position += end - start


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"sgl_kernel.{name} has no CPU stand-in: this feature of SGLang needs a CUDA device")

    missing.__name__ = name
    return missing
