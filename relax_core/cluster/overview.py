"""What lives in the cluster, as lines of text.

Guarantee: looking changes nothing, and an actor that does not answer within seconds is shown as such.
"""

import ray
from ray.util.state import list_actors

from data.errors import UserError
from relax_core.cluster.actors import NAMESPACE
from relax_core.cluster.head import connected


def actor_lines() -> list[str]:
    """One line per live actor: name, state, process, and what it says of its weights."""
    with connected():
        rows = list_actors(filters=[("ray_namespace", "=", NAMESPACE), ("state", "=", "ALIVE")])
        return [f"{row.name:48} {row.class_name:16} process {row.pid} {_says(row.name)}" for row in rows]


def _says(name: str) -> str:
    try:
        handle = ray.get_actor(name, namespace=NAMESPACE)
        method = getattr(handle, "status", None) or getattr(handle, "info", None)
        if method is None:
            return ""
        answer = ray.get(method.remote(), timeout=5)
    except (UserError, ValueError, ray.exceptions.RayError) as error:
        return f"does not answer ({type(error).__name__})"
    fields = answer if isinstance(answer, dict) else vars(answer)
    shown = {
        key: fields[key] for key in ("version", "weight_version", "busy_with", "url") if fields.get(key) is not None
    }
    return " ".join(f"{key}={value}" for key, value in shown.items())
