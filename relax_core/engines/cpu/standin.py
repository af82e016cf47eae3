"""Put the stand-in into this process.

Guarantee: each change is made once, right after the module of SGLang that it concerns is imported, so that no process
imports anything that it would not import anyway; a module of another SGLang version that lacks the changed name fails
with a message that says so, never silently.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

ENGINE_ONLY = "engine-only"
"""Folder below ``sys.prefix`` whose packages only an engine may import: beside a CPU torch, torchvision's CUDA build
breaks every import of a transformers model."""

TORCHVISION_OPERATORS = (
    "nms",
    "qnms",
    "roi_align",
    "_roi_align_backward",
    "ps_roi_align",
    "_ps_roi_align_backward",
    "roi_pool",
    "_roi_pool_backward",
    "ps_roi_pool",
    "_ps_roi_pool_backward",
    "deform_conv2d",
    "_deform_conv2d_backward",
)


_kept: list[object] = []  # a library's definitions live as long as the object


def install() -> None:
    """Make this process able to run SGLang on a CPU. A second call does nothing."""
    if any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        return
    folder = Path(sys.prefix) / ENGINE_ONLY
    if folder.is_dir() and str(folder) not in sys.path:
        sys.path.append(str(folder))
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    _declare_torchvision_operators()

    from relax_core.engines.cpu import attention, kernels, memory, processes, sampling, weights

    sys.modules["sgl_kernel"] = kernels
    sys.meta_path.insert(
        0,
        _AfterImport(
            {
                "sglang.srt.arg_groups.choices": sampling.allow_seeds,
                "sglang.srt.server_args": sampling.allow_seeds_here,
                "sglang.srt.batch_invariant_ops": sampling.no_batch_invariant_kernels,
                "sglang.srt.layers.sampler": sampling.replace_seeded_sampling,
                "sglang.srt.layers.attention.torch_native_backend": attention.batch_decode,
                "sglang.srt.entrypoints.engine": processes.copy_server,
                "sglang.srt.platforms.cpu": memory.no_collection,
                "sglang.srt.utils.weight_checker": weights.snapshot_by_copy,
                "sglang.srt.utils.weight_checker_comparator": weights.compare_in_place,
            }
        ),
    )


def _declare_torchvision_operators() -> None:
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in TORCHVISION_OPERATORS:
        library.define(f"{name}(Tensor a) -> Tensor")
    _kept.append(library)


class _AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Run a function on a module right after its import, by wrapping its ordinary loader."""

    def __init__(self, changes: dict[str, Callable[[ModuleType], None]]) -> None:
        self.changes = changes
        self.loaders: dict[str, importlib.abc.Loader] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.changes or fullname in self.loaders:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return None
        self.loaders[fullname] = spec.loader
        spec.loader = self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loaders[spec.name].create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loaders[module.__name__].exec_module(module)
        try:
            self.changes[module.__name__](module)
        except AttributeError as error:
            raise ImportError(
                f"the CPU stand-in does not fit this version of SGLang: {module.__name__} has changed ({error})"
            ) from error
