"""Megatron-core on a machine without a GPU.

Guarantee: where CUDA exists :func:`install` does nothing, so that the code which GPUs run stays untouched. Elsewhere it
maps the CUDA calls that Megatron-core makes on the dense path (data, tensor, pipeline and sequence parallelism,
distributed optimiser, distributed checkpoints, recomputation) to their CPU meaning, and collectives run over gloo.
The replacements are global to the process: only trainer processes may install them, before Megatron is imported.

:func:`fix_without_transformer_engine` and :func:`fix_several_buckets` mend what is broken in Megatron-core itself, on
any device; the former when TransformerEngine and Apex are absent.
"""

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._device

_CPU = torch.device("cpu")
_FACTORIES = ("tensor", "zeros", "ones", "empty", "empty_like")  # those that Megatron calls with device="cuda"
_installed = False


def install() -> None:
    """Replace CUDA calls by CPU ones in this process; without effect where CUDA exists or when called again."""
    global _installed
    if _installed or torch.cuda.is_available():
        return
    _installed = True
    _replace_device_calls()
    _replace_random_state()
    # `with torch.device(...)` looks factories up in a table of the originals, made at its first use: make it now.
    torch.utils._device._device_constructors()
    for name in _FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    _replace_tensor_methods()
    _import_without_compile()


def _replace_device_calls() -> None:
    """What asks for the current device or waits for it."""
    cuda: Any = torch.cuda
    # Buffers, rotary tables and pipeline receives are made with device=torch.cuda.current_device().
    cuda.current_device = lambda: _CPU
    # Pipeline exchange and checkpoint writing wait for the device or empty its cache: nothing to do here.
    # Newer versions ask for the current stream before they reduce gradients, and use it with CUDA graphs only.
    for name in ("synchronize", "empty_cache", "current_stream"):
        setattr(cuda, name, _nothing())


def _replace_random_state() -> None:
    """Megatron keeps named CUDA generators for weight initialisation and recomputation: the CPU has one generator."""
    cuda: Any = torch.cuda
    cuda.get_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    cuda.manual_seed = lambda seed: torch.manual_seed(seed)


