"""Named actors: found again by name, started with a deadline and a reason.

Guarantee: ``get_or_start`` returns a handle of an actor whose constructor has finished, or raises ``UserError``
within ``timeout`` that says why (it could not be placed, and what the cluster has; its constructor failed; it took
too long). It never returns a handle of a dead actor.
"""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, OutOfMemoryError, RayActorError, RayError, RayTaskError

from data.errors import Lost, NotStarted, UserError
from relax_core.waiting import told

NAMESPACE = "relax"
_POLL_SECONDS = 2.0


def find(name: str, namespace: str = NAMESPACE) -> Any | None:
    """The handle of a live actor, or None when no actor of that name is alive."""
    try:
        handle = ray.get_actor(name, namespace=namespace)
        ray.get(handle.__ray_ready__.remote(), timeout=30)
    except (ValueError, RayActorError):
        return None
    except GetTimeoutError:
        pass  # busy in its constructor or in a long call: it is alive
    return handle


def named(prefix: str, namespace: str = NAMESPACE) -> list[str]:
    """Names of the live actors that begin with ``prefix``."""
    rows = ray.util.list_named_actors(all_namespaces=True)
    return sorted(row["name"] for row in rows if row["namespace"] == namespace and row["name"].startswith(prefix))


def kill(name: str, namespace: str = NAMESPACE, timeout: float = 30.0) -> None:
    """End an actor by name and wait until the name is free; nothing happens when there is none."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            ray.kill(ray.get_actor(name, namespace=namespace), no_restart=True)
        except ValueError:
            return
        time.sleep(0.1)


def get_or_start(
    cls: type,
    name: str,
    *,
    namespace: str = NAMESPACE,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    num_cpus: float = 0,
    num_gpus: float = 0,
    max_concurrency: int = 8,
    timeout: float = 600.0,
    options: Mapping[str, Any] | None = None,
) -> tuple[Any, bool]:
    """Find the actor ``name`` or start one.

    Args:
        cls: a plain class; it is wrapped here, so that tests can use it without Ray.
        env: environment variables of the actor's process.
        options: further ones of Ray, e.g. where the actor is put.

    Returns:
        The handle, and whether it was started by this call.

    Raises:
        UserError: it did not come up; the text says why.
    """
    found = find(name, namespace)
    if found is not None:
        return found, False
    remote = ray.remote(cls).options(
        name=name,
        namespace=namespace,
        lifetime="detached",  # handles that were found by name do not keep an actor alive; the head's end does end it
        get_if_exists=True,
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        max_concurrency=max_concurrency,
        max_restarts=0,
        runtime_env={"env_vars": {**_storage_environment(), **dict(env or {})}},
        **dict(options or {}),
    )
    handle = remote.remote(*args, **dict(kwargs or {}))
    with told(f"the start of {name}", "the driver", timeout):
        _wait_until_ready(handle, name, num_cpus, num_gpus, timeout, namespace)
    return handle, True


def _storage_environment() -> dict[str, str]:
    """How this process reaches storage: a standing head has the environment of whoever started it, not ours."""
    return {
        name: value for name, value in os.environ.items() if name.startswith(("AWS_", "FSSPEC_", "GOOGLE_", "AZURE_"))
    }


def _wait_until_ready(handle: Any, name: str, num_cpus: float, num_gpus: float, timeout: float, namespace: str) -> None:
    deadline = time.monotonic() + timeout
    ready = handle.__ray_ready__.remote()
    while True:
        try:
            ray.get(ready, timeout=min(_POLL_SECONDS, max(0.1, deadline - time.monotonic())))
            return
        except GetTimeoutError:
            if time.monotonic() < deadline:
                continue
            kill(name, namespace)
            raise NotStarted(
                f"Actor {name} did not start within {timeout:.0f} s: {_placement(num_cpus, num_gpus)}",
                "Free or add resources, ask for fewer with --resource, or raise --engine-start-timeout.",
            ) from None
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, UserError):
                raise cause from None
            raise NotStarted(f"Actor {name} failed while starting: {cause!r}", details=str(error)) from None
        except RayActorError as error:
            cause = error.__cause__ or error
            raise NotStarted(f"Actor {name} died while starting.", details=str(cause)) from None


def _placement(num_cpus: float, num_gpus: float) -> str:
    total, free = ray.cluster_resources(), ray.available_resources()
    wanted = {"CPU": num_cpus, "GPU": num_gpus}
    lacking = [
        f"it needs {amount:g} {kind}, the cluster has {total.get(kind, 0):g} of which {free.get(kind, 0):g} are free"
        for kind, amount in wanted.items()
        if amount > free.get(kind, 0)
    ]
    return "; ".join(lacking) + "." if lacking else "its constructor is still running."


def result(reference: Any, timeout: float | None = None, what: str = "the actor") -> Any:
    """``ray.get`` whose errors are ours: an error of this project that was raised inside an actor arrives as itself.

    Raises:
        Lost: the actor died, or did not answer within ``timeout`` seconds.
    """
    try:
        with told(f"an answer of {what}", "the driver", timeout):
            return ray.get(reference, timeout=timeout)
    except GetTimeoutError:
        raise Lost(f"Waited {timeout:.0f} s for {what} without an answer.", "Start again: the run goes on.") from None
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, Exception) and type(cause).__module__.startswith(("relax_core", "data")):
            raise cause from None
        raise
    except OutOfMemoryError as error:
        line = str(error).strip().splitlines()[0]
        raise ActorDied(
            f"Ray ended the process of {what} for lack of memory ({line}).",
            "Free memory (see `relax status`) or lower --max-tokens-per-gpu, and start again: the run goes on.",
        ) from None
    except RayError as error:
        raise ActorDied(f"The process of {what} died.", "Start again: the run goes on.", str(error)) from None


class ActorDied(Lost):
    """The process behind a handle is gone; what was durable before is still there."""
