"""The ranks of a trainer: joining, their layout, and sums over all of them.

Guarantee: one code path for gloo on a CPU and NCCL on CUDA. Ranks count tensor parallelism fastest, then data, then
pipeline parallelism, as Megatron does.
"""

import os
import random
import urllib.parse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from data.errors import UserError
from relax_core.config.sections import RelaxConfig
from relax_core.engines.meeting import store_at
from relax_core.training.megatron import mpu, tensor_parallel

T = TypeVar("T")


@dataclass(frozen=True)
class Layout:
    """Where this rank stands. Sizes multiply to ``world_size``."""

    rank: int
    world_size: int
    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    dp_rank: int
    dp_size: int

    @property
    def first_stage(self) -> bool:
        """This rank holds the embedding."""
        return self.pp_rank == 0

    @property
    def last_stage(self) -> bool:
        """This rank computes log-probs and the loss."""
        return self.pp_rank == self.pp_size - 1

    def shape(self) -> dict[str, int]:
        """The sizes, as checkpoints record them."""
        return {"tp": self.tp_size, "pp": self.pp_size, "dp": self.dp_size}


def join(config: RelaxConfig, rank: int, world_size: int, device: torch.device, init_method: str) -> Layout:
    """Join the ranks and divide them: tensor and pipeline sizes from the options, data parallelism is the rest.

    Args:
        init_method: where the ranks meet, e.g. ``tcp://127.0.0.1:29500``, the same on all (rank 0 may hold the port:
            :func:`relax_core.engines.meeting.meeting_place`); ``env://`` reads MASTER_ADDR and MASTER_PORT.

    Raises:
        UserError: sizes that do not divide the world.
    """
    parallel = config.parallel
    tensor, pipeline = parallel.tensor_model_parallel_size, parallel.pipeline_model_parallel_size
    if world_size % (tensor * pipeline):
        raise UserError(
            f"--tensor-model-parallel-size {tensor} x --pipeline-model-parallel-size {pipeline} does not divide the "
            f"trainer's {world_size} ranks.",
            "Change the sizes, or the devices of the role actor in --resource.",
        )
    timeout = timedelta(minutes=config.cluster.distributed_timeout_minutes)
    if not dist.is_initialized():
        backend = "gloo" if device.type == "cpu" else config.cluster.distributed_backend
        if device.type == "cuda":
            os.environ.setdefault("NCCL_CUMEM_ENABLE", "0")  # an engine's NCCL group would hang otherwise
            torch.cuda.set_device(device)
        place = _meeting_place(init_method, rank, world_size, timeout)
        dist.init_process_group(backend, rank=rank, world_size=world_size, timeout=timeout, **place)
    if not mpu.model_parallel_is_initialized():
        mpu.initialize_model_parallel(
            tensor_model_parallel_size=tensor,
            pipeline_model_parallel_size=pipeline,
            distributed_timeout_minutes=config.cluster.distributed_timeout_minutes,
        )
    return Layout(
        rank=rank,
        world_size=world_size,
        tp_rank=mpu.get_tensor_model_parallel_rank(),
        tp_size=tensor,
        pp_rank=mpu.get_pipeline_model_parallel_rank(),
        pp_size=pipeline,
        dp_rank=mpu.get_data_parallel_rank(),
        dp_size=mpu.get_data_parallel_world_size(),
    )


def _meeting_place(init_method: str, rank: int, world_size: int, timeout: timedelta) -> dict[str, Any]:
    """Arguments of ``init_process_group``."""
    url = urllib.parse.urlsplit(init_method)
    if url.scheme != "tcp" or url.hostname is None or url.port is None:
        return {"init_method": init_method}
    return {"store": store_at(url.hostname, url.port, world_size, rank == 0, timeout)}


def leave() -> None:
    """Undo :func:`join`."""
    if dist.is_initialized():
        mpu.destroy_model_parallel()
        dist.destroy_process_group()


def seed_all(seed: int) -> None:
    """Seed every generator of this process, Megatron's named ones included."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    tensor_parallel.model_parallel_cuda_manual_seed(seed)


def sum_over_ranks(values: Tensor) -> Tensor:
    """Sum, in place, of what the data-parallel ranks of the last stage hold; every other stage must pass zeros.

    Tensor-parallel ranks hold the same values and are not added. Afterwards all ranks hold the sum.
    """
    for group in _groups():
        dist.all_reduce(values, op=dist.ReduceOp.SUM, group=group)
    return values


def max_over_ranks(values: Tensor) -> Tensor:
    """Maximum, in place, over data-parallel ranks and stages; stages without values pass zeros, values are >= 0."""
    for group in _groups():
        dist.all_reduce(values, op=dist.ReduceOp.MAX, group=group)
    return values


def gather_objects(value: Any) -> list[Any]:
    """Every rank's small picklable value, in the order of ranks, on every rank."""
    if dist.get_world_size() == 1:
        return [value]
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, value)
    return gathered


def gather_parts(value: Any) -> list[Any]:
    """As ``gather_objects``, of the ranks alone whose values add up: see ``sum_over_ranks``."""
    counts = mpu.is_pipeline_last_stage() and mpu.get_tensor_model_parallel_rank() == 0
    return [given for own, given in gather_objects((counts, value)) if own]


def _groups() -> Iterable[dist.ProcessGroup]:
    groups = (mpu.get_data_parallel_group(), mpu.get_pipeline_model_parallel_group())
    return [group for group in groups if group.size() > 1]


def together(action: Callable[[], T], leader_only: bool = False) -> T | None:
    """Run something that may fail on one rank alone (a file, a disk), so that all ranks fail, or none.

    Args:
        leader_only: run it on global rank 0; the others get None.

    Raises:
        Exception: on every rank, the first rank's.
    """
    value: T | None = None
    error: Exception | None = None
    if not leader_only or dist.get_rank() == 0:
        try:
            value = action()
        except Exception as raised:
            error = raised
    if dist.get_world_size() > 1:
        error = next((found for found in gather_objects(error) if found is not None), None)
    if error is not None:
        raise error
    return value
