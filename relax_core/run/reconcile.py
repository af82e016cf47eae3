"""The trainers and engines of an open run, brought to a version.

Guarantee: as ``relax_core.run.recovery``, for each model that the run trains; what was trained again is noted once in
``run.redone``, whichever model it was. A trainer that has something to do holds its memory.
"""

from contextlib import nullcontext
from functools import partial
from typing import Any

from relax_core.run import turns
from relax_core.run.recovery import bring_trainer_to
from relax_core.run.session import RunSession
from relax_core.training.errors import VersionMismatch
from relax_core.weights.label import weight_label


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
    """
    weights_id = run.history.weights_id(version)
    label = weight_label(version, weights_id)
    with run.pushing:
        turns.hand_over(run, label)
        interrupts = run.overlaps and run.engines.stale(label)
        with run.gate.closed(run.engines.abort_all) if interrupts else nullcontext():
            done = dict(run.trainer.push_weights(version, run.engines.urls, weights_id))
        for generation in list(run.generations):
            generation.add(run.engines.urls)  # those that were started anew
        run.pushed = version
        run.pushing.notify_all()
    return done


def revive(run: RunSession) -> list[str]:
    """Engines in place of those that were lost while they generated, with the weights of those.

    Returns:
        Their addresses.
    """
    run.ensure()
    if run.mode == "rollout":  # they have the first weights, and no trainer sends others
        return run.engines.urls
    with run.pushing:
        before = run.pushed
        try:
            push_weights(run, before)
        except VersionMismatch:  # the trainer made the next version meanwhile, and whoever asked for it pushes it
            run.pushing.wait_for(lambda: run.pushed != before)
    return run.engines.urls
