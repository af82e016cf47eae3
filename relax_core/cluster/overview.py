"""What lives in the cluster, as lines of text.

Guarantee: looks only, changes nothing; an actor that does not answer within five seconds is shown as such.
"""

import ray

from data.errors import UserError
from relax_core.cluster.actors import NAMESPACE, named
from relax_core.cluster.head import connected


def actor_lines() -> list[str]:
    """One line per live actor: its name and what it says of its weights."""
    with connected():
        return [f"{name:48} {_says(name)}" for name in named("")]


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
    shown = ("version", "weight_version", "busy_with", "pid", "url")
    return " ".join(f"{key}={fields[key]}" for key in shown if fields.get(key) is not None)
