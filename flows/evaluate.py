"""The evaluation flow: a run's newest weights, or a Hugging Face folder, on evaluation sets.

Guarantee: training is not touched: no step, cursor or checkpoint changes, and the trainer ends at the version where
the run is. A run that somebody drives is looked at from beside (``evaluate_newest``). What was evaluated already with
the same sets and options is not evaluated again. Results are ``<run>/evaluations/<version>/<set>.parquet`` and
``metrics.json``.
"""

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import flows.environment  # noqa: F401  # isort: skip  # what Prefect reads from the environment when it is imported
from prefect import flow, tags, task
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext
from prefect.settings import PREFECT_API_URL

from data.errors import UserError
from data.store import RunStore
from flows.guard import choose_server, guard_temporary_server
from flows.launch import checked, open_run
from flows.parameters import shown
from relax_core.config import RelaxConfig, with_options
from relax_core.rollout.evaluate import evaluate_set
from relax_core.rollout.hooks import log_evaluation
from relax_core.run import turns
from relax_core.run.beside import RunBeside
from relax_core.run.evaluations import Evaluations, evaluation_key
from relax_core.run.lock import Driven, Evaluated
from relax_core.run.ports import Backend, EnginesPort
from relax_core.run.reconcile import bring_actor, push_weights
from relax_core.run.records import StageRecord
from relax_core.run.session import RunSession, run_id
from relax_core.tracking.progress import Progress
from tasks.stage import UNTAGGED

T = TypeVar("T")


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
def score(run: RunSession, engines: EnginesPort, version: int) -> StageRecord:
    """All sets."""
    metrics: dict[str, float] = {}
    tables, written = {}, {}
    evaluations, key = Evaluations(run.store), _key(run, version)
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
            written[eval_set.name] = evaluations.write_table(version, eval_set.name, table)
            tables[eval_set.name] = table
            metrics.update(scores)
    replaced, extra = log_evaluation(tables, run.config, step=version - 1)
    metrics = extra if replaced else {**metrics, **extra}
    return evaluations.finish(version, key, written, metrics)


def _key(run: RunSession, version: int) -> str:
    return evaluation_key(version, run.history.weights_id(version), run.evaluation_sets, run.config)


@flow(name="evaluate")
def evaluate_flow(config: RelaxConfig) -> dict[str, Any]:
    """Score weights on evaluation sets."""
    with open_run(config, training=False) as run:
        guard_temporary_server()
        version = run.base_version(run.next_step())
        engines = engines_at(run, version)
        return _result(run.store, version, score(run, engines, version))


@flow(name="evaluate")
def newest_flow(config: RelaxConfig, again: bool = False) -> dict[str, Any]:
    """Score the newest checkpoint of a run that somebody else drives."""
    return _newest(config, again)


def evaluate(config: RelaxConfig, backend: Backend | None = None, again: bool = False) -> dict[str, Any]:
    """Score a run's newest weights, or ``--hf-checkpoint`` where the run directory holds no run.

    Of a run that a living process drives it is the newest checkpoint, see ``evaluate_newest``.

    Args:
        again: also what was evaluated before with the same sets and options.

    Returns:
        As ``evaluate_newest``.

    Raises:
        UserError: no evaluation set, or a mistake in the options or files; another process evaluates the run.
    """
    # Whatever part of the loop the run has, its weights are scored by engines. The run's own --takeover, which its
    # file keeps, was for the training.
    config = with_options(config, {"debug_train_only": False, "load_debug_rollout_data": None, "takeover": False})
    config = checked(config, "evaluate")
    _require_sets(config)
    try:
        with open_run(config, backend=backend, training=False) as run:
            result = _evaluate(run, config, again)
    except Driven as driven:
        print(f"{driven.problem} Its newest checkpoint is evaluated beside it.")
        result = _shown_newest(config, again)
    _print(result)
    return result


def _evaluate(run: RunSession, config: RelaxConfig, again: bool) -> dict[str, Any]:
    version = run.base_version(run.next_step())
    known = None if again else Evaluations(run.store).known(version, _key(run, version))
    if known is not None:
        return _result(run.store, version, known, _BEFORE)
    guard_temporary_server()
    result: dict[str, Any] = evaluate_flow.with_options(flow_run_name=f"evaluate-{run.id}")(shown(config))
    run.backend.release_own()
    return result


