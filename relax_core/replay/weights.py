"""The weights that a repeated update made, against those that the run saved.

Guarantee: compared bit by bit with a complete checkpoint of this very version and history; without one there is nothing
to say.
"""

from typing import Any

from data.errors import UserError
from relax_core.replay.columns import ColumnChange
from relax_core.replay.compare import Comparison, Difference
from relax_core.run.recovery import History
from relax_core.training.checkpoint_index import complete_iterations


def compare_weights(trainer: Any, history: History, step: int, stage: str, strict: bool) -> Comparison | None:
    """The trainer's weights, which ``step`` made, and the checkpoint of that step; None where there is none.

    Args:
        trainer: a ``LocalTrainer``; another one cannot tell.
        stage: that made them.
        strict: whether other bits count as a difference: not where the metrics are others by rounding already.

    Returns:
        One row a parameter that differs; the stage is ``weights``, or ``critic weights``.
    """
    unlike = getattr(trainer, "unlike", None)
    if unlike is None:
        return None
    try:
        wanted = history.weights_id(step + 1)
    except UserError:
        return None
    if (step, wanted) not in complete_iterations(history.checkpoints, warn=False):
        return None
    name = "weights" if stage == "train" else "critic weights"
    rows = unlike(history.checkpoints, step)
    changes = tuple(ColumnChange(row["name"], int(strict), row["values"], row["largest"]) for row in rows)
    first = None
    if rows and strict:
        first = Difference(name, rows[0]["name"], None, rows[0]["place"], rows[0]["old"], rows[0]["new"])
    return Comparison(name, (0, 0), changes=changes, first=first)
