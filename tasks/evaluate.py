"""Evaluate: the evaluation sets through the engines, into ``eval/<set>.parquet``.

Guarantee: evaluation prompts never enter training, and evaluating changes no weight and no cursor.
"""

from typing import Any

from relax_core.rewards.score import reward_source_hash
from relax_core.rollout.evaluate import evaluate_set
from relax_core.run.records import StageRecord
from relax_core.run.session import RunSession
from tasks.stage import stage


def _identity(version: int) -> Any:
    def identity(run: RunSession, step: int) -> dict[str, Any]:
        return {
            "weights": run.history.weights_id(step + version),
            "prompts": {name: prompts.fingerprint for name, prompts in run.evaluation_sets.items()},
            "source": reward_source_hash(run.config),
        }

    return identity


def _evaluate(run: RunSession, step: int, key: str, folder: str, version: int) -> StageRecord:
    tables, metrics = {}, {}
    for name, prompts in run.evaluation_sets.items():
        table, scores = evaluate_set(
            name,
            prompts,
            run.engines.urls,
            run.config,
            step=version - 1,
            tokenizer=run.tokenizer,
            progress=run.progress.update,
        )
        tables[name] = run.store.write_table(run.store.step_path(step, f"{folder}/{name}.parquet"), table)
        metrics.update(scores)
    return StageRecord("evaluate", key, tables, {"metrics": metrics})


@stage("evaluate_before", _identity(0), options="evaluate")
def evaluate_before(run: RunSession, step: int, key: str) -> StageRecord:
    """Scores of the weights before ``step``."""
    return _evaluate(run, step, key, "eval_before", step)


@stage("evaluate", _identity(1))
def evaluate(run: RunSession, step: int, key: str, update: StageRecord) -> StageRecord:
    """Scores of the weights that ``step`` made."""
    return _evaluate(run, step, key, "eval", step + 1)