def _shown_newest(config: RelaxConfig, again: bool) -> dict[str, Any]:
    """As a flow where a standing server shows it: a server of its own would cost the training as much as the engine."""
    if PREFECT_API_URL.value():
        choose_server(print)
    name = run_id(str(config.run.run_dir))
    if not PREFECT_API_URL.value():
        result = _newest(config, again)
    else:
        with tags(name):
            result = newest_flow.with_options(flow_run_name=f"evaluate-{name}")(shown(config), again)
    return result


def evaluate_newest(config: RelaxConfig, again: bool = False) -> dict[str, Any]:
    """Score the newest complete checkpoint of a run, which somebody else may be training meanwhile.

    Nothing of the run is claimed, asked or changed: the checkpoint is converted on the CPU, by this thread at the
    lowest priority, and an engine of its own generates (``relax_core.cluster.beside``). In a flow its stages are tasks.

    Args:
        config: the run's options, with ``run_dir`` and evaluation sets.
        again: also what was evaluated before with the same sets and options.

    Returns:
        ``run``, ``version`` (finished steps; None: there is nothing yet), ``metrics``, ``tables`` (set to address of
        its samples), ``skipped`` and ``reason``, why it was: no run or no checkpoint yet, evaluated before, or another
        process evaluates the run.

    Raises:
        UserError: no evaluation set; a mistake in the options or files; an engine that did not come up.
    """
    try:
        return _newest(config, again)
    except Evaluated as other:
        return _nothing(str(config.run.run_dir), other.problem)


def _newest(config: RelaxConfig, again: bool) -> dict[str, Any]:
    url = str(config.run.run_dir)
    if config.run.run_dir is None or not RunStore(url).exists("config.yaml"):
        return _nothing(url, f"There is no run in {url} yet.")
    config = with_options(config, {"debug_train_only": False, "load_debug_rollout_data": None})
    config = checked(config, "evaluate")
    _require_sets(config)
    run = RunBeside(config, Progress())
    with run.claimed():
        found = run.checkpoints.newest()
        if found is None:
            return _nothing(url, f"{url} has no complete checkpoint yet (--save-interval says when it has).")
        version = int(found[1].get("version", found[0] + 1))
        if (known := _known(run, version, found[1].get("weights_id"), again)) is not None:
            return _result(run.store, version, known, _BEFORE)
        with run.model() as folder, contextlib.ExitStack() as engines:
            model = _staged("convert", lambda: run.convert(folder))
            version = model.version  # a newer one, where the run has deleted that one meanwhile
            if (known := _known(run, version, model.weights_id, again)) is not None:
                return _result(run.store, version, known, _BEFORE)
            urls, services = _staged("ensure_engines", lambda: engines.enter_context(run.engines(model)))
            key = run.key(version, model.weights_id)
            record = _staged("evaluate", lambda: run.score(version, key, urls, services))
        return _result(run.store, version, record)


_BEFORE = "These weights were evaluated before with the same sets and options."


def _known(run: RunBeside, version: int, weights_id: str | None, again: bool) -> StageRecord | None:
    return None if again else run.evaluations.known(version, run.key(version, weights_id))


def _staged(name: str, work: Callable[[], T]) -> T:
    """What ``work`` returns; in a flow as a task of it."""
    if FlowRunContext.get() is None:
        return work()
    with UNTAGGED():
        result: T = task(name=name, task_run_name=name, cache_policy=NO_CACHE, persist_result=False)(work)()
    return result


def _require_sets(config: RelaxConfig) -> None:
    if not config.eval.eval_datasets:
        raise UserError("There is no evaluation set.", "Give --eval-prompt-data NAME PATH, or --eval-config FILE.")


def _result(store: RunStore, version: int, record: StageRecord, reason: str = "") -> dict[str, Any]:
    tables = {name: store.uri(table.path) for name, table in record.tables.items()}
    found = {"run": store.url, "version": version, "metrics": dict(record.values["metrics"]), "tables": tables}
    return {**found, "skipped": bool(reason), "reason": reason}


def _nothing(url: str, reason: str) -> dict[str, Any]:
    return {"run": url, "version": None, "metrics": {}, "tables": {}, "skipped": True, "reason": reason}


def _print(result: dict[str, Any]) -> None:
    url, version = result["run"], result["version"]
    if version is None:
        print(f"nothing to evaluate: {result['reason']}")
        return
    print(f"weights after {version} steps of {url}")
    if result["skipped"]:
        print(f"{result['reason']} --again evaluates them anew.")
    for name, value in result["metrics"].items():
        print(f"  {name:40} {value:.4f}")
    print(f"samples and scores: {next(iter(result['tables'].values())).rpartition('/')[0]}")
