"""The deployment `rescore/step`: a recorded rollout scored again, as ``relax reward --run`` does it.

Guarantee: the scores are those that a run with the same options would give; the run is only read.
"""

from typing import Any

import flows.environment  # noqa: F401  # isort: skip  # what Prefect reads from the environment when it is imported
from prefect import flow, task
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.cache_policies import NO_CACHE

from data.store import RunStore
from flows.deployed.form import SubmittedConfig, given_options
from flows.deployed.own import introduce
from relax_core.config import RelaxConfig
from relax_core.config.problems import raise_problems
from relax_core.config.submitted import given_parameters, run_file_of
from relax_core.rewards.rescore import Rescored, rescored
from relax_core.run.session import run_id

SHOWN = 50
"""Samples with another score that the artefact lists."""


@flow(name="rescore")
def rescore(*, run_dir: str, step: int | None = None, out: str = "", config: SubmittedConfig) -> dict[str, Any]:
    """Score a recorded rollout again, with the run's own reward or another one, and show what changes.

    Args:
        run_dir: the run directory, a folder or URL that the worker can reach.
        step: rollout step, from 0; default: the last finished one.
        out: Parquet file or URL for the new scores beside the old ones.
        config: options of the reward that count otherwise than in the run, by section.
    """
    introduce(f"rescore/{run_id(run_dir)}", run_id(run_dir))
    options = given_options(config)
    given = given_parameters(options, run_file_of(run_dir))
    raise_problems(given.notes)
    chosen = options.get("reward", {})
    if chosen.get("rm_type") and not chosen.get("custom_rm_path"):
        given.config.reward.custom_rm_path = None  # a built-in that is named stands for the run's own function
    found = _score(run_dir, step, given.config)
    if out:
        folder, slash, name = out.rpartition("/")
        RunStore(folder + slash or ".").write_table(name, found.table)
    summary = found.summary()
    lines = [f"- {name.replace('_', ' ')}: {value}" for name, value in summary.items()]
    create_markdown_artifact("\n".join(lines), key="rescore", description=f"{run_dir}, step {summary['step']}")
    if changes := found.changes():
        create_table_artifact(changes[:SHOWN], key="rescore-changes", description=f"{len(changes)} scores differ")
    return {**summary, "out": out or None}


@task(name="reward", cache_policy=NO_CACHE, persist_result=False)
def _score(run_dir: str, step: int | None, config: RelaxConfig) -> Rescored:
    return rescored(run_dir, step, config)
