"""Engines for a look at a run from beside: its own actors and devices are not asked for anything.

Guarantee: there is one engine (and the judge's, where the run has one), on devices that nobody has; on a CPU it gives
way to everything else on the machine. It ends with the block, and with this process however that ends; under a standing
Ray head with GPUs, where it is an actor, the next look ends what a killed one left.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from data.errors import UserError
from relax_core.config import RelaxConfig, with_options
from relax_core.config.environment import read_environment_file
from relax_core.config.problems import raise_problems
from relax_core.engines.actor import SGLangEngine
from relax_core.engines.control import EngineControl
from relax_core.engines.devices import VISIBLE, gpus
from relax_core.engines.judge import judge_spec, num_judges
from relax_core.engines.serve import GIVES_WAY
from relax_core.engines.spec import Device, engine_spec
from relax_core.rewards.pools import Services
from relax_core.weights.label import weight_label

SWITCH = "RELAX_EVALUATION_GIVES_WAY"
"""Environment variable: 0 lets an evaluation beside a run take its share of the cores as anything else does."""
PATIENCE = 3
"""An engine that gives way may take so many times --engine-start-timeout to start."""


def gives_way() -> bool:
    """Whether evaluations take little of the cores while others want them."""
    return os.environ.get(SWITCH, "1") != "0"


@contextlib.contextmanager
def engines_beside(
    config: RelaxConfig, name: str, log_dir: Path, version: int, weights_id: str
) -> Iterator[tuple[list[str], Services]]:
    """An engine with the weights in a folder.

    Args:
        config: resolved, of the run; its --hf-checkpoint is the folder with the weights.
        name: what names of actors begin with.
        log_dir: where the engine's log goes.
        version, weights_id: of the weights.

    Yields:
        Its address, and those of what rewards may ask.

    Raises:
        UserError: it did not come up, or which GPUs are free is not known.
    """
    own = with_options(
        config,
        {
            "resource": {**config.cluster.resource, "rollout": (1, config.cluster.rollout_num_gpus_per_engine)},
            "colocate": False,
            "offload_train": False,
            "offload_rollout": False,
        },
    )
    with _actors(own, name, weights_id) if _has_cluster(own) else _children(own, log_dir) as (urls, known):
        for url in urls:
            with EngineControl(url) as control:
                control.set_weight_version(weight_label(version, weights_id))
        yield urls, known


def _has_cluster(config: RelaxConfig) -> bool:
    """Whether a standing Ray head knows which GPUs are free."""
    from relax_core.cluster.head import connected, standing_address

    address = standing_address(config.run.ray_address)
    if address is None or (address.startswith("127.0.0.1:") and not _gpus_here()):
        return False
    import ray

    with connected(config.run.ray_address):
        return bool(ray.cluster_resources().get("GPU", 0))


def _gpus_here() -> bool:
    return os.environ.get(VISIBLE) != "" and bool(gpus())


@contextlib.contextmanager
def _actors(config: RelaxConfig, name: str, weights_id: str) -> Iterator[tuple[list[str], Services]]:
    from relax_core.cluster.backend import RayBackend

    backend = RayBackend(config, name)
    try:
        urls = backend.ensure_rollout(weights_id).urls
        judges = backend.ensure_genrm().urls if num_judges(config) else []
        yield urls, {"genrm": judges} if judges else {}
    finally:
        backend.release()
        backend.close()


@contextlib.contextmanager
def _children(config: RelaxConfig, log_dir: Path) -> Iterator[tuple[list[str], Services]]:
    """Engines as processes of this one: no Ray head is started, which would cost as much as the engine."""
    device = _device()
    variables, problems = read_environment_file(config.run.env_file)
    raise_problems(problems)
    log_dir.mkdir(parents=True, exist_ok=True)
    specs = [engine_spec(config, 0, device, log_dir, variables)]
    specs += [judge_spec(config, index, device, log_dir, variables) for index in range(num_judges(config))]
    with contextlib.ExitStack() as stack:
        urls = []
        for spec in specs:
            if device == "cpu" and gives_way():
                spec = replace(spec.seeing({GIVES_WAY: "1"}), start_timeout=PATIENCE * spec.start_timeout)
            engine = SGLangEngine(spec)
            stack.callback(engine.stop)
            urls.append(engine.start().url)
        yield urls[:1], {"genrm": urls[1:]} if urls[1:] else {}


def _device() -> Device:
    """What engines of this process compute on.

    Raises:
        UserError: the GPUs of this machine may be somebody's.
    """
    if not _gpus_here():
        return "cpu"
    if not os.environ.get(VISIBLE):
        raise UserError(
            "Which GPUs of this machine are free is not known: no standing Ray head hands them out.",
            "Start the run under `relax up`, or name free ones with CUDA_VISIBLE_DEVICES.",
        )
    return "cuda"
