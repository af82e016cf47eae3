"""Generate: the step's prompts through the engines, into ``rollout.parquet``.

Guarantee: the rows depend on the run's seed, the step, the prompts and the weights alone (as far as the engine is
deterministic); a repeated generation asks for the same samples with the same seeds, and only for those that the one
before it, which was cut off, had not finished and kept. Another function of the user, or another source of it, is
another identity. Samples are scored meanwhile, which changes no row and fails no generation.
"""

from functools import partial
from typing import Any

import pyarrow as pa

from relax_core.engines.profile import profiled
from relax_core.proxy import proxied
from relax_core.rollout.collect import Collector, Kept
from relax_core.rollout.custom import custom_answer, load_generate
from relax_core.rollout.generate import run_generation
from relax_core.rollout.requests import step_requests
from relax_core.rollout.sampling import Sampling
from relax_core.rollout.table import rollout_table
from relax_core.run import turns
from relax_core.run.records import StageRecord
from relax_core.run.session import RunSession
from tasks.stage import stage


def _identity(run: RunSession, step: int) -> dict[str, Any]:
    path = run.config.rollout.custom_generate_function_path
    return {
        "weights": run.history.weights_id(run.base_version(step)),
        "prompts": run.prompts.fingerprint,
        "cursor": run.cursor(step).to_json(),
        **({"source": load_generate(path).source_hash} if path else {}),
    }


@stage("generate", _identity)
def generate(run: RunSession, step: int, key: str) -> StageRecord:
    """Responses and log-probs for the prompts of this step."""
    options = run.config
    requests, cursor = step_requests(run.prompts, run.cursor(step), step, options)
    context = options.rollout.rollout_max_context_len
    answer = custom_answer(
        options.rollout.custom_generate_function_path,
        options,
        run.tokenizer,
        context=context,
        longest=options.rollout.rollout_max_response_len,
    )
    turns.generate(run)
    urls = run.engines.urls
    wanted = [request.sample_id for request in requests]
    kept = Kept(run.store, step, key)
    before = kept.read(wanted)
    _tell_kept(run, step, before.num_rows, len(requests))
    make = partial(
        rollout_table,
        step=step,
        version=run.base_version(step),
        tokenizer=run.tokenizer,
        skip_special_tokens=options.rollout.rollout_skip_special_tokens,
    )
    score = run.stream_rewards(step, pa.concat_tables) or _nobody
    score(before)
    rows = Collector(make, kept, before, score)
    finished = set(before["sample_id"].to_pylist())
    try:
        with profiled(options, urls, step), proxied(options.debug.http_proxy if answer else None):
            run_generation(
                [request for request in requests if request.sample_id not in finished],
                urls,
                Sampling.for_training(options),
                context=context,
                concurrency=options.sglang.sglang_server_concurrency,
                progress=run.progress.update,
                answer=answer,
                finished=rows.add,
                lost=partial(_tell_lost, run, step),
            )
        reference = run.store.write_table(run.store.step_path(step, "rollout.parquet"), rows.table(wanted))
    except BaseException:
        rows.close()
        run.end_stream()
        raise
    return StageRecord("generate", key, {"rollout": reference}, {"cursor": cursor.to_json()})


def _nobody(rows: pa.Table) -> None:
    """Takes the rows of a step that has its scores."""


def _tell_lost(run: RunSession, step: int, url: str, reason: str) -> None:
    run.events.add("engine_lost", step, url, reason)


def _tell_kept(run: RunSession, step: int, kept: int, count: int) -> None:
    if kept:
        run.progress.note(f"{kept} of {count} samples were finished before: they are not generated again")
        run.events.add("samples_reused", step, "generate", "an earlier driver ended while it generated", samples=kept)
