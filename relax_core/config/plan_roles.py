"""The devices of a run's roles, and what they form.

Guarantee: the counts are those that trainer and engines are started with; the judge is there wherever it has a model.
Devices that roles share are numbered from 0.
"""

from dataclasses import dataclass

from relax_core.config import derived
from relax_core.config.devices import judge_devices, shared_places
from relax_core.config.sections import RelaxConfig


@dataclass(frozen=True)
class RolePlan:
    """Devices of a role, all replicas together, and what they form."""

    role: str
    replicas: int
    devices: int
    form: str


def roles(config: RelaxConfig) -> list[RolePlan]:
    """Those of --resource, and the judge's."""
    parallel, engines = config.parallel, derived.num_engines(config)
    tensor, pipeline = parallel.tensor_model_parallel_size, parallel.pipeline_model_parallel_size
    forms = {
        role: f"data {derived.data_parallel_size(config, role)} x tensor {tensor} x pipeline {pipeline}"
        for role in ("actor", "critic")
    }
    forms |= {
        "advantages": "on the driver's CPU",
        "rollout": f"engines {engines} x tensor {config.cluster.rollout_num_gpus_per_engine}",
    }
    resource = {role: count for role, (count, _) in config.cluster.resource.items()}
    sizes = {role: derived.role_devices(config, role) for role in resource}
    if devices := judge_devices(config):  # without a role of its own --genrm-num-gpus says how many
        resource, sizes = {**resource, "genrm": resource.get("genrm", 1)}, {**sizes, "genrm": devices}
        forms["genrm"] = f"engines {judges(config)} x {config.genrm.genrm_num_gpus_per_engine} devices, the judge"
    for role, groups in (shared_places(config) or {}).items():
        if groups and role != "actor" and role in forms:
            first, last = groups[0][0], groups[-1][-1]
            which = f"device {first}" if first == last else f"devices {first} to {last}"
            forms[role] += f", in turns with the actor on its {which}"
    return [RolePlan(role, resource[role], sizes[role], forms.get(role, "")) for role in resource]


def judges(config: RelaxConfig) -> int:
    """Engines of the judge."""
    return judge_devices(config) // config.genrm.genrm_num_gpus_per_engine
