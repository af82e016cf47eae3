"""The passes over a rollout that its advantages need, from the engines that make them.

Guarantee: every column is made with the weights that the step began with, or by the teacher, which is known by the
model that it says it serves; rows are matched by sample id.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from data.errors import UserError
from data.ragged import Ragged
from data.schema import FORWARD
from data.schema import table as make_table
from data.store import TableRef
from relax_core.config.derived import longest_sample
from relax_core.config.forward import forward_needs
from relax_core.engines.teacher import Scored, Teacher, meet, score
from relax_core.run import turns
from relax_core.run.reconcile import bring_actor, bring_critic
from relax_core.run.session import RunSession

SERVICES = "services.json"
"""What servers that the run does not start said at its last start, in the run directory."""


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
        bring_actor(run, step)
        turns.train(run, "actor")
        parts.append(run.trainer.forward(step, rollout, run.store.url, needs.policy, weights_id))
    if needs.critic:
        weights_id = run.critic_history.weights_id(step)
        bring_critic(run, step)
        turns.train(run, "critic")
        parts.append(run.critic.forward(step, rollout, run.store.url, needs.critic, weights_id))
    if needs.service:
        parts.append(teacher_table(run, rollout))
    table = joined(parts)
    for name in needs.columns:
        require_finite(table, name)
    return table


def check_teacher(run: RunSession) -> None:
    """Make sure, before anything is started, that the teacher's server can be asked, where a run needs one.

    Where the samples may carry the teacher's log-probs already, what is wrong with it is only told.

    Raises:
        UserError: see ``relax_core.engines.teacher.meet``.
    """
    needs = forward_needs(run.config)
    if not needs.service or (run.mode == "rollout" and (needs.policy or needs.critic)):  # then there is no such stage
        return
    carried = run.config.rollout.custom_generate_function_path or run.config.debug.load_debug_rollout_data
    try:
        if run.config.reward.rm_url:
            _remember(run, _meet(run))
    except UserError as error:
        if not carried:
            raise
        run.progress.note(f"{error.problem} Samples that carry no teacher_log_probs could not be trained on.")


def served_teacher(run: RunSession) -> str:
    """What the teacher's server said at the last start that it serves; empty without one, or where it does not say."""
    return str((run.store.read_json(SERVICES) or {}).get("teacher", ""))


def _remember(run: RunSession, teacher: Teacher) -> None:
    before = served_teacher(run)
    if teacher.serves == before:
        return
    run.store.write_json(SERVICES, {"teacher": teacher.serves})
    if before:
        now = teacher.serves or "what it does not say"
        run.progress.note(
            f"--rm-url {teacher.url} serves {now} now, and {before} before: what is not finished is distilled from it"
        )


def teacher_table(run: RunSession, rollout: TableRef) -> pa.Table:
    """The teacher's log-probs: those that the samples carry, the others from the server.

    Returns:
        Schema ``FORWARD`` with ``teacher_log_probs``, rows as in the rollout.

    Raises:
        UserError: see ``relax_core.engines.teacher.score``.
    """
    columns = ["sample_id", "group_id", "tokens", "response_length", "teacher_log_probs"]
    table = run.store.read_table(rollout, columns)
    column: Any = table["teacher_log_probs"]
    if column.null_count:
        found = column.to_pylist()
        missing = [row for row, values in enumerate(found) if values is None]
        ids, lengths = table["sample_id"].to_pylist(), table["response_length"].to_pylist()
        tokens = Ragged.from_arrow(table["tokens"])
        samples = [Scored(ids[row], tokens[row], lengths[row]) for row in missing]
        limit = run.config.reward.reward_max_concurrency
        scores = score(_meet(run), samples, run.config.rollout.rollout_temperature, limit, run.progress.update)
        for row, values in zip(missing, scores, strict=True):
            found[row] = values
        column = Ragged.from_list(found, np.float32)
    named = {name: table[name] for name in ("sample_id", "group_id", "response_length")}
    return make_table(FORWARD, {**named, "teacher_log_probs": column})


def _meet(run: RunSession) -> Teacher:
    config = run.config
    if config.reward.rm_url is None:
        raise UserError("--opd-type sglang: some samples carry no teacher_log_probs.", "Give --rm-url to ask for them.")
    return meet(config.reward.rm_url, run.tokenizer, config.rollout.rollout_temperature, longest_sample(config))


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


def require_finite(table: pa.Table, name: str) -> None:
    """Make sure that no advantage is made of what is no number, before it is stored and found again.

    Args:
        table: schema ``FORWARD``.
        name: of a column that it has.

    Raises:
        UserError: a value that is not finite, with its sample and token.
    """
    column = Ragged.from_arrow(table[name])
    wrong = ~np.isfinite(column.values)
    if wrong.any():
        place = int(np.argmax(wrong))
        row = int(np.searchsorted(column.offsets, place, side="right")) - 1
        sample, token = table["sample_id"][row].as_py(), place - int(column.offsets[row])
        raise UserError(
            f"{name} of sample {sample} is {column.values[place]} at response token {token}.",
            "Weights that give no finite numbers cannot be trained: lower --lr, or train in bfloat16 or float32.",
        )


def _in_order(part: pa.Table, like: pa.Table) -> pa.Table:
    places = {sample_id: row for row, sample_id in enumerate(part["sample_id"].to_pylist())}
    wanted = like["sample_id"].to_pylist()
    if places.keys() != set(wanted):
        raise UserError("Two passes over the same rollout gave rows of different samples.", "Run the step again.")
    return part.take(pa.array([places[sample_id] for sample_id in wanted]))
