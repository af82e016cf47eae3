"""A rank's model, optimiser, schedule, reference and teacher, as they are at version 0.

Guarantee: the weights are those that ``relax_core.training.origin`` finds, on every layout; what the options freeze has
no gradient, no optimiser state and no part in the gradient norm.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException

from data.errors import UserError
from relax_core.algorithms.compiled import want_compiled
from relax_core.config.derived import needs_reference, needs_teacher
from relax_core.config.sections import RelaxConfig
from relax_core.training.checkpoint import Checkpointer, load_weights
from relax_core.training.critic import Values, build_critic
from relax_core.training.device_step import decides
from relax_core.training.distributed import Layout, together
from relax_core.training.freeze import freeze, freezes
from relax_core.training.fused_layer import fuse
from relax_core.training.model import ModelShape, PolicyModel, build_policy, transformer_config
from relax_core.training.optimizer import build_optimizer
from relax_core.training.origin import (
    Origin,
    actor_origin,
    critic_origin,
    model_folder,
    reference_origin,
    teacher_origin,
)
from relax_core.training.passes import Passes
from relax_core.training.readout import Logits, LogProbs, Readout
from relax_core.training.reference import WeightCopy
from relax_core.training.roles import Role
from relax_core.training.schedule import build_schedule
from relax_core.training.updates import wrap
from relax_core.weights.export import load_hf


@dataclass
class Parts:
    """What a rank is made of.

    Attributes:
        model: the policy, or the critic, in Megatron's data-parallel wrapper.
        reference: None where nothing compares with one.
        teacher: None where there is none in the trainer.
        decided_on_device: see ``device_step``.
    """

    model: Any
    optimizer: Any
    schedule: Any
    passes: Passes
    checkpointer: Checkpointer
    reference: WeightCopy | None
    teacher: WeightCopy | None
    decided_on_device: bool


def build_parts(config: RelaxConfig, layout: Layout, device: torch.device, role: Role = "actor") -> Parts:
    """Version 0. Collective.

    Args:
        config: as ``role_config`` makes it.

    Raises:
        UserError: a model folder or checkpoint that is not there, damaged or of another shape, or options that do not
            go together.
    """
    folder = config.checkpoint.hf_checkpoint
    if folder is None:
        raise UserError("--hf-checkpoint is not set.", "Give the Hugging Face folder of the model.")
    start = together(lambda: critic_origin(config) if role == "critic" else actor_origin(config))
    assert start is not None
    shape = ModelShape.from_hf(folder)
    megatron = transformer_config(shape, config)
    policy: PolicyModel
    if role == "critic":
        seed = config.optimizer.seed
        policy = build_critic(shape, megatron, layout.first_stage, layout.last_stage, seed).to(device)
    else:
        policy = build_policy(shape, megatron, layout.first_stage, layout.last_stage).to(device)
    freeze(config, policy)
    others = together(lambda: _other_origins(config, shape)) or {}
    copies: dict[str, WeightCopy] = {}
    for name, origin in others.items():
        if origin != start:
            _load(policy, origin)
            copies[name] = WeightCopy(policy)
    _load(policy, start)
    copies |= {name: WeightCopy(policy) for name in others if name not in copies}
    model = wrap(config, megatron, policy)
    compile_layers(config, policy, megatron)
    optimizer = build_optimizer(config, model)
    megatron.grad_scale_func = optimizer.scale_loss if config.backend.fp16 else None
    schedule = build_schedule(config, optimizer)
    checkpointer = Checkpointer(model, optimizer, schedule, layout, freezes(config))
    passes = Passes(model, _readout(config, model, role), layout, device)
    reference, teacher = copies.get("reference"), copies.get("teacher")
    on_device = decides(optimizer, device)
    return Parts(model, optimizer, schedule, passes, checkpointer, reference, teacher, on_device)


def compile_layers(config: RelaxConfig, policy: PolicyModel, megatron: Any) -> bool:
    """Say what torch compiles where tensors are on a GPU (``--disable-compile``: nothing); whether whole layers are.

    Weights that other ranks send while layers run (``--overlap-param-gather``) are waited for by Megatron's modules,
    which a compiled layer would pass by.
    """
    want_compiled(not config.training.disable_compile)
    if config.training.disable_compile or config.optimizer.overlap_param_gather:
        return False
    return fuse(policy.decoder, megatron)


def _readout(config: RelaxConfig, model: torch.nn.Module, role: Role) -> Readout:
    if role == "critic":
        return Values(model)
    return (Logits if config.algorithm.loss_type == "custom_loss" else LogProbs)(config, model)


def _other_origins(config: RelaxConfig, shape: ModelShape) -> dict[str, Origin]:
    """Where the weights beside the actor's are.

    Raises:
        UserError: none are there, or those of a model of another shape than ``shape``.
    """
    found: dict[str, Origin] = {}
    if needs_reference(config):
        found["reference"] = reference_origin(config)
    if needs_teacher(config):
        found["teacher"] = teacher_origin(config)
    for name, origin in found.items():
        folder = model_folder(origin)
        differing = [] if folder is None else shape.differences(ModelShape.from_hf(folder))
        if differing:
            option = {"reference": "--ref-load", "teacher": "--opd-teacher-load"}[name]
            raise UserError(
                f"{option} {origin.path} has another shape than --hf-checkpoint: {', '.join(differing)}.",
                f"The trainer computes with one model: a {name} is other weights of the same shape.",
            )
    return found


def _load(policy: torch.nn.Module, origin: Origin) -> None:
    if origin.iteration is None:
        together(lambda: load_hf(policy, origin.url))
        return
    try:
        load_weights(policy, origin.url, origin.iteration)
    except CheckpointException as error:  # on all ranks; it is no Exception
        reasons = [str(reason).splitlines()[0] for reason, _ in error.failures.values() if str(reason)]
        raise UserError(
            f"The checkpoint {origin.path} does not fit the model of --hf-checkpoint: {'; '.join(reasons[:1])}.",
            "Give a checkpoint of this model.",
        ) from error
