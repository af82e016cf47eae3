"""The machine of a run: the one of its driver.

Guarantee: in a cluster of several machines the trainers and engines of a run are all on the driver's, whose loopback,
memory and model folders they share; an actor that an earlier driver has left on another one counts as not there. A run
that the driver's machine cannot hold is refused before anything starts.
"""

from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from data.errors import NotStarted
from relax_core.cluster.actors import result

SOME_CPU = 0.01
"""Processors that an actor asks for which has to be somewhere: Ray does not look at the wish of one that needs none."""

_ANSWER_SECONDS = 60.0


def alone() -> bool:
    """Whether the cluster is one machine."""
    return sum(bool(node["Alive"]) for node in ray.nodes()) == 1


def node_id() -> str:
    """Ray's id of this process's machine."""
    return str(ray.get_runtime_context().get_node_id())


def gpus_here() -> int:
    """GPUs of the driver's machine that Ray knows.

    Raises:
        NotStarted: it has none, but others of the cluster have: the driver runs in the wrong place.
    """
    have = {node["NodeID"]: int(node["Resources"].get("GPU", 0)) for node in ray.nodes() if node["Alive"]}
    mine = have.get(node_id(), 0)
    if not mine and any(have.values()):
        raise NotStarted(
            f"The driver's machine has no GPU; others of the cluster have {sum(have.values())}.",
            "A run is on one machine, its driver's: start the command, or the Prefect worker, on a machine with GPUs.",
        )
    return mine


def require_gpus(count: int) -> None:
    """Refuse a run that needs more GPUs than the driver's machine has; one machine alone is waited for, as ever.

    Raises:
        NotStarted: it has fewer.
    """
    if not alone() and (mine := gpus_here()) < count:
        raise NotStarted(
            f"The run needs {count} GPUs, and the driver's machine has {mine}; those of the cluster's other machines "
            "do not count.",
            "A run is on one machine, its driver's: start it on a larger one, or ask for fewer with --resource.",
        )


def here() -> dict[str, Any]:
    """Further arguments of ``get_or_start`` for an actor that has to be on the driver's machine."""
    if alone():
        return {}
    return {"num_cpus": SOME_CPU, "options": {"scheduling_strategy": NodeAffinitySchedulingStrategy(node_id(), False)}}


def is_here(handle: Any) -> bool:
    """Whether a live actor is on the driver's machine.

    Raises:
        Lost: it does not answer.
    """
    return alone() or result(handle.__ray_call__.remote(_where), _ANSWER_SECONDS, "an actor") == node_id()


def _where(actor: Any) -> str:
    return node_id()
