"""Which stages a replay repeats.

Guarantee: passes of models are made only where a model is wanted anyway, or where they are named; a step without a
critic, or without passes, has no such stage.
"""

from typing import Literal, get_args

from data.errors import UserError
from relax_core.config import RelaxConfig
from relax_core.config.derived import needs_critic
from relax_core.config.forward import forward_needs

Stage = Literal["reward", "forward", "advantage", "train"]

STAGES: tuple[Stage, ...] = get_args(Stage)
"""What --from and --to may name, in the order of a step."""


def stages_again(first: Stage, last: Stage | None, config: RelaxConfig) -> list[str]:
    """The stages to repeat, in the order of a step.

    Args:
        last: None: advantage, or ``first`` if that is later.

    Raises:
        UserError: ``last`` comes before ``first``, or the run has trained nothing.
    """
    last = last or max(("advantage", first), key=STAGES.index)
    if STAGES.index(last) < STAGES.index(first):
        raise UserError(f"--to {last} comes before --from {first}.", f"Order: {', '.join(STAGES)}.")
    span = STAGES[STAGES.index(first) : STAGES.index(last) + 1]
    named = "train" in span or "forward" in (first, last)
    found: list[str] = [stage for stage in span if stage != "forward" or (named and forward_needs(config))]
    if "train" in found:
        if config.debug.debug_rollout_only:
            raise UserError("The run has trained nothing (--debug-rollout-only).", "Leave --to train out.")
        if needs_critic(config):
            found.insert(found.index("train"), "train_critic")
    return found
