"""The training flow: one subflow per rollout step, one task per stage; one step after another, or overlapping.

Guarantee: ``train(config)`` runs what is not yet finished in the run directory and nothing else; a finished run
returns at once and starts no engine.
"""

import contextlib
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any

import flows.environment  # noqa: F401  # isort: skip  # what Prefect reads from the environment when it is imported
from prefect import flow, tags
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from flows.crashed import mark_crashed
from flows.debug import rollout_only_step, train_only_step
from flows.groups import Groups
from flows.guard import choose_server, guard_temporary_server, reaching_prefect
from flows.launch import checked, given_options, open_run
from flows.overlap import overlapping_steps
from flows.parameters import shown, shown_sources
from flows.restarts import in_process, restarted, watched
from relax_core.config import RelaxConfig, Source, mark_derived
from relax_core.config.forward import forward_needs
from relax_core.run.debug_data import check_recorded, save_debug_data
from relax_core.run.forward import check_teacher
from relax_core.run.order import StepOrder
from relax_core.run.ports import Backend
from relax_core.run.session import RunSession, run_id
from relax_core.tracking.jsonl import read_metrics, trim_metrics
from relax_core.tracking.notify import telling
from relax_core.tracking.timeline import write_timeline
from relax_core.waiting import told
from tasks import artefacts
from tasks.advantage import advantage
from tasks.cancelled import say_cancelled
from tasks.checkpoint import checkpoint
from tasks.commit import commit
from tasks.ensure_engines import ensure_engines
from tasks.evaluate import evaluate, evaluate_before
from tasks.forward import forward, passes
from tasks.generate import generate
from tasks.reward import reward
from tasks.train import train as train_stage
from tasks.train_critic import critics
from tasks.weight_sync import weight_sync


@flow(name="step", flow_run_name="{run.id}/step-{step:06d}", validate_parameters=False)
def rollout_step(run: RunSession, step: int) -> dict[str, Any]:
    """One step: generate, score, learn, sync."""
    run.clock(step).begin()
    ensure_engines(run, step)
    done = {}
    if run.evaluates_before(step):
        done["evaluate_before"] = evaluate_before(run, step)
    done["generate"] = rollout = generate(run, step)
    done["reward"] = rewards = reward(run, step, rollout)
    done |= passes(run, step, rollout)
    done["advantage"] = batch = advantage(run, step, rollout, rewards, *filter(None, [done.get("forward")]))
    save_debug_data(run, step, rollout, rewards, batch)
    done |= critics(run, step, batch)
    done["train"] = update = train_stage(run, step, batch)
    weight_sync(run, step, update)
    saved = checkpoint(run, step, update) if run.checkpoint_due(step) else {}
    if run.evaluation_due(step):
        done["evaluate"] = evaluate(run, step, update)
    return commit(run, step, done, saved)


@flow(name="step", flow_run_name="{run.id}/step-{step:06d}", validate_parameters=False)
def overlapped_step(run: RunSession, step: int, order: StepOrder) -> dict[str, Any]:
    """The same step, beside others: it generates in its turn, and learns in its turn."""
    done = {}
    with order.generating(step):
        run.clock(step).begin()
        if step == order.first:
            ensure_engines(run, step, order)
        if run.evaluates_before(step):
            done["evaluate_before"] = evaluate_before(run, step)
        run.feed_trainer(step, order)
        done["generate"] = rollout = generate(run, step)
    done["reward"] = rewards = reward(run, step, rollout)
    with order.training(step):
        with run.learning:
            done |= passes(run, step, rollout)
            done["advantage"] = batch = advantage(run, step, rollout, rewards, *filter(None, [done.get("forward")]))
            save_debug_data(run, step, rollout, rewards, batch)
            done |= critics(run, step, batch)
            done["train"] = update = train_stage(run, step, batch)
            weight_sync(run, step, update, order)
            saved = checkpoint(run, step, update) if run.checkpoint_due(step) else {}
        if run.evaluation_due(step):
            done["evaluate"] = evaluate(run, step, update)
        return commit(run, step, done, saved)


def _trained(run: RunSession, step: int) -> bool:
    """Whether the update of a step is made, and nothing that it follows from is to be made anew."""
    rollout = generate.known(run, step)
    rewards = rollout and reward.known(run, step, rollout)
    if rollout is None or rewards is None:
        return False
    scores = [forward.known(run, step, rollout)] if forward_needs(run.config) else []
    found = [record for record in scores if record is not None]
    batch = advantage.known(run, step, rollout, rewards, *found) if len(found) == len(scores) else None
    return batch is not None and train_stage.known(run, step, batch) is not None


