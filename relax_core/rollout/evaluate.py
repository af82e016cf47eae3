"""Evaluation: a prompt set through the engines and the reward.

Guarantee: nothing of it reaches training; two evaluations of a run ask for the same samples with the same seeds, so
that they differ by the weights only.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from data.prompts import PromptDataset
from data.schema import EVAL, REWARD, conform
from relax_core.config.sections import RelaxConfig
from relax_core.rewards.score import score_table
from relax_core.rollout.generate import ProgressCallback, run_generation
from relax_core.rollout.requests import evaluation_requests
from relax_core.rollout.sampling import Sampling
from relax_core.rollout.table import rollout_table
from relax_core.tracking.metrics import aligned, step_metrics


def evaluate_set(
    name: str,
    prompts: PromptDataset,
    urls: Sequence[str],
    config: RelaxConfig,
    *,
    step: int,
    tokenizer: Any,
    progress: ProgressCallback | None = None,
) -> tuple[pa.Table, dict[str, float]]:
    """Evaluate the weights after ``step``, that is version ``step + 1``.

    Args:
        name: of the set.
        prompts: all of them are asked, ``n_samples_per_eval_prompt`` times each.
        urls: engines.
        config: ``eval_*`` options, ``rollout_*`` where they are not set.
        step: rollout step; -1 before training.
        tokenizer: decodes the responses.
        progress: see ``generate``.

    Returns:
        Table of schema ``EVAL`` and ``evaluation_metrics``.

    Raises:
        UserError: no engine is left, another weight version, or an error of the reward.
    """
    sampling = Sampling.for_evaluation(config)
    generated = run_generation(
        evaluation_requests(name, prompts, config.eval.n_samples_per_eval_prompt, config.data.rollout_seed),
        urls,
        sampling,
        context=config.rollout.rollout_max_context_len,
        concurrency=config.sglang.sglang_server_concurrency,
        progress=progress,
    )
    rollout = rollout_table(
        generated,
        step=step,
        version=step + 1,
        tokenizer=tokenizer,
        skip_special_tokens=sampling.skip_special_tokens,
    )
    table = evaluation_table(rollout, score_table(rollout, config))
    return table, evaluation_metrics(name, table)


def evaluation_table(rollout: pa.Table, reward: pa.Table) -> pa.Table:
    """Rollout and reward side by side, matched by sample id: schema ``EVAL``."""
    reward = aligned(reward, rollout)
    table = rollout.replace_schema_metadata(None)
    for column in REWARD.names:
        if column not in table.column_names:
            table = table.append_column(column, reward[column])
    return conform(table, EVAL)


def evaluation_metrics(name: str, table: pa.Table) -> dict[str, float]:
    """``eval/<name>`` (mean score), ``eval/<name>-pass@k``, ``-truncated_ratio``, ``-response_len/{mean,max}``.

    The score is absent when no sample has one.
    """
    metrics = step_metrics(table, table)
    result = {f"eval/{name}": metrics["reward/mean"]} if "reward/mean" in metrics else {}
    kept = ("truncated_ratio", "response_len/mean", "response_len/max")
    for key, value in metrics.items():
        if key in kept or key.startswith("pass@"):
            result[f"eval/{name}-{key}"] = value
    return result
