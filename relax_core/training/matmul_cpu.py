"""Float32 matrix products on CPUs where torch's default library is slow.

Guarantee: the same products in float32, summed in another order. On AMD processors MKL uses half of the width of
AVX-512; oneDNN, which torch also carries, uses all of it: seen 110 against 250 GFLOP/s a core on Zen 5. Which library
is used depends on the processor alone, so that a run gives the same bits every time on one machine.
"""

import warnings
from pathlib import Path

import torch
from torch import Tensor

_library: torch.library.Library | None = None


def use_fastest_matmul() -> bool:
    """Send this process's float32 matrix products to oneDNN where that is the faster; whether it was done."""
    global _library
    if _library is not None:
        return True
    if not _wide_amd_processor() or not torch.backends.mkldnn.is_available():
        return False
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    _library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():  # that it replaces torch's own product, which is meant
        warnings.simplefilter("ignore")
        _library.impl("mm", _mm, "CPU")
    return True


def _mm(left: Tensor, right: Tensor) -> Tensor:
    """``left`` [M, K] times ``right`` [K, N], in any memory layout."""
    if left.dtype != torch.float32 or min(*left.shape, right.shape[1]) == 0:
        return torch.bmm(left[None], right[None])[0]
    return torch.ops.mkldnn._linear_pointwise(left, right.t(), None, "none", [], "")  # type: ignore[no-any-return]


def _wide_amd_processor() -> bool:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "AuthenticAMD" in text and "avx512f" in text