def all_steps(run: RunSession, first: int) -> Generator[tuple[int, dict[str, Any]], None, None]:
    """Each finished step and its manifest, in order; they run meanwhile."""
    if run.overlaps:
        run.connect()
        yield from overlapping_steps(run, first, run.step_order(_trained(run, first)), overlapped_step)
        return
    one_step = {"rollout": rollout_only_step, "train": train_only_step}.get(run.mode, rollout_step)
    with Groups(run, first) as groups:
        for step in range(first, run.total_steps):
            # The heartbeat of a subflow costs a second a step; the parent's shows that the run lives.
            with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
                context = groups.context(step)
            manifest = context.run(one_step, run, step)
            groups.finished(step)
            yield step, manifest


@flow(name="train", on_crashed=[say_cancelled])
def train_flow(config: RelaxConfig, sources: dict[str, Source] | None = None) -> dict[str, Any]:
    """Every step that the run directory lacks."""
    return drive(config, sources)


def drive(config: RelaxConfig, sources: Mapping[str, Source] | None) -> dict[str, Any]:
    """The body of a training flow."""
    with open_run(config, sources) as run, tags(run.id):
        guard_temporary_server()
        if left := mark_crashed(run.id):
            run.events.add("flow_crashed", cause="a former driver died without a word", flows=left)
        first = run.next_step()
        trim_metrics(run.store, first)
        run.progress.begin(run.store.url, run.total_steps, first, read_metrics(run.store))
        metrics: dict[str, float] = {}
        with artefacts.shown(run, first) as shows, contextlib.closing(all_steps(run, first)) as steps:
            for step, manifest in steps:
                metrics = manifest["metrics"]
                write_timeline(run.config, step, run.clock(step).spans)
                shows.step(step, manifest)
            shows.closing = run.progress.closing_text(run.board.folder if run.board else None)
        return {"run": run.store.url, "steps": run.total_steps, "redone": run.redone, "metrics": metrics}


def train(
    config: RelaxConfig, sources: Mapping[str, Source] | None = None, backend: Backend | None = None
) -> dict[str, Any]:
    """Train a policy; with the same run directory again, go on. This is what ``relax train`` calls.

    Args:
        config: options; derived values are filled in here.
        sources: origin of each option, kept in ``<run>/config.yaml``.
        backend: another way to engines than Ray (tests, benchmarks).

    Returns:
        ``run`` (its address), ``steps``, ``redone`` (steps trained again on stored batches) and ``metrics``.

    Raises:
        UserError: a mistake in the options or files, or an engine that did not come up.
    """
    return train_with(config, sources, backend, _as_flow)


def _as_flow(config: RelaxConfig, sources: Mapping[str, Source]) -> dict[str, Any]:
    name = run_id(str(config.run.run_dir))
    with tags(name):
        result: dict[str, Any] = train_flow.with_options(flow_run_name=name)(shown(config), shown_sources(sources))
    return result


Go = Callable[[RelaxConfig, Mapping[str, Source]], dict[str, Any]]


def train_with(
    config: RelaxConfig, sources: Mapping[str, Source] | None, backend: Backend | None, go: Go
) -> dict[str, Any]:
    """``train``, with another way than a flow of its own.

    Args:
        go: calls ``drive``, in a flow.
    """
    sources = sources or given_options(config)
    given, config = config, checked(config, sources=sources)
    sources = mark_derived(given, config, sources)
    return in_process(config, lambda: _train(config, sources, backend, go))


def _train(config: RelaxConfig, sources: Mapping[str, Source], backend: Backend | None, go: Go) -> dict[str, Any]:
    with open_run(config, sources, backend) as run:
        if run.next_step() >= run.total_steps:
            run.progress.note(
                f"{run.store.url} is complete: {run.next_step()} steps (a larger --num-rollout adds some)"
            )
            manifest = run.store.read_manifest(run.total_steps - 1) or {}
            return {
                "run": run.store.url,
                "steps": run.total_steps,
                "redone": [],
                "metrics": manifest.get("metrics", {}),
            }
        with told("the prompts to be read", "the run"):
            run.check_prompts()
        check_recorded(run)
        check_teacher(run)
        choose_server(run.progress.note)
        guard_temporary_server()
        watch = partial(watched, run.config)
        told_of = telling(run.config, run.store.url, run.next_step(), run.progress.outcome, restarted(), watch)
        with told_of, reaching_prefect():
            return go(config, sources)
