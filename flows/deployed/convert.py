"""The deployment `convert/checkpoint`: a checkpoint of a run as a Hugging Face folder, as ``relax convert`` makes it.

Guarantee: the run is only read, also while it is trained; the same conversion again finds its folder.
"""

import logging
from typing import Any

import flows.environment  # noqa: F401  # isort: skip  # what Prefect reads from the environment when it is imported
from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows.deployed.own import introduce
from relax_core.run.session import run_id
from relax_core.weights.convert import convert as convert_checkpoint
from relax_core.weights.convert import find_checkpoints

log = logging.getLogger(__name__)


@flow(name="convert")
def convert(*, run_dir: str, out: str, step: int | None = None, hf_checkpoint: str = "") -> dict[str, Any]:
    """Write a checkpoint of a run as a Hugging Face folder.

    Args:
        run_dir: a run directory, or a folder of Megatron checkpoints, that the worker can reach.
        out: the folder that is made, on the worker's machine.
        step: the checkpoint's rollout step, from 0; default: the newest complete one.
        hf_checkpoint: folder of the model's shape and tokenizer; default: the run's own.
    """
    introduce(f"convert/{run_id(run_dir)}", run_id(run_dir))
    return _write(run_dir, out, step, hf_checkpoint or None)


@task(name="convert", cache_policy=NO_CACHE, persist_result=False)
def _write(run_dir: str, out: str, step: int | None, hf_checkpoint: str | None) -> dict[str, Any]:
    checkpoints = find_checkpoints(run_dir, hf_checkpoint, step)
    return convert_checkpoint(checkpoints, out, log.warning).to_json()
