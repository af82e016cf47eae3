"""The trainers and engines of an open run, brought to a version.

Guarantee: as ``relax_core.run.recovery``, for each model that the run trains; what was trained again is noted once in
``run.redone``, whichever model it was. A trainer that has something to do holds its memory.
"""

from functools import partial
from typing import Any

from relax_core.run import turns
from relax_core.run.recovery import bring_trainer_to
from relax_core.run.session import RunSession
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
    """Bring the engines to ``version``, which is the actor's; those that have it are left alone."""
    weights_id = run.history.weights_id(version)
    turns.hand_over(run, weight_label(version, weights_id))
    return dict(run.trainer.push_weights(version, run.engines.urls, weights_id))
