"""Rules about devices: which role gets how many, and what shares them.

Guarantee: a resource map that cannot be started is refused with the role and both numbers; a role that nothing in the
configuration needs is told.
"""

import os
import re
from collections.abc import Iterator
from typing import Any

from data.nearest import nearest
from relax_core.config.environment import read_environment_file
from relax_core.config.rules.base import Rule
from relax_core.config.rules.kinds import estimator, is_sft
from relax_core.config.values import Values

ROLES = ("actor", "rollout", "critic", "advantages", "reference", "actor_fwd", "genrm", "sft")
"""The roles that ``--resource`` can name."""

WITHOUT_DEVICES = ("advantages",)
"""Roles that may do their work on the CPU."""

SHARED = ("rollout", "critic")
"""Roles that use the actor's devices under ``--colocate``."""

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

_NEEDED = ("debug_rollout_only", "debug_train_only", "load_debug_rollout_data", "loss_type", "sft_predict_interval")
_TOTAL = ("resource", "colocate", "genrm_model_path", "genrm_num_gpus")
_USERS = ("advantage_estimator", "fully_async", "genrm_model_path", "loss_type")


def _roles(v: Values) -> Iterator[tuple[str, int, int]]:
    for role, (replicas, devices) in v.resource.items():
        if role in ROLES:
            yield role, replicas, devices


def _unknown(v: Values) -> Iterator[dict[str, Any]]:
    for role in v.resource:
        if role not in ROLES:
            yield {"value": role, "hint": nearest(role, ROLES) or f"Roles: {', '.join(ROLES)}."}


def _missing(v: Values) -> Iterator[dict[str, Any]]:
    supervised = is_sft(v) and v.sft_predict_interval is None
    only_train = v.debug_train_only or bool(v.load_debug_rollout_data)
    needed = {"actor": not v.debug_rollout_only, "rollout": not (only_train or supervised)}
    for role, is_needed in needed.items():
        if is_needed and role not in v.resource:
            yield {"value": None, "role": role}


def _copies(v: Values) -> Iterator[dict[str, Any]]:
    for role, replicas, _ in _roles(v):
        if replicas != 1:
            yield {"value": f"{role} {replicas}"}


def _too_few(v: Values) -> Iterator[dict[str, Any]]:
    for role, _, devices in _roles(v):
        least = 0 if role in WITHOUT_DEVICES else 1
        if devices < least:
            yield {"value": f"{role} {devices}", "least": least}


def _idle(v: Values) -> Iterator[dict[str, Any]]:
    used = {"actor", "rollout", *estimator(v).roles}
    if v.fully_async:
        used |= {"advantages", "reference", "actor_fwd"}
    if v.genrm_model_path:
        used.add("genrm")
    if is_sft(v):
        used.add("sft")
    for role, _, _ in _roles(v):
        if role not in used:
            yield {"value": role}


def _unlike_the_actor(v: Values, more: bool) -> Iterator[dict[str, Any]]:
    actor = v.devices("actor")
    if v.colocate and not v.genrm_model_path and actor > 0:
        for role in SHARED:
            devices = v.devices(role)
            if devices > actor if more else 0 < devices < actor:
                yield {"value": f"{role} {devices}", "actor": actor}


def _total(v: Values) -> int:
    """Devices of all roles; under ``--colocate`` the judge has its own among the actor's. Reads ``_TOTAL``."""
    shared = ("actor", *SHARED, "genrm") if v.colocate else ()
    devices = {role: v.devices(role) for role in ROLES}
    if v.genrm_model_path and not devices["genrm"]:
        devices["genrm"] = v.genrm_num_gpus
    own = sum(count for role, count in devices.items() if role not in shared)
    return own + max((devices[role] for role in shared), default=0)


def _uneven_nodes(v: Values) -> list[dict[str, Any]]:
    total, node = _total(v), v.num_gpus_per_node
    return [{"total": total}] if v.is_given("num_gpus_per_node") and total > node and total % node else []


def _wide_nodes(v: Values) -> list[dict[str, Any]]:
    """A node that was said to be larger than all that is shared; unsaid, the cluster tells what there is."""
    actor = v.devices("actor")
    wide = v.is_given("num_gpus_per_node") and 0 < actor < v.num_gpus_per_node
    return [{"actor": actor}] if v.colocate and wide else []


def _kept(v: Values) -> Iterator[dict[str, Any]]:
    if v.colocate or v.offload:
        for name in ("offload_train", "offload_rollout"):
            if v[name] is False:
                yield {"option": name, "by": "--colocate" if v.colocate else "--offload"}


def _lonely(v: Values) -> Iterator[dict[str, Any]]:
    if not v.colocate:
        names = ["offload"] if v.offload else ["offload_train", "offload_rollout"]
        yield from ({"option": name} for name in names if v[name])


