"""Engines in line with the run directory. Never cached: a record says nothing about a process that died since.

Guarantee: afterwards the trainer holds the weights that the run's records lead to, and, if this step still has to
generate, the engines hold the step's base version; nothing that a former driver left running in the engines is still
running.
"""

from relax_core.run.recovery import bring_trainer_to
from relax_core.run.session import RunSession
from tasks.stage import action


@action("ensure_engines")
def ensure_engines(run: RunSession, step: int) -> None:
    """Start what is missing and reconcile versions."""
    run.ensure()
    trained = run.records.last(step, "train") is not None
    generated = run.records.last(step, "generate") is not None
    at = int(run.trainer.status()["version"])
    # A killed driver's update may have finished inside the trainer before its record was written: compare-and-swap
    # in the train stage recognises it. Only when this step has to generate must the trainer be at its base.
    finished_unrecorded = not trained and generated and at == step + 1
    if not finished_unrecorded:
        run.redone += bring_trainer_to(step + 1 if trained else step, run.trainer, run.history, run.progress.note)
    if not generated:
        run.engines.abort_all()
        run.trainer.push_weights(step, run.engines.urls)
    run.engines.check()
