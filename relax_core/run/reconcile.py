"""The trainers of an open run, brought to a version.

Guarantee: as ``relax_core.run.recovery``, for each model that the run trains; what was trained again is noted once in
``run.redone``, whichever model it was.
"""

from relax_core.run.recovery import bring_trainer_to
from relax_core.run.session import RunSession


def bring_actor(run: RunSession, version: int) -> None:
    """Make the actor's version ``version``.

    Raises:
        UserError: as ``bring_trainer_to``.
    """
    run.redone += bring_trainer_to(version, run.trainer, run.history, run.progress.note)


def bring_critic(run: RunSession, version: int) -> None:
    """Make the critic's version ``version``, in a run that has one.

    Raises:
        UserError: as ``bring_trainer_to``.
    """
    if run.has_critic:
        redone = bring_trainer_to(version, run.critic, run.critic_history, run.progress.note)
        run.redone += [step for step in redone if step not in run.redone]
