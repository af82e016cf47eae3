"""Weights between a Hugging Face folder and the ranks of a Megatron model.

Guarantee: loading fills every parameter of every stage, exporting yields every tensor of the model once, and a round
trip is bit-exact (in one type), under any data, tensor and pipeline parallelism. Runs in trainer processes only.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from relax_core.training.megatron import mpu
from relax_core.training.model import unwrap
from relax_core.training.shape import ModelShape
from relax_core.weights.huggingface import SHARD_BYTES, HfWeights, write_folder
from relax_core.weights.mapping import VALUE_HEAD, Entry, blocks, hf_shapes, join, merge, split_views, tied_copy


@torch.no_grad()
def load_hf(model: torch.nn.Module, folder: str | Path) -> None:
    """Fill this rank's parameters from a Hugging Face folder. No communication: every rank reads its own part.

    A critic takes the body: it has no output layer, and keeps the head that it has.

    An optimiser that keeps copies of the parameters must read them again afterwards (``reload_model_params``).

    Args:
        model: a stage of a policy or critic, or Megatron's wrapper of one.

    Raises:
        UserError: the folder does not fit the model; nothing has been changed then.
    """
    policy = unwrap(model)
    shape, stages = policy.shape, mpu.get_pipeline_model_parallel_world_size()
    weights = HfWeights(folder, replace(shape, values=False), body=shape.values)
    stage = mpu.get_pipeline_model_parallel_rank()
    rank, ranks = mpu.get_tensor_model_parallel_rank(), mpu.get_tensor_model_parallel_world_size()
    entries = [entry for owner, block in blocks(shape, stages) if owner == stage for entry in block]
    entries = [entry for entry in entries if not entry.megatron.startswith(VALUE_HEAD)]
    if shape.tie and not shape.values and 0 < stage == stages - 1:
        entries.append(tied_copy())
    parameters = {name: value for name, value in policy.named_parameters() if not name.startswith(VALUE_HEAD)}
    for entry in entries:
        parts = [weights.read(name, entry.cut, rank, ranks) for name in entry.hf]
        parameters.pop(entry.megatron).copy_(join(entry, parts, shape))
    if parameters:
        raise RuntimeError(f"parameters without a mapping: {', '.join(parameters)}")


class Part(NamedTuple):
    """One Hugging Face tensor that nobody has put together yet: ``values.reshape(shape)`` is it.

    Attributes:
        values: its elements in their order, in any shape; a view of a parameter where that is possible.
    """

    name: str
    values: Tensor
    shape: tuple[int, ...]


def iter_hf(model: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All Hugging Face tensors of the model, in the order of :func:`hf_shapes`, on global rank 0.

    Collective over tensor and pipeline parallelism: every rank must iterate to the end; all but global rank 0 get
    nothing. One layer at a time is gathered. A tied model yields its embedding once and no output layer.

    Yields:
        Name and tensor, on the model's device and in its type. It may be a view of a parameter: read it before the
        next optimiser step, and do not write to it.
    """
    for name, values, size in iter_parts(model):
        yield name, values.reshape(size)


def iter_parts(model: torch.nn.Module) -> Iterator[Part]:
    """As :func:`iter_hf`, with no copy of what is on this rank: for one who copies them anyway."""
    policy = unwrap(model)
    if mpu.get_data_parallel_rank() != 0:  # the other replicas have nothing to add
        return
    stages, stage = mpu.get_pipeline_model_parallel_world_size(), mpu.get_pipeline_model_parallel_rank()
    leads = mpu.get_tensor_model_parallel_rank() == 0
    shapes, plan = _plan(policy.shape, stages)
    group = mpu.get_pipeline_model_parallel_group()
    parameters = dict(policy.named_parameters())
    for owner, block in plan:
        tensors: list[Tensor] = []
        if owner == stage:
            tensors = _gather(parameters, policy.shape, block)
        if not leads:
            continue
        names = [name for entry in block for name in entry.hf]
        if owner == stage and stage != 0:
            dist.send(torch.cat([tensor.flatten() for tensor in tensors]), dist.get_global_rank(group, 0), group)
        elif owner != stage and stage == 0:
            sizes = [math.prod(shapes[name]) for name in names]
            # on the device of the weights: the rotary frequencies may still be on the CPU
            flat = next(iter(parameters.values())).new_empty(sum(sizes), dtype=policy.config.params_dtype)
            dist.recv(flat, dist.get_global_rank(group, owner), group)
            tensors = list(flat.split(sizes))
        if stage == 0:
            yield from (Part(name, values, shapes[name]) for name, values in zip(names, tensors, strict=True))


@lru_cache(maxsize=4)
def _plan(shape: ModelShape, stages: int) -> tuple[dict[str, tuple[int, ...]], list[tuple[int, list[Entry]]]]:
    """The shapes and the blocks, which are the same in every step."""
    return hf_shapes(shape), blocks(shape, stages)


def save_hf(model: torch.nn.Module, source: str | Path, out: str | Path, shard_bytes: int = SHARD_BYTES) -> None:
    """Export the model as a Hugging Face folder. Collective like :func:`iter_hf`; global rank 0 writes.

    A critic becomes a model for token classification with one label, the value.

    Args:
        source: folder whose config.json and tokenizer are taken over: that of the model's first weights.
        out: the new folder, visible once it is complete; replaced when it exists.

    Raises:
        UserError: on global rank 0, where ``out`` is a URL or its disk is too small. Other ranks may then wait for it.
    """
    policy = unwrap(model)
    if dist.get_rank() == 0:
        write_folder(iter_hf(policy), policy.shape, source, out, policy.config.params_dtype, shard_bytes)
    else:
        for _ in iter_hf(policy):
            pass


def _gather(known: dict[str, Tensor], shape: ModelShape, block: list[Entry]) -> list[Tensor]:
    """A block's Hugging Face tensors (``Part.values``) on tensor-parallel rank 0 of its stage, nothing on the others.

    Args:
        known: the parameters of this rank by name.
    """
    parameters = [known[entry.megatron].detach() for entry in block]
    group = mpu.get_tensor_model_parallel_group()
    gathered = [parameters]
    if group.size() > 1:
        flat = torch.cat([parameter.flatten() for parameter in parameters])
        leads = group.rank() == 0
        buffers = [torch.empty_like(flat) for _ in range(group.size())] if leads else None
        dist.gather(flat, buffers, dist.get_global_rank(group, 0), group)
        if buffers is None:
            return []
        sizes = [parameter.numel() for parameter in parameters]
        gathered = [
            [part.view_as(like) for part, like in zip(buffer.split(sizes), parameters, strict=True)]
            for buffer in buffers
        ]
    tensors: list[Tensor] = []
    for i, entry in enumerate(block):
        tensors += merge(entry, [split_views(entry, rank[i], shape) for rank in gathered])
    return tensors
