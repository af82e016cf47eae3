"""Commit: the step's manifest, written last, then what people look at.

Guarantee: a step with a manifest is finished and is never run again; everything that the next step needs to know is
in it. Only then are checkpoints deleted that the options do not keep.
"""

from typing import Any

from relax_core.rewards.scored import ScoreParts
from relax_core.rollout.collect import Kept
from relax_core.rollout.hooks import log_rollout
from relax_core.run import retention
from relax_core.run.manifest import checkpoint_entry, count, manifest_content, other_files
from relax_core.run.records import StageRecord
from relax_core.run.session import RunSession
from relax_core.tracking.jsonl import append_metrics
from relax_core.tracking.metrics import training_metrics
from relax_core.waiting import told
from tasks import artefacts
from tasks.checkpoint import Saved
from tasks.stage import action


@action("commit")
def commit(run: RunSession, step: int, stages: dict[str, StageRecord], saved: Saved) -> dict[str, Any]:
    """Write the manifest, the metrics and the artefacts of a step."""
    update = stages.get("train")  # none with --debug-rollout-only
    rollout, rewards = (run.store.read_table(stages[name].table) for name in ("generate", "reward"))
    replaced, metrics = log_rollout(rollout, rewards, run.config, step=step, seconds=stages["generate"].seconds)
    if not replaced:
        scores = stages["advantage"].values.get("metrics", {}) if "advantage" in stages else {}
        usual = {**training_metrics(rollout, rewards, run.config), **_streamed(stages["reward"])}
        metrics = {**usual, **scores, **metrics}
    metrics.update(stages["generate"].values.get("metrics", {}))
    for name in ("train_critic", "train", "evaluate_before", "evaluate"):
        metrics.update(stages[name].values["metrics"] if name in stages else {})
    clock = run.clock(step)
    seconds = dict(clock.seconds)  # in the order in which they ran; after them what an earlier process has done
    for record in stages.values():
        seconds.setdefault(record.stage, record.seconds)
    critic = saved.get(run.critic_history.entry) if run.has_critic else None
    manifest = manifest_content(
        step,
        stages,
        config=run.config,
        weights={
            "version": step + 1 if update else run.base_version(step),
            "id": update.key if update else run.history.weights_id(0),
        },
        cursor=stages["generate"].values["cursor"],
        counters=count(rollout, rewards, run.store.read_manifest(step - 1) if step else None),
        files=other_files(run.store, step, stages),
        metrics=metrics,
        seconds=seconds,
        wall_seconds=clock.elapsed,
        checkpoint=checkpoint_entry(saved.get(run.history.entry)),
        critic=_critic(stages["train_critic"], checkpoint_entry(critic)) if run.has_critic else None,
    )
    append_metrics(run.store, step, metrics)
    if run.board is not None:
        run.board.add(step, metrics)
    run.store.write_manifest(step, manifest)
    run.committed(step)
    Kept(run.store, step).delete()
    ScoreParts(run.store, step).delete()
    run.events.add("step_committed", step, seconds=manifest["wall_seconds"])
    for history in run.histories:
        if history.entry in saved:
            with told("old checkpoints to be deleted", f"step {step + 1}"):
                pruned = retention.prune(history, run.config.checkpoint, run.sent_version(step + 1))
            for iteration in pruned:
                run.events.add("checkpoint_deleted", step, history.name, iteration=iteration)
    run.progress.step_done(step, metrics, seconds, clock.elapsed)
    artefacts.step(run, step, manifest)
    return manifest


def _streamed(rewards: StageRecord) -> dict[str, float]:
    """``perf/rewards_while_generating``: samples that were scored when the generation ended, and
    ``perf/reward_time_behind_generation``: seconds that the rest took; nothing where the step generated nothing."""
    if "streamed" not in rewards.values:
        return {}
    return {
        "perf/rewards_while_generating": float(rewards.values["streamed"]),
        "perf/reward_time_behind_generation": rewards.seconds,
    }


def _critic(update: StageRecord, checkpoint: dict[str, Any] | None) -> dict[str, Any]:
    """What a manifest says of the critic."""
    return {
        "version": update.values["version"],
        "id": update.key,
        "optimizer_step": update.values["optimizer_step"],
        "checkpoint": checkpoint,
    }
