"""The evaluation flow: a run's newest weights, or a Hugging Face folder, on evaluation sets.

Guarantee: training is not touched: no step, cursor or checkpoint changes, and the trainer ends at the version where
the run is. Results are ``<run>/evaluations/<version>/<set>.parquet`` and ``metrics.json``.
"""

from typing import Any

import flows.environment  # noqa: F401  # isort: skip  # what Prefect reads from the environment when it is imported
from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from data.errors import UserError
from flows.guard import guard_temporary_server
from flows.launch import checked, open_run
from flows.parameters import shown
from relax_core.config import RelaxConfig, with_options
from relax_core.rollout.evaluate import evaluate_set
from relax_core.rollout.hooks import log_evaluation
from relax_core.run import turns
from relax_core.run.ports import Backend, EnginesPort
from relax_core.run.reconcile import bring_actor, push_weights
from relax_core.run.session import RunSession


@task(name="ensure_engines", cache_policy=NO_CACHE, persist_result=False)
def engines_at(run: RunSession, version: int) -> EnginesPort:
    """Engines with the weights of a version; version 0 needs no trainer."""
    if version == 0 and run.config.checkpoint.load is None:
        engines = run.ensure_rollout()
        engines.abort_all()
        return engines
    run.ensure()
    bring_actor(run, version)
    push_weights(run, version)
    return run.engines


@task(name="evaluate", cache_policy=NO_CACHE, persist_result=False)
def score(run: RunSession, engines: EnginesPort, version: int) -> dict[str, float]:
    """Metrics of all sets."""
    metrics: dict[str, float] = {}
    tables = {}
    folder = f"evaluations/{version:06d}"
    services = run.services()
    turns.generate(run)
    with run.progress.stage(version - 1, "evaluate"):
        for eval_set, prompts in run.evaluation_sets:
            table, scores = evaluate_set(
                eval_set,
                prompts,
                engines.urls,
                run.config,
                step=version - 1,
                tokenizer=run.tokenizer,
                progress=run.progress.update,
                pools=run.reward_pools,
                services=services,
            )
            run.store.write_table(f"{folder}/{eval_set.name}.parquet", table)
            tables[eval_set.name] = table
            metrics.update(scores)
    replaced, extra = log_evaluation(tables, run.config, step=version - 1)
    metrics = extra if replaced else {**metrics, **extra}
    run.store.write_json(f"{folder}/metrics.json", {"version": version, **metrics})
    return metrics


@flow(name="evaluate")
def evaluate_flow(config: RelaxConfig) -> dict[str, Any]:
    """Score weights on evaluation sets."""
    with open_run(config, training=False) as run:
        guard_temporary_server()
        version = run.base_version(run.next_step())
        engines = engines_at(run, version)
        metrics = score(run, engines, version)
        return {"run": run.store.url, "version": version, "metrics": metrics}


def evaluate(config: RelaxConfig, backend: Backend | None = None) -> dict[str, Any]:
    """Score a run's newest weights, or ``--hf-checkpoint`` where the run directory holds no run.

    Returns:
        ``run``, ``version`` (finished steps) and ``metrics``.

    Raises:
        UserError: no evaluation set, or a mistake in the options or files.
    """
    # whatever part of the loop the run has, its weights are scored by engines
    config = with_options(config, {"debug_train_only": False, "load_debug_rollout_data": None})
    config = checked(config, "evaluate")
    with open_run(config, backend=backend, training=False) as run:
        if not run.evaluation_sets:
            raise UserError("There is no evaluation set.", "Give --eval-prompt-data NAME PATH, or --eval-config FILE.")
        guard_temporary_server()
        result = evaluate_flow.with_options(flow_run_name=f"evaluate-{run.id}")(shown(config))
        folder = run.store.uri(f"evaluations/{result['version']:06d}")
        run.backend.release_own()
    print(f"weights after {result['version']} steps of {result['run']}")
    for name, value in result["metrics"].items():
        print(f"  {name:40} {value:.4f}")
    print(f"samples and scores: {folder}")
    return result
