"""A rank's model, optimiser, schedule and reference, as they are at version 0.

Guarantee: the weights are those that ``relax_core.training.origin`` finds, on every layout; what the options freeze has
no gradient, no optimiser state and no part in the gradient norm.
"""

from dataclasses import dataclass
from typing import Any

import torch

from data.errors import UserError
from relax_core.config.derived import needs_reference
from relax_core.config.sections import RelaxConfig
from relax_core.training.checkpoint import Checkpointer, load_weights
from relax_core.training.distributed import Layout, together
from relax_core.training.freeze import freeze, freezes
from relax_core.training.model import ModelShape, build_policy, transformer_config
from relax_core.training.optimizer import build_optimizer
from relax_core.training.origin import Origin, actor_origin, reference_origin
from relax_core.training.passes import Passes
from relax_core.training.reference import WeightCopy
from relax_core.training.schedule import build_schedule
from relax_core.training.updates import wrap
from relax_core.weights.export import load_hf


@dataclass
class Parts:
    """What a rank is made of.

    Attributes:
        model: the policy in Megatron's data-parallel wrapper.
        reference: None where no loss compares with one.
    """

    model: Any
    optimizer: Any
    schedule: Any
    passes: Passes
    checkpointer: Checkpointer
    reference: WeightCopy | None


def build_parts(config: RelaxConfig, layout: Layout, device: torch.device) -> Parts:
    """Version 0. Collective.

    Raises:
        UserError: a model folder or checkpoint that is not there, damaged or of another shape, or options that do not
            go together.
    """
    folder = config.checkpoint.hf_checkpoint
    if folder is None:
        raise UserError("--hf-checkpoint is not set.", "Give the Hugging Face folder of the model.")
    start = together(lambda: actor_origin(config))
    assert start is not None
    shape = ModelShape.from_hf(folder)
    megatron = transformer_config(shape, config)
    policy = build_policy(shape, megatron, layout.first_stage, layout.last_stage).to(device)
    freeze(config, policy)
    reference = _other_reference(config, policy, start)
    _load(policy, start)
    if needs_reference(config) and reference is None:
        reference = WeightCopy(policy)
    model = wrap(config, megatron, policy)
    optimizer = build_optimizer(config, model)
    megatron.grad_scale_func = optimizer.scale_loss if config.backend.fp16 else None
    schedule = build_schedule(config, optimizer)
    checkpointer = Checkpointer(model, optimizer, schedule, layout, freezes(config))
    return Parts(model, optimizer, schedule, Passes(config, model, layout, device), checkpointer, reference)


def _other_reference(config: RelaxConfig, policy: torch.nn.Module, start: Origin) -> WeightCopy | None:
    """The reference where its weights are not those that the actor starts with."""
    if not needs_reference(config):
        return None
    origin = together(lambda: reference_origin(config))
    if origin is None or origin == start:
        return None
    _load(policy, origin)
    return WeightCopy(policy)


def _load(policy: torch.nn.Module, origin: Origin) -> None:
    if origin.iteration is None:
        together(lambda: load_hf(policy, origin.url))
    else:
        load_weights(policy, origin.url, origin.iteration)
