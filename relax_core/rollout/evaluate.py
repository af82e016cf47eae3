"""Evaluation: a prompt set through the engines and the reward.

Guarantee: nothing of it reaches training; two evaluations of a run ask for the same samples with the same seeds, so
that they differ by the weights only.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import pyarrow as pa

from data.prompts import PromptDataset
from data.schema import EVAL, REWARD, conform
from relax_core.config.eval_set import EvalSet
from relax_core.config.sections import RelaxConfig
from relax_core.proxy import proxied
from relax_core.rewards.choice import evaluation_choice
from relax_core.rewards.pools import NO_SERVICES, Pools, Services
from relax_core.rewards.score import score_evaluation
from relax_core.rewards.sources import evaluation_source_hash
from relax_core.rewards.stream import RewardStream
from relax_core.rollout.custom import custom_answer, load_generate
from relax_core.rollout.gate import Gate
from relax_core.rollout.generate import ProgressCallback, run_generation
from relax_core.rollout.generation import Generation
from relax_core.rollout.requests import evaluation_requests
from relax_core.rollout.sampling import Sampling
from relax_core.rollout.table import rollout_table
from relax_core.tracking.metrics import aligned, step_metrics


def evaluate_set(
    eval_set: EvalSet,
    prompts: PromptDataset,
    urls: Sequence[str],
    config: RelaxConfig,
    *,
    step: int,
    tokenizer: Any,
    progress: ProgressCallback | None = None,
    pools: Pools | None = None,
    services: Services = NO_SERVICES,
    gate: Gate | None = None,
    revive: Callable[[], Sequence[str]] | None = None,
    opened: Callable[[Generation], None] | None = None,
) -> tuple[pa.Table, dict[str, float]]:
    """Evaluate the weights after ``step``, that is version ``step + 1``. Samples are scored while others are generated.

    Args:
        eval_set: of a resolved configuration; says how often and how each prompt is asked, and how it is scored.
        prompts: its prompts.
        urls: engines.
        config: the options that all sets share: seed, concurrency, how responses become text.
        step: rollout step; -1 before training.
        tokenizer: decodes the responses.
        progress: see ``generate``.
        pools: processes of reward functions; None: those that are needed are ended at once.
        services: see ``score_table``.
        gate, revive: see ``Generation``.
        opened: see ``generate``.

    Returns:
        Table of schema ``EVAL`` and ``evaluation_metrics``.

    Raises:
        UserError: no engine is left, another weight version, or an error of the reward.
    """
    sampling = Sampling.for_evaluation(eval_set, config)
    answer = custom_answer(
        eval_set.custom_generate_function_path,
        config,
        tokenizer,
        context=eval_set.max_context_len,
        longest=eval_set.max_response_len,
        evaluation=True,
    )
    samples = eval_set.n_samples_per_eval_prompt or 1
    table_of = partial(rollout_table, step=step, tokenizer=tokenizer, skip_special_tokens=sampling.skip_special_tokens)
    with (
        nullcontext(pools) if pools else Pools(config) as processes,
        RewardStream(
            evaluation_choice(eval_set, config), config, processes, services, partial(table_of, version=None)
        ) as stream,
    ):
        with proxied(config.debug.http_proxy if answer else None):
            generated = run_generation(
                evaluation_requests(eval_set.name, prompts, samples, config.data.rollout_seed),
                urls,
                sampling,
                context=eval_set.max_context_len,
                concurrency=config.sglang.sglang_server_concurrency,
                progress=progress,
                answer=answer,
                finished=stream.add,
                gate=gate,
                revive=revive,
                tokenizer=tokenizer,
                opened=opened,
            )
        rollout = table_of(generated, version=step + 1)
        table = evaluation_table(rollout, score_evaluation(rollout, eval_set, config, processes, services, stream))
    return table, evaluation_metrics(eval_set.name, table)


def evaluation_source(eval_sets: Iterable[EvalSet], config: RelaxConfig) -> str:
    """SHA-256 over the source of every function that may generate or score a sample of the sets: part of the identity
    of an evaluation."""
    eval_sets = list(eval_sets)
    scores = evaluation_source_hash(eval_sets, config)
    paths = {one.name: path for one in eval_sets if (path := one.custom_generate_function_path)}
    if not paths:
        return scores
    sources = {name: load_generate(path).source_hash for name, path in paths.items()}
    return hashlib.sha256(json.dumps([scores, sources], sort_keys=True).encode()).hexdigest()


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
