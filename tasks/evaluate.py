"""Evaluate: the evaluation sets through the engines, into ``eval/<set>.parquet``.

Guarantee: evaluation prompts never enter training, and evaluating changes no weight and no cursor.
"""

from functools import partial
from typing import Any

import pyarrow as pa

from data.prompts import PromptDataset
from relax_core.config.eval_set import EvalSet
from relax_core.rewards.pools import Services
from relax_core.rollout.evaluate import evaluate_set
from relax_core.rollout.hooks import log_evaluation
from relax_core.run import turns
from relax_core.run.asking import asking
from relax_core.run.debug_data import save_debug_evaluation
from relax_core.run.evaluations import evaluation_inputs
from relax_core.run.generating import links
from relax_core.run.reconcile import serving
from relax_core.run.records import StageRecord
from relax_core.run.session import RunSession
from tasks.stage import stage


def _identity(version: int) -> Any:
    def identity(run: RunSession, step: int) -> dict[str, Any]:
        return evaluation_inputs(run.history.weights_id(step + version), run.evaluation_sets, run.config)

    return identity


def _evaluated(
    run: RunSession, eval_set: EvalSet, prompts: PromptDataset, version: int, services: Services
) -> tuple[pa.Table, dict[str, float]]:
    tied = links(run, version)
    return evaluate_set(
        eval_set,
        prompts,
        run.engines.urls,
        run.config,
        step=version - 1,
        tokenizer=run.tokenizer,
        progress=run.progress.update,
        pools=run.reward_pools,
        services=services,
        gate=tied["gate"],
        revive=tied["revive"],
        opened=tied["opened"],
    )


def _turn(run: RunSession) -> None:
    """Engines and judge hold their memory; the weights are sent again where the start of a judge has taken them, or an
    engine was started anew beside another step."""
    serving(run)
    turns.generate(run)


def _evaluate(run: RunSession, step: int, key: str, folder: str, version: int) -> StageRecord:
    tables, metrics, written = {}, {}, {}
    for eval_set, prompts in run.evaluation_sets:
        table, scores = asking(run, partial(_evaluated, run, eval_set, prompts, version), partial(_turn, run))
        path = run.store.step_path(step, f"{folder}/{eval_set.name}.parquet")
        tables[eval_set.name] = run.store.write_table(path, table)
        metrics.update(scores)
        written[eval_set.name] = table
    save_debug_evaluation(run, step, written, "eval_before_" if folder == "eval_before" else "eval_")
    replaced, extra = log_evaluation(written, run.config, step=version - 1)
    metrics = extra if replaced else {**metrics, **extra}
    return StageRecord("evaluate", key, tables, {"metrics": metrics})


@stage("evaluate_before", _identity(0), options="evaluate")
def evaluate_before(run: RunSession, step: int, key: str) -> StageRecord:
    """Scores of the weights before ``step``."""
    return _evaluate(run, step, key, "eval_before", step)


@stage("evaluate", _identity(1))
def evaluate(run: RunSession, step: int, key: str, update: StageRecord) -> StageRecord:
    """Scores of the weights that ``step`` made."""
    return _evaluate(run, step, key, "eval", step + 1)
