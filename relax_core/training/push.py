"""From the trainer's ranks to the engines.

Guarantee: collective, and an error on the sending rank is raised on all ranks, none of which is left waiting: the
ranks gather the tensors together, so they go on to the end even when nobody takes them any more.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist

from relax_core.config.derived import role_devices
from relax_core.config.sections import RelaxConfig
from relax_core.training.distributed import gather_objects, together
from relax_core.weights.export import iter_hf
from relax_core.weights.transport import PushReport, check_equal, push_weights, stale_engines


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
    stale = gather_objects(together(lambda: stale_engines(urls, version), leader_only=True))[0]
    if not stale:
        return {**asdict(PushReport(0.0, 0, 0, dict.fromkeys(urls, 0.0))), "checked": False}
    size, ranks = config.rollout.update_weight_buffer_size, config.cluster.rollout_num_gpus_per_engine
    one_device = config.cluster.colocate and role_devices(config, "rollout") == 1

    def send(check: bool) -> PushReport | None:
        model = get_model()
        elsewhere = next(model.parameters()).is_cuda and not one_device
        tensors = iter_hf(model)
        try:
            if dist.get_rank() != 0:
                return None
            if check:
                check_equal(tensors, stale, size, ranks, elsewhere=elsewhere)
                return None
            return push_weights(tensors, urls, version, size, ranks, elsewhere=elsewhere)
        finally:
            for _ in tensors:  # the other ranks make them too
                pass

    report = gather_objects(together(lambda: send(check=False)))[0]
    checked = config.debug.check_weight_update_equal
    if checked:
        together(lambda: send(check=True))
    return {**asdict(report), "checked": checked}
