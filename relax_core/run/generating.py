"""What ties a generation to the run that it belongs to.

Guarantee: a generation goes on through a change of the weights where steps overlap, through the death of its engines,
and with engines that were started anew meanwhile; the run's timeline tells of what was lost.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypedDict

from relax_core.rollout.gate import Gate
from relax_core.rollout.generation import Generation
from relax_core.run.reconcile import revive
from relax_core.run.session import RunSession


class Links(TypedDict):
    """Arguments of ``relax_core.rollout.generate.generate``."""

    gate: Gate | None
    revive: Callable[[], Sequence[str]]
    lost: Callable[[str, str], None]
    opened: Callable[[Generation], None]


def links(run: RunSession, step: int) -> Links:
    """Of a generation of a step."""

    def lost(url: str, reason: str) -> None:
        run.events.add("engine_lost", step, url, reason)

    return {
        "gate": run.gate if run.overlaps else None,
        "revive": partial(revive, run),
        "lost": lost,
        "opened": run.generations.add,
    }
