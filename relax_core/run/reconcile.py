"""The trainers and engines of an open run, brought to a version.

Guarantee: as ``relax_core.run.recovery``, for each model that the run trains; what was trained again is noted once in
``run.redone``, whichever model it was. A trainer that has something to do holds its memory.
"""

from contextlib import nullcontext
from functools import partial
from typing import Any

from data.errors import Lost
from relax_core.run import turns
from relax_core.run.health import stuck
from relax_core.run.recovery import bring_trainer_to
from relax_core.run.session import RunSession
from relax_core.waiting import told
from relax_core.weights.label import weight_label

_LOOK_SECONDS = 1.0


def bring_actor(run: RunSession, version: int) -> None:
    """Make the actor's version ``version``.

    Raises:
        UserError: as ``bring_trainer_to``.
    """
    prepare = partial(turns.train, run, "actor")
    run.redone += bring_trainer_to(version, run.trainer, run.history, run.progress.note, run.events, prepare)


def bring_critic(run: RunSession, version: int) -> None:
    """Make the critic's version ``version``, in a run that has one.

    Raises:
        UserError: as ``bring_trainer_to``.
    """
    if run.has_critic:
        prepare = partial(turns.train, run, "critic")
        redone = bring_trainer_to(version, run.critic, run.critic_history, run.progress.note, run.events, prepare)
        run.redone += [step for step in redone if step not in run.redone]


def push_weights(run: RunSession, version: int) -> dict[str, Any]:
    """Bring the engines to ``version``, which is the actor's; those that have it are left alone.

    Where steps overlap, what is being generated stops for it and goes on with the new weights.

    Raises:
        Lost: the trainer or an engine; engines that do not answer have been ended.
    """
    weights_id = run.history.weights_id(version)
    label = weight_label(version, weights_id)
    with run.pushing:
        turns.hand_over(run, label)
        interrupts = run.overlaps and run.engines.stale(label)
        with run.gate.closed(run.engines.abort_all) if interrupts else nullcontext():
            try:
                done = dict(run.trainer.push_weights(version, run.engines.urls, weights_id))
            except Lost:
                # what died in a broadcast leaves the other end waiting for it, where nobody would find it dead
                for url, reason in stuck(run.engines.urls).items():
                    run.lose_engine(url, reason)
                raise
        if setup := done.get("setup"):
            run.progress.note(f"the trainer joined the engines to send them weights: {setup:.1f} s")
        for generation in list(run.generations):
            generation.add(run.engines.urls)  # those that were started anew
        run.pushed = version
        run.pushing.notify_all()
    return done


def serving(run: RunSession) -> list[str]:
    """Addresses of the engines, each with the weights that this run gave its engines last.

    Where one has others, the trainer is first brought back to those weights: it may have been started anew as well, or
    have learned since. While a step has the trainer, it is waited for, since it sends its own weights in the end.
    """
    if run.mode == "rollout":  # they have the first weights, and no trainer sends others
        return run.engines.urls
    with told("the trainer", "engines that lack weights"):
        while run.engines.stale(weight_label(version := run.pushed, run.history.weights_id(version))):
            if run.ended.is_set():
                raise Lost("The run was closed while engines waited for weights.", "Start again: the run goes on.")
            if run.learning.acquire(timeout=_LOOK_SECONDS):
                try:
                    if run.pushed == version:
                        bring_actor(run, version)
                        push_weights(run, version)
                finally:
                    run.learning.release()
    return run.engines.urls


def revive(run: RunSession) -> list[str]:
    """Engines in place of those that were lost while they generated, with the weights of those.

    Returns:
        Their addresses.
    """
    run.ensure()
    urls = serving(run)
    turns.generate(run)  # where devices are shared, the trainer held the memory to send its weights
    return urls
