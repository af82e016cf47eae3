"""What a checkpoint of a trainer holds, in Megatron's form: model, reference, optimiser, schedule, random state.

Guarantee: what was taken back is what was there, bit by bit in float32 on the same layout, also where some parameters
are frozen: then a rank, or a whole pipeline stage, may have no optimiser state at all.
"""

from collections.abc import Mapping
from typing import Any

import torch

from relax_core.training.distributed import Layout
from relax_core.training.megatron import ShardedObject, ShardedTensor, ShardedTensorFactory, mpu, tensor_parallel
from relax_core.training.model import unwrap
from relax_core.training.optimizer import complete_states
from relax_core.training.reference import WeightCopy

MAIN_WEIGHTS = "fp32_from_fp16_params"
"""What Megatron's float16 optimiser calls the main weights of its parameter groups."""
REFERENCE = "reference."
"""What the names of the reference's tensors in a checkpoint begin with."""


class Content:
    """One trainer's state.

    Args:
        model: the policy in Megatron's data-parallel wrapper.
        frozen: some parameters are not trained.
    """

    def __init__(self, model: torch.nn.Module, optimizer: Any, schedule: Any, layout: Layout, frozen: bool) -> None:
        self._policy, self._optimizer, self._schedule, self._layout = unwrap(model), optimizer, schedule, layout
        self.separate_layers = frozen or getattr(self._policy.config, "hetereogenous_dist_checkpoint", False)
        """Megatron stacks what all layers have, such as a moment: with frozen layers the stack would have holes."""

    def to_save(self, with_optimizer: bool, reference: WeightCopy | None) -> dict[str, Any]:
        """What Megatron saves. Collective."""
        template, metadata = self._weights(reference, self.separate_layers)
        if with_optimizer:
            template["opt_param_scheduler"] = self._schedule.state_dict()
            steps = complete_states(self._optimizer)
            for part in self._optimizer.chained_optimizers:
                part.relax_steps = steps  # what rank 0 says is kept, and it may have no parameter
            saved = self._optimizer.sharded_state_dict(template, metadata=metadata)
            for place in (saved, saved.get("optimizer", {})):  # of the float32 and of the float16 optimiser
                if "state" in place:
                    place["state"].setdefault("common_step", torch.tensor(float(steps)))
            template["optimizer"] = _name_places(saved)
            template["rng_state"] = _random_state(self._layout, empty=False)
        return template

    def to_load(self, reference: WeightCopy | None, separate_layers: bool, random_state: bool) -> dict[str, Any]:
        """The places that Megatron loads into. Collective.

        Args:
            separate_layers: as it was saved.
            random_state: load it too.
        """
        template, metadata = self._weights(reference, separate_layers)
        places = self._optimizer.sharded_state_dict(template, is_loading=True, metadata=metadata)
        template["optimizer"] = _name_places(places)
        if random_state:
            template["rng_state"] = _random_state(self._layout, empty=True)
        return template

    def take(self, loaded: dict[str, Any], reference: WeightCopy | None) -> None:
        """Become what was loaded."""
        self._policy.load_state_dict(loaded["model"], strict=True)
        for part in self._optimizer.chained_optimizers:
            _list_places(loaded["optimizer"], part)
        self._optimizer.load_state_dict(loaded["optimizer"])
        self._schedule.num_steps = loaded["opt_param_scheduler"]["num_steps"]
        if reference is not None:
            _take_reference(reference, self._policy, loaded["reference"])
        if "rng_state" in loaded:
            _restore_random_state(loaded["rng_state"])

    def _weights(self, reference: WeightCopy | None, separate_layers: bool) -> tuple[dict[str, Any], dict[str, Any]]:
        metadata = _metadata(separate_layers)
        template = {"model": self._policy.sharded_state_dict(metadata=metadata)}
        if reference is not None:
            template["reference"] = _reference_template(reference, self._policy, metadata)
        return template, metadata


def weights_template(model: torch.nn.Module, separate_layers: bool) -> dict[str, Any]:
    """The places into which Megatron loads the weights alone."""
    return {"model": unwrap(model).sharded_state_dict(metadata=_metadata(separate_layers))}


def _metadata(separate_layers: bool) -> dict[str, Any]:
    """How Megatron cuts what it saves."""
    return {
        "non_homogeneous_layers": separate_layers,
        "distrib_optim_sharding_type": "fully_reshardable",
        "distrib_optim_fully_reshardable_mem_efficient": False,
        "dp_cp_group": mpu.get_data_parallel_group(with_context_parallel=True),
        "singleton_local_shards": False,
        "chained_optim_avoid_prefix": True,
    }


def _name_places(saved: dict[str, Any]) -> dict[str, Any]:
    """Make dictionaries of lists whose lengths differ from rank to rank: Megatron cannot merge an empty one."""
    if MAIN_WEIGHTS in saved:
        saved[MAIN_WEIGHTS] = {i: dict(enumerate(group)) for i, group in enumerate(saved[MAIN_WEIGHTS]) if group}
    return saved


def _list_places(loaded: dict[str, Any], part: Any) -> None:
    """Undo ``_name_places``."""
    if (groups := getattr(part, "fp32_from_float16_groups", None)) is not None:
        named = loaded.get(MAIN_WEIGHTS, {})
        loaded[MAIN_WEIGHTS] = [[named[i][j] for j in range(len(group))] for i, group in enumerate(groups)]


def _reference_template(reference: WeightCopy, policy: Any, metadata: dict[str, Any]) -> dict[str, Any]:
    """The reference's weights as Megatron saves a model's, under names of their own."""

    def own_tensor(entry: Any) -> Any:  # the parameter that is named gets the policy's weights back
        if isinstance(entry, ShardedTensor | ShardedTensorFactory):
            entry.data = entry.data.detach()
        return entry

    with reference.in_place_of(policy):
        template: dict[str, Any] = policy.sharded_state_dict(prefix=REFERENCE, metadata=metadata)
        return {name: own_tensor(entry) for name, entry in template.items()}


def _take_reference(reference: WeightCopy, policy: torch.nn.Module, loaded: Mapping[str, Any]) -> None:
    with reference.in_place_of(policy):
        policy.load_state_dict({name.removeprefix(REFERENCE): value for name, value in loaded.items()}, strict=True)
        reference.take(policy)


def _random_state(layout: Layout, empty: bool) -> Any:
    """The generators of a rank; the same over data parallelism, as the model's dropout would need."""
    state = (
        None
        if empty
        else {
            "torch": torch.get_rng_state(),
            "device": torch.cuda.get_rng_state(),
            "tracker": tensor_parallel.get_cuda_rng_tracker().get_states(),
        }
    )
    return ShardedObject(
        "rng_state",
        state,
        (layout.pp_size, layout.tp_size),
        (layout.pp_rank, layout.tp_rank),
        replica_id=layout.dp_rank,
    )


def _restore_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    torch.cuda.set_rng_state(state["device"])
    tensor_parallel.get_cuda_rng_tracker().set_states(state["tracker"])
