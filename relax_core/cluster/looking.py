"""The actors of a Ray head, as they say themselves.

Guarantee: all are asked at once, and one that does not answer in time is named with the reason; a head that cannot be
reached is one line, not an error.
"""

import os
import socket
from typing import Any

import ray

from data.errors import UserError
from relax_core.cluster.actors import NAMESPACE
from relax_core.cluster.head import connected
from relax_core.cluster.overview import describe


def actors_of(head: str, seconds: float) -> list[dict[str, Any]]:
    """One object an actor: ``name``, ``head``, ``says``, ``pid``, ``host``, ``here`` (on this machine), and ``problem``
    where it does not answer.

    Args:
        head: address.
        seconds: to wait for all answers together.
    """
    try:
        with connected(head):
            return [{"head": head, **actor} for actor in _asked(seconds)]
    except (UserError, ray.exceptions.RayError, RuntimeError) as error:
        text = error.problem if isinstance(error, UserError) else f"{type(error).__name__}: {error}".splitlines()[0]
        return [{"name": f"head {head}", "head": head, "says": {}, "problem": text, "pid": None}]


def _asked(seconds: float) -> list[dict[str, Any]]:
    rows = [row for row in ray.util.list_named_actors(all_namespaces=True) if row["namespace"] == NAMESPACE]
    asked: dict[str, dict[str, Any]] = {}
    for name in sorted(row["name"] for row in rows):
        try:
            handle = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:  # it has just ended
            continue
        method = getattr(handle, "status", None) or getattr(handle, "info", None)
        asked[name] = {"where": handle.__ray_call__.remote(_where)}
        if method is not None:
            asked[name]["says"] = method.remote()
    every = [call for calls in asked.values() for call in calls.values()]
    if every:
        ray.wait(every, num_returns=len(every), timeout=seconds)
    return [_answered(name, calls, seconds) for name, calls in asked.items()]


def _where(actor: Any) -> tuple[str, int]:
    return socket.gethostname(), os.getpid()


def _answered(name: str, calls: dict[str, Any], seconds: float) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": name, "says": {}, "pid": None}
    for what, call in calls.items():
        try:
            answer = ray.get(call, timeout=0)
        except ray.exceptions.GetTimeoutError:
            shown["problem"] = f"does not answer within {seconds:g} s"
        except (UserError, ray.exceptions.RayError) as error:
            cause = getattr(error, "cause", None) or error
            shown["problem"] = cause.problem if isinstance(cause, UserError) else f"failed ({type(cause).__name__})"
        else:
            if what == "says":
                shown["says"] = describe(answer)
            else:
                host, pid = answer
                shown |= {"host": host, "pid": pid, "here": host == socket.gethostname()}
    return shown
