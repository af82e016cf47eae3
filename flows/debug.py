"""Steps of a part of the loop: --debug-rollout-only, and --debug-train-only on recorded samples.

Guarantee: they leave the same tables, records and manifests as whole steps, so that such a run is resumed like any
other; what the part does not need is not started.
"""

from typing import Any

import flows.environment  # noqa: F401  # isort: skip  # what Prefect reads from the environment when it is imported
from prefect import flow

from relax_core.run.debug_data import save_debug_data
from relax_core.run.session import RunSession
from tasks.advantage import advantage
from tasks.checkpoint import checkpoint
from tasks.commit import commit
from tasks.ensure_engines import ensure_engines
from tasks.evaluate import evaluate_before
from tasks.forward import passes, reachable
from tasks.generate import generate
from tasks.replay import replay, replay_reward
from tasks.reward import reward
from tasks.train import train
from tasks.train_critic import critics
from tasks.weight_sync import weight_sync


@flow(name="step", flow_run_name="{run.id}/step-{step:06d}", validate_parameters=False)
def rollout_only_step(run: RunSession, step: int) -> dict[str, Any]:
    """Generate and score with the first weights; nothing is learnt. Advantages that need a trainer are left out."""
    run.clock(step).begin()
    ensure_engines(run, step)
    done = {}
    if run.evaluates_before(step):
        done["evaluate_before"] = evaluate_before(run, step)
    done["generate"] = rollout = generate(run, step)
    done["reward"] = rewards = reward(run, step, rollout)
    batch = None
    if reachable(run):
        done |= passes(run, step, rollout)
        done["advantage"] = batch = advantage(run, step, rollout, rewards, *filter(None, [done.get("forward")]))
    save_debug_data(run, step, rollout, rewards, batch)
    return commit(run, step, done, {})


@flow(name="step", flow_run_name="{run.id}/step-{step:06d}", validate_parameters=False)
def train_only_step(run: RunSession, step: int) -> dict[str, Any]:
    """Learn from recorded samples; no engine is started."""
    run.clock(step).begin()
    ensure_engines(run, step)
    done = {}
    done["generate"] = rollout = replay(run, step)
    done["reward"] = rewards = replay_reward(run, step, rollout)
    done |= passes(run, step, rollout)
    done["advantage"] = batch = advantage(run, step, rollout, rewards, *filter(None, [done.get("forward")]))
    save_debug_data(run, step, rollout, rewards, batch)
    done |= critics(run, step, batch)
    done["train"] = update = train(run, step, batch)
    weight_sync(run, step, update)
    saved = checkpoint(run, step, update) if run.checkpoint_due(step) else {}
    return commit(run, step, done, saved)
