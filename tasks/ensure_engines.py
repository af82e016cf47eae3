"""Engines in line with the run directory. Never cached: a record says nothing about a process that died since.

Guarantee: afterwards trainer and engines live, as far as the run has them; if this step still has to generate (or to
evaluate the first weights), both have the step's base version, and nothing that a former driver left running in the
engines is still running. Later stages bring the trainer to their own version themselves, once the files that this needs
are there again.
"""

from relax_core.engines.judge import has_judge
from relax_core.run import turns
from relax_core.run.order import StepOrder
from relax_core.run.reconcile import bring_actor, bring_critic, push_weights
from relax_core.run.session import RunSession
from relax_core.run.start import critic_start_text
from relax_core.weights.label import weight_label
from tasks.evaluate import evaluate_before
from tasks.generate import generate
from tasks.stage import action

STARTED = {"whole": ["SGLang", "the trainer"], "rollout": ["SGLang"], "train": ["the trainer"]}


@action("ensure_engines")
def ensure_engines(run: RunSession, step: int, order: StepOrder | None = None) -> None:
    """Start what is missing and reconcile versions.

    Args:
        order: says which version the engines begin with, where steps overlap.
    """
    first = not run.engines_known
    if first:
        judged = has_judge(run.config) and run.mode != "train"
        others = [*STARTED[run.mode], *(["the critic"] if run.has_critic else []), *(["the judge"] if judged else [])]
        *others, last = others
        what = f"{', '.join(others)} and {last}" if others else last
        run.progress.note(f"finding or starting {what} (a start takes 20 to 60 s)")
        if run.has_critic and step == 0:
            run.progress.note(critic_start_text(run.config))
    run.ensure()
    if first:
        turns.note(run)
    if run.mode == "train":
        return
    if order is not None or _needs_base(run, step):
        run.engines.abort_all()
        if run.mode == "whole":
            if order is None:
                _bring_base(run, step, lazy=False)
            else:
                _bring_base(run, order.version, lazy=True)
    run.engines.check()


def _bring_base(run: RunSession, version: int, lazy: bool) -> None:
    """Trainers at ``version``, and engines at what they should have had when they were last told.

    Args:
        lazy: trainers stay where they are if the engines need nothing: one may have made an update that is not
            recorded, and answers for it when its turn comes.
    """
    base = run.sent_version(version)
    if (lazy or base != version) and not run.engines.stale(weight_label(base, run.history.weights_id(base))):
        run.pushed = base
        return
    bring_actor(run, base)
    if base == version:
        bring_critic(run, version)
    push_weights(run, base)


def _needs_base(run: RunSession, step: int) -> bool:
    """Whether a stage of this step that is still to run asks the engines with the weights before the update."""
    if generate.known(run, step) is None:
        return True
    return run.evaluates_before(step) and evaluate_before.known(run, step) is None
