"""Functions that torch compiles where tensors are on a GPU.

Guarantee: on a CPU, in float32, where it is switched off and where nothing can be compiled a function runs as it is
written, with the same numbers up to rounding. One that cannot be compiled says so once. The first size of every tensor
but a parameter is a symbol: another number of rows compiles nothing anew (as far as torch lets its kernels be without
bounds, see ``WITHOUT_BOUNDS``). A single row, or none, is computed as it is written: torch would compile such sizes on
their own.
"""

import functools
import logging
import os
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

SWITCH = "RELAX_COMPILE"
"""Environment variable; 0 switches it off for all of a process, whatever the options say."""

VARIANTS = 64
"""Of one function that torch may compile, instead of 8: a norm of layers, queries and keys, with and without gradient,
of weights that are trained or frozen, has 12."""

HALF = (torch.bfloat16, torch.float16)
"""What is compiled. In float32 the same calls have to give the same bits in another process, and torch may choose the
order of a compiled sum by how long it takes."""

WITHOUT_BOUNDS = "triton.mix_order_reduction_non_strict_mode"
"""Setting of torch's inductor. Otherwise it puts two reductions of one tensor, as in a norm's backward pass, into one
kernel only from some number of rows on, and what it compiled on one side of that number is not taken on the other."""

_log = logging.getLogger(__name__)
_wanted = True


def want_compiled(wanted: bool) -> None:
    """Whether functions of this process are compiled where they can be (not with ``--disable-compile``)."""
    global _wanted
    _wanted = wanted


def wants_compiled() -> bool:
    """As ``want_compiled`` has said, and not switched off by the environment."""
    return _wanted and os.environ.get(SWITCH, "1") != "0"


def _counts_rows(value: object) -> bool:
    """The first size of it is a symbol. (Sizes of 0 and 1 would be compiled on their own in any case.)"""
    return (
        isinstance(value, torch.Tensor)
        and not isinstance(value, torch.nn.Parameter)
        and value.dim() > 0
        and value.shape[0] > 1
    )


class Compiled(Generic[P, R]):
    """A function of tensors, compiled at its first call with one on a GPU.

    Args:
        function: pure; its first argument is a tensor [rows, ...].
        backend: of ``torch.compile``.
    """

    def __init__(self, function: Callable[P, R], backend: str = "inductor") -> None:
        self.plain, self._backend = function, backend
        self._fast: Callable[..., R] | None = None
        self._broken = self._told = False
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        first: Any = args[0]
        if not first.is_cuda or first.dtype not in HALF or torch.compiler.is_compiling() or not wants_compiled():
            return self.plain(*args, **kwargs)
        return self.compiled(*args, **kwargs)

    def compiled(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The compiled function, whatever the device; the plain one where it cannot be compiled."""
        first: Any = args[0]
        if self._broken or first.shape[0] < 2:
            return self.plain(*args, **kwargs)
        if self._fast is None:
            settings = torch._dynamo.config
            settings.recompile_limit = max(settings.recompile_limit, VARIANTS)
            self._fast = torch.compile(self.plain, fullgraph=True, backend=self._backend, options=self._settings())
        for value in (*args, *kwargs.values()):
            if _counts_rows(value):
                torch._dynamo.maybe_mark_dynamic(value, 0)
        try:
            return self._fast(*args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except torch._dynamo.exc.FailOnRecompileLimitHit as error:  # is no TorchDynamoException
            self._tell(error)  # what is compiled already goes on
        except (torch._dynamo.exc.TorchDynamoException, ImportError) as error:
            self._broken = True
            self._tell(error)
        return self.plain(*args, **kwargs)

    def _settings(self) -> dict[str, Any] | None:
        """Of the backend; none where it is not torch's, and where torch does not know them."""
        if self._backend != "inductor":
            return None
        from torch._inductor import list_options

        return {WITHOUT_BOUNDS: True} if WITHOUT_BOUNDS in list_options() else None

    @property
    def usable(self) -> bool:
        """Nothing has shown yet that it cannot be compiled."""
        return not self._broken

    def _tell(self, error: Exception) -> None:
        if not self._told:
            self._told = True
            reason = str(error).strip().splitlines()
            _log.warning("%s runs uncompiled, which is slower: %s", self.plain.__name__, (reason or [repr(error)])[0])


def compiled(function: Callable[P, R]) -> Compiled[P, R]:
    """Decorator: see ``Compiled``."""
    return Compiled(function)
