"""The passes over a rollout that its advantages need, from the engines that make them.

Guarantee: every column is made with the weights that the step began with; rows are matched by sample id.
"""

import pyarrow as pa

from data.errors import UserError
from data.schema import FORWARD
from data.store import TableRef
from relax_core.algorithms.forward import forward_needs
from relax_core.run.recovery import bring_trainer_to
from relax_core.run.session import RunSession


def forward_table(run: RunSession, step: int, rollout: TableRef) -> pa.Table:
    """Make the passes.

    Args:
        rollout: schema ``ROLLOUT``, N rows.

    Returns:
        Schema ``FORWARD``, N rows in the order of the rollout.

    Raises:
        UserError: an engine that failed.
    """
    needs = forward_needs(run.config)
    parts = []
    if needs.policy:
        weights_id = run.history.weights_id(step)
        run.redone += bring_trainer_to(step, run.trainer, run.history, run.progress.note)
        parts.append(run.trainer.forward(step, rollout, run.store.url, needs.policy, weights_id))
    return joined(parts)


def joined(parts: list[pa.Table]) -> pa.Table:
    """Tables of schema ``FORWARD`` for the same samples as one: each column from the part that has it.

    Raises:
        UserError: parts with other samples.
    """
    first, *others = parts
    for part in others:
        part = _in_order(part, first)
        for name in part.column_names:
            if part[name].null_count < part.num_rows and first[name].null_count == first.num_rows:
                first = first.set_column(FORWARD.get_field_index(name), FORWARD.field(name), part[name])
    return first


def _in_order(part: pa.Table, like: pa.Table) -> pa.Table:
    places = {sample_id: row for row, sample_id in enumerate(part["sample_id"].to_pylist())}
    wanted = like["sample_id"].to_pylist()
    if places.keys() != set(wanted):
        raise UserError("Two passes over the same rollout gave rows of different samples.", "Run the step again.")
    return part.take(pa.array([places[sample_id] for sample_id in wanted]))