def _expandable(v: Values) -> Iterator[dict[str, Any]]:
    name = next((name for name in ("offload_train", "offload_rollout") if v[name]), None)
    if name is None:
        return
    try:
        of_file = read_environment_file(v.env_file)[0]
    except ValueError:  # a path that no file system takes; told where the file is read
        of_file = {}
    own: dict[str, str] = v.train_env_vars
    places = (("--train-env-vars", own), ("the environment file", of_file), ("the environment", os.environ))
    for variable in ALLOCATOR_VARIABLES:
        where, setting = next(((where, str(of[variable])) for where, of in places if variable in of), ("", ""))
        if re.search(r"expandable_segments\s*:\s*true", setting, re.IGNORECASE):
            yield {"option": name, "variable": variable, "where": where}


RULES: tuple[Rule, ...] = (
    Rule(
        name="roles-are-known",
        option="resource",
        reads=("resource",),
        each=_unknown,
        message="is no role of this loop.",
        fix="{hint}",
    ),
    Rule(
        name="trainer-and-engines-have-devices",
        option="resource",
        reads=("resource", *_NEEDED),
        each=_missing,
        message="gives no devices to the role {role}.",
        fix='Add "{role}":[1,1].',
    ),
    Rule(
        name="roles-have-one-replica",
        option="resource",
        reads=("resource",),
        each=_copies,
        message="replicas must be 1.",
        fix="More devices go in the second place.",
    ),
    Rule(
        name="roles-have-enough-devices",
        option="resource",
        reads=("resource",),
        each=_too_few,
        message="devices must be {least} or more.",
    ),
    Rule(
        name="roles-have-work",
        option="resource",
        reads=("resource", *_USERS),
        each=_idle,
        message="is not started by this version, and nothing in this configuration needs it.",
        fix="Leave it out.",
        severity="warning",
    ),
    Rule(
        name="engines-share-out-devices",
        option="rollout_num_gpus_per_engine",
        reads=("rollout_num_gpus_per_engine", "resource"),
        each=lambda v: [{"all": v.devices("rollout")}] if v.devices("rollout") % v.rollout_num_gpus_per_engine else [],
        message="does not divide the {all} devices of the role rollout.",
        fix="Change it, or --resource.",
    ),
    Rule(
        name="large-engines-fill-nodes",
        option="rollout_num_gpus_per_engine",
        reads=("rollout_num_gpus_per_engine", "num_gpus_per_node"),
        broken=lambda v: (
            v.rollout_num_gpus_per_engine > v.num_gpus_per_node and v.rollout_num_gpus_per_engine % v.num_gpus_per_node
        ),
        message="is more than --num-gpus-per-node {num_gpus_per_node} and no multiple of it.",
        fix="An engine on several nodes takes all of their devices.",
    ),
    Rule(
        name="devices-fill-nodes",
        option="num_gpus_per_node",
        reads=("num_gpus_per_node", *_TOTAL),
        each=_uneven_nodes,
        message="does not divide the {total} devices of all roles: one node is used in part only.",
        severity="warning",
    ),
    Rule(
        name="colocation-knows-the-node",
        option="num_gpus_per_node",
        reads=("num_gpus_per_node", "colocate", "resource"),
        each=_wide_nodes,
        message="is more than the {actor} devices of the role actor, which --colocate shares.",
        fix="Give the number that a node of this run has.",
        severity="warning",
    ),
    Rule(
        name="colocated-roles-fit",
        option="resource",
        reads=("resource", "colocate", "genrm_model_path"),
        each=lambda v: _unlike_the_actor(v, more=True),
        message="is more than the {actor} devices of the role actor, which --colocate shares.",
        fix="Give both the same number.",
    ),
    Rule(
        name="colocated-roles-use-all",
        option="resource",
        reads=("resource", "colocate", "genrm_model_path"),
        each=lambda v: _unlike_the_actor(v, more=False),
        message="leaves some of the {actor} devices of the role actor idle, which --colocate shares.",
        fix="Give both the same number.",
        severity="warning",
    ),
    Rule(
        name="colocated-engines-leave-memory",
        option="sglang_mem_fraction_static",
        reads=("sglang_mem_fraction_static", "colocate", "rollout_external"),
        broken=lambda v: v.colocate and v.sglang_mem_fraction_static is None and not v.rollout_external,
        message="is not given: the share of memory that SGLang chooses leaves the trainer under --colocate little.",
        fix="Give a smaller share.",
        severity="warning",
    ),
    Rule(
        name="sharing-offloads-both",
        option="offload_train",
        reads=("offload_train", "offload_rollout", "colocate", "offload"),
        each=_kept,
        corrects=lambda v: {"offload_train": True, "offload_rollout": True},
        message="is set to true, because {by} offloads both.",
    ),
    Rule(
        name="offloading-makes-room",
        option="offload",
        reads=("offload", "offload_train", "offload_rollout", "colocate"),
        each=_lonely,
        message="frees memory that nothing else uses: without --colocate, trainer and engines have their own devices.",
        fix="Add --colocate, or leave this out.",
        severity="warning",
    ),
    Rule(
        name="offloading-excludes-expandable-segments",
        option="offload_train",
        reads=("offload_train", "offload_rollout", "train_env_vars", "env_file"),
        each=_expandable,
        message="cannot free memory while {variable} in {where} has expandable_segments:True.",
        fix="Take that out of the variable.",
    ),
)
