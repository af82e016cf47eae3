"""From the trainer's ranks to the engines.

Guarantee: collective, and an error on the sending rank is raised on all ranks, none of which is left waiting: the
ranks gather the tensors together, so they go on to the end even when nobody takes them any more.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist

from relax_core.config.derived import role_devices
from relax_core.config.sections import RelaxConfig
from relax_core.training.distributed import gather_objects, together
from relax_core.weights.export import iter_parts
from relax_core.weights.group import GroupLink
from relax_core.weights.transport import PushReport, check_equal, push_weights, versions_of


def push(
    config: RelaxConfig, get_model: Callable[[], torch.nn.Module], version: str, urls: Sequence[str]
) -> dict[str, Any]:
    """Bring the engines to ``version``, a label; global rank 0 sends. Engines that have it are left alone.

    With ``--check-weight-update-equal`` the engines that were updated then prove that their weights are these.

    Args:
        get_model: asked only when an engine wants weights: they may be in host memory until then.

    Returns:
        The fields of ``PushReport``, and ``checked``: whether equality was proved.
    """
    seen = gather_objects(together(lambda: versions_of(urls), leader_only=True))[0]
    stale = [url for url in urls if seen[url] != version]
    if not stale:
        return {**asdict(PushReport(0.0, 0, 0, dict.fromkeys(urls, 0.0))), "checked": False}
    size, ranks = config.rollout.update_weight_buffer_size, config.cluster.rollout_num_gpus_per_engine

    def send(check: bool) -> PushReport | None:
        model = get_model()
        way = _way(config, next(model.parameters()).is_cuda)
        tensors = iter_parts(model)
        try:
            if dist.get_rank() != 0:
                return None
            if check:
                check_equal(tensors, stale, size, ranks, **way)
                return None
            return push_weights(tensors, stale, version, size, ranks, seen=seen, **way)
        finally:
            for _ in tensors:  # the other ranks make them too
                pass

    report = asdict(gather_objects(together(lambda: send(check=False)))[0])
    report["engines"] = dict.fromkeys(urls, 0.0) | report["engines"]
    checked = config.debug.check_weight_update_equal
    if checked:
        together(lambda: send(check=True))
    return {**report, "checked": checked}


def _way(config: RelaxConfig, cuda: bool) -> dict[str, Any]:
    """How tensors get to the engines: further arguments of ``push_weights``.

    Where both have the same devices, or there are none, through memory that both map; to other GPUs by NCCL, which is
    made for that. gloo is used where somebody asked for it: on a CPU it takes more copies than shared memory.
    """
    backend = config.checkpoint.checkpoint_engine_backend
    if not config.cluster.colocate and (cuda or backend == "gloo"):
        return {"link": _link(backend)}
    return {"elsewhere": cuda and role_devices(config, "rollout") != 1}


@functools.cache
def _link(backend: str) -> GroupLink:
    """The groups that this process has with engines: they last longer than a push."""
    return GroupLink(backend)
