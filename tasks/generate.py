"""Generate: the step's prompts through the engines, into ``rollout.parquet``; what is left for the next step beside it,
into ``buffer.parquet``.

Guarantee: the rows depend on the run's seed, the step, the prompts, the buffer and the weights alone (as far as the
engine is deterministic; where more groups are begun than the step needs, also on which finish first); a repeated
generation asks for the same samples with the same seeds, and only for those that the one before it, which was cut off,
had not finished and kept. Another function of the user, or another source of it, is another identity, and what is
finished under the old one of a filter is kept. Samples are scored meanwhile, which changes no row; only a filter that
waits for scores fails a generation.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeAlias, TypedDict

import pyarrow as pa

from data.store import TableRef
from relax_core.config.derived import selects
from relax_core.engines.profile import profiled
from relax_core.proxy import proxied
from relax_core.rollout.collect import Collector, Kept, MakeTable
from relax_core.rollout.custom import custom_answer, load_generate
from relax_core.rollout.filters import filter_sources
from relax_core.rollout.generate import run_generation
from relax_core.rollout.generated import Answer
from relax_core.rollout.generation import Generation
from relax_core.rollout.requests import step_requests
from relax_core.rollout.sampling import Sampling
from relax_core.rollout.table import rollout_table
from relax_core.run import turns
from relax_core.run.generating import links
from relax_core.run.health import watching
from relax_core.run.reconcile import serving
from relax_core.run.records import StageRecord
from relax_core.run.selection import TABLE, buffer_before, selected
from relax_core.run.session import RunSession
from tasks.stage import stage


def _samples(run: RunSession, step: int) -> dict[str, Any]:
    """What decides a sample."""
    path = run.config.rollout.custom_generate_function_path
    buffer = buffer_before(run, step) if selects(run.config) else None
    return {
        "weights": run.history.weights_id(run.base_version(step)),
        "prompts": run.prompts.fingerprint,
        "cursor": run.cursor(step).to_json(),
        **({"source": load_generate(path).source_hash} if path else {}),
        **({TABLE: buffer.sha256} if buffer else {}),
    }


def _identity(run: RunSession, step: int) -> dict[str, Any]:
    filters = filter_sources(run.config) if selects(run.config) else {}
    return {**_samples(run, step), **({"filters": filters} if filters else {})}


@stage("generate", _identity)
def generate(run: RunSession, step: int, key: str) -> StageRecord:
    """Responses and log-probs for the prompts of this step."""
    options = run.config
    context = options.rollout.rollout_max_context_len
    path = options.rollout.custom_generate_function_path
    longest = options.rollout.rollout_max_response_len
    answer = custom_answer(path, options, run.tokenizer, context=context, longest=longest)
    urls = serving(run)  # an engine may have been started anew since the step's weights were sent
    turns.generate(run)
    make = partial(
        rollout_table,
        step=step,
        version=None if run.overlaps else run.base_version(step),
        oldest=run.base_version(step),
        tokenizer=run.tokenizer,
        skip_special_tokens=options.rollout.rollout_skip_special_tokens,
    )
    kept = Kept(run.store, step, run.stage_key("generate", step, _samples(run, step)))
    engines = _Engines(
        urls=urls,
        sampling=Sampling.for_training(options),
        context=context,
        concurrency=options.sglang.sglang_server_concurrency,
        answer=answer,
        tokenizer=run.tokenizer,
    )
    work = _first_groups if selects(options) else _next_groups
    with profiled(options, engines["urls"], step), proxied(options.debug.http_proxy if answer else None), watching(run):
        tables, values = work(run, step, make, kept, engines)
    turns.generated(run)
    return StageRecord("generate", key, tables, values)


class _Engines(TypedDict):
    """How samples are made."""

    urls: Sequence[str]
    sampling: Sampling
    context: int | None
    concurrency: int
    answer: Answer | None
    tokenizer: Any


Made: TypeAlias = tuple[dict[str, TableRef], dict[str, Any]]
"""The tables of a stage by name, and its other results."""


def _next_groups(run: RunSession, step: int, make: MakeTable, kept: Kept, engines: _Engines) -> Made:
    """The next prompts, and all of them."""
    requests, cursor = step_requests(run.prompts, run.cursor(step), step, run.config)
    wanted = [request.sample_id for request in requests]
    before = kept.read(wanted)
    _tell_kept(run, step, before.num_rows, len(requests))
    score = run.stream_rewards(step, pa.concat_tables) or _nobody
    score(before)
    rows = Collector(make, kept, before, score)
    finished = set(before["sample_id"].to_pylist())
    try:
        run_generation(
            [request for request in requests if request.sample_id not in finished],
            **engines,
            progress=run.progress.update,
            finished=rows.add,
            **links(run, step),
        )
        tables = _write(run, step, rows.table(wanted))
    except BaseException:
        rows.close()
        run.end_stream(step)
        raise
    return tables, {"cursor": cursor.to_json()}


def _first_groups(run: RunSession, step: int, make: MakeTable, kept: Kept, engines: _Engines) -> Made:
    """The groups that are finished first, of more."""
    return selected(run, step, make, kept, partial(_opened, run, step, engines), partial(_write, run, step))


@asynccontextmanager
async def _opened(run: RunSession, step: int, engines: _Engines) -> AsyncIterator[Generation]:
    tied = links(run, step)
    async with Generation(
        engines["urls"],
        engines["sampling"],
        context=engines["context"],
        concurrency=engines["concurrency"],
        answer=engines["answer"],
        tokenizer=engines["tokenizer"],
        gate=tied["gate"],
        revive=tied["revive"],
        lost=tied["lost"],
    ) as generation:
        tied["opened"](generation)
        yield generation


def _write(run: RunSession, step: int, rollout: pa.Table, buffer: pa.Table | None = None) -> dict[str, TableRef]:
    tables = {} if buffer is None else {TABLE: buffer}
    return {
        name: run.store.write_table(run.store.step_path(step, f"{name}.parquet"), table)
        for name, table in {**tables, "rollout": rollout}.items()
    }


def _nobody(rows: pa.Table) -> None:
    """Takes the rows of a step that has its scores."""


def _tell_kept(run: RunSession, step: int, kept: int, count: int) -> None:
    if kept:
        run.progress.note(f"{kept} of {count} samples were finished before: they are not generated again")
        run.events.add("samples_reused", step, "generate", "an earlier driver ended while it generated", samples=kept)