def _replace_tensor_methods() -> None:
    """Tensor methods that name CUDA."""
    tensor: Any = torch.Tensor
    original_type = tensor.type

    def type_(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        # Optimisers and gradient clipping compare type() with 'torch.cuda.FloatTensor' and refuse the rest.
        result = original_type(self, *args, **kwargs)
        return result.replace("torch.", "torch.cuda.", 1) if isinstance(result, str) else result

    tensor.type = type_
    # Tied embeddings over pipeline stages and restored optimiser state are moved to the device.
    tensor.cuda = lambda self, *args, **kwargs: self


def _import_without_compile() -> None:
    """Import Megatron with torch.compile switched off.

    Its small fusions are decorated during the import; compiling them costs seconds of C++ in every process and
    gains nothing at CPU speeds. Its random state helpers reach for CUDA generators directly.
    """
    original = torch.compile
    compiler: Any = torch
    compiler.compile = _no_compile
    try:
        with warnings.catch_warnings():  # a dozen notices that TransformerEngine and Apex are not there
            warnings.simplefilter("ignore")
            import megatron.core.models.gpt
            import megatron.core.optimizer  # noqa: F401
            import megatron.core.tensor_parallel.random as random
    finally:
        compiler.compile = original
    random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *args, **kwargs: torch.set_rng_state(state)


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The tensor factory with device='cuda' read as the CPU."""

    @functools.wraps(factory)
    def wrapped(*args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("device") == "cuda":
            kwargs["device"] = _CPU
        return factory(*args, **kwargs)

    return wrapped


def _nothing() -> Callable[..., None]:
    """A new function that does nothing. (torch.compile refuses to see one function under two of torch's names.)"""
    return lambda *args, **kwargs: None


def _no_compile(function: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Callable[..., Any]:
    """Stand-in for torch.compile, as a call or as a decorator with arguments."""
    return function if function is not None else lambda inner: inner


def fix_without_transformer_engine() -> None:
    """Mend the distributed optimiser's checkpoints where its Adam is torch's own.

    Megatron's wrapper was written for the fused Adam of TransformerEngine or Apex, which counts steps per parameter
    group; torch.optim.AdamW keeps a ``step`` tensor per parameter. Without effect where the fused one is there, or
    when called again.
    """
    import megatron.core.optimizer.distrib_optimizer as module

    if module.HAVE_APEX_OR_TE or getattr(module.DistributedOptimizer, "_relax_fixed", False):
        return
    optimizer: Any = module.DistributedOptimizer
    optimizer._relax_fixed = True
    original_state, original_sharded, original_set, original_load = (
        optimizer.state_dict,
        optimizer.sharded_state_dict,
        optimizer._set_main_param_and_optimizer_states,
        optimizer.load_state_dict,
    )

    def sharded_state_dict(self: Any, model_state: Any = None, is_loading: bool = False, *args: Any, **kw: Any) -> Any:
        # A fresh optimiser has no state, and the template for loading asserts that every parameter has the same step.
        if is_loading and not self.optimizer.state:
            self._init_optimizer_states_with_dummy_values()
        return original_sharded(self, {} if model_state is None else model_state, is_loading, *args, **kw)

    def state_dict(self: Any) -> Any:
        # A rank without a parameter has no state to read the count of steps from.
        if self.is_stub_optimizer or self.optimizer.state:
            return original_state(self)
        groups = self.optimizer.state_dict()["param_groups"]
        for group in groups:
            del group["params"]
            group["step"] = getattr(self, "relax_steps", 0)
        scaler = {"grad_scaler": self.grad_scaler.state_dict()} if self.grad_scaler else {}
        return {"optimizer": {"param_groups": groups}, **scaler}

    def set_states(self: Any, parameter: Any, tensors: dict[str, Any]) -> Any:
        # The checkpoint holds the step once, not per parameter: keep the parameter's own instead of a KeyError.
        if "step" not in tensors:
            group, order = self.model_param_group_index_map[parameter]
            state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
            tensors = {**tensors, **{key: value for key, value in state.items() if key == "step"}}
        return original_set(self, parameter, tensors)

    def load_state_dict(self: Any, state_dict: Any) -> Any:
        # Loading gives all parameters one shared step tensor, which each of them would then advance.
        result = original_load(self, state_dict)
        for state in self.optimizer.state.values():
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].clone()
        return result

    optimizer.state_dict = state_dict
    optimizer.sharded_state_dict = sharded_state_dict
    optimizer._set_main_param_and_optimizer_states = set_states
    optimizer.load_state_dict = load_state_dict


def fix_several_buckets() -> None:
    """Mend the distributed optimiser's checkpoints where gradients lie in more than one bucket (overlapped reductions).

    A bucket is padded at its end. What Megatron gathers for a checkpoint leaves that padding out, but it is cut into
    parameters as if it were there: with a warning, everything behind the first bucket is saved wrong. Here it is cut
    where the parameters are. Without effect in a version that no longer warns, or when called again.
    """
    import megatron.core.optimizer.distrib_optimizer as module

    optimizer: Any = module.DistributedOptimizer
    original = optimizer.sharded_param_state_fully_reshardable
    if getattr(optimizer, "_relax_buckets", False) or "padded with zeros" not in inspect.getsource(original):
        return
    optimizer._relax_buckets = True

    def sharded_param_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        maps = [buffer.param_index_map for buffer in self.buffers]
        try:
            for buffer in self.buffers:
                buffer.param_index_map = _without_padding(buffer)
            return original(self, *args, **kwargs)
        finally:
            for buffer, places in zip(self.buffers, maps, strict=True):
                buffer.param_index_map = places

    optimizer.sharded_param_state_fully_reshardable = sharded_param_state


def _without_padding(buffer: Any) -> dict[Any, tuple[int, int, int]]:
    """Where parameters lie in a buffer whose buckets follow each other without their padding."""
    padding, before = [], 0
    for bucket in buffer.buckets:
        padding.append(bucket.offset - before)
        before += bucket.numel_unpadded
    return {
        parameter: (start - padding[bucket], end - padding[bucket], bucket)
        for parameter, (start, end, bucket) in buffer.param_index_map.items()
    }
