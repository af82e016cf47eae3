"""Groups that a step leaves for the next one: finished ones that were too many, stopped ones, ones not begun.

Guarantee: a group that is carried over keeps its id, its samples' ids, indices and seeds, and its prompt; finished
samples keep their rows, stopped ones their tokens with log-probs, versions and masks. The order is that of the groups'
indices. The table is a rollout table (schema ``ROLLOUT``) in which ``aborted`` means: to be gone on with.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data.prompts import Prompt
from data.ragged import Ragged
from data.schema import ROLLOUT, conform
from relax_core.rollout.generated import Generated
from relax_core.rollout.requests import Progress, SampleRequest
from relax_core.rollout.sample import Status

START = "start_rollout_id"
"""Key of the metadata: the step that first stopped the group, slime's name for it."""


@dataclass(frozen=True, eq=False)
class Group:
    """The samples of one prompt.

    Attributes:
        group_id, group_index: its name, and its number over the whole run.
        requests: one a sample, in the order of their numbers.
        finished: ids of those that an earlier step finished.
        rows: of all samples, as an earlier step left them (schema ``ROLLOUT``); None: the group is new.
    """

    group_id: str
    group_index: int
    requests: tuple[SampleRequest, ...]
    finished: frozenset[str] = frozenset()
    rows: pa.Table | None = field(default=None, repr=False)

    @property
    def sample_ids(self) -> list[str]:
        """In the order of ``requests``."""
        return [request.sample_id for request in self.requests]


def new_groups(requests: Iterable[SampleRequest]) -> list[Group]:
    """Groups of requests that are for the first time, in their order."""
    found: dict[str, list[SampleRequest]] = {}
    for request in requests:
        found.setdefault(request.group_id, []).append(request)
    return [Group(name, members[0].group_index, tuple(members)) for name, members in found.items()]


def carried_groups(table: pa.Table) -> list[Group]:
    """The groups of a buffer, the oldest first.

    Args:
        table: rows of schema ``ROLLOUT``, as ``buffer_table`` made them; a group's are all there.
    """
    rows = conform(table.sort_by("index"), ROLLOUT)
    parts: dict[str, list[int]] = {}
    for place, name in enumerate(rows["group_id"].to_pylist()):
        parts.setdefault(name, []).append(place)
    groups = [_carried(name, rows.take(pa.array(places, pa.int64()))) for name, places in parts.items()]
    return sorted(groups, key=lambda group: group.group_index)


_OF_REQUESTS = ["sample_id", "group_id", "prompt_id", "prompt", "label", "metadata", "seed", "index", "group_index"]
_OF_PROGRESS = ["step", "status", "prompt_length", "response_length", "abort_count"]


def _carried(name: str, rows: pa.Table) -> Group:
    names = ("tokens", "rollout_log_probs", "token_versions", "loss_mask")
    tokens, *parts = (Ragged.from_arrow(rows[column]) for column in names)
    requests, finished = [], set()
    for k, row in enumerate(rows.select([*_OF_REQUESTS, *_OF_PROGRESS]).to_pylist()):
        metadata, length, progress = json.loads(row["metadata"]), row["prompt_length"], None
        if row["status"] != Status.ABORTED:
            finished.add(row["sample_id"])
        elif row["abort_count"] or row["response_length"]:
            log_probs, versions, mask = (part[k].copy() for part in parts)
            start = int(metadata.get(START, row["step"]))
            progress = Progress(tokens[k][length:].copy(), log_probs, versions, mask, row["abort_count"], start)
        # a function of the user's may have given the sample another prompt and label than the data
        prompt = Prompt(row["prompt_id"], row["prompt"], tokens[k][:length].copy(), row["label"], metadata)
        ids = row["sample_id"], row["group_id"]
        requests.append(SampleRequest(*ids, prompt, row["seed"], k, row["index"], row["group_index"], progress))
    return Group(name, requests[0].group_index, tuple(requests), frozenset(finished), rows)


def produced(groups: Iterable[Group]) -> dict[str, int]:
    """Tokens of responses that samples of carried groups had when the step began, by sample id."""
    lengths: dict[str, int] = {}
    for group in groups:
        if group.rows is not None:
            lengths |= zip(group.rows["sample_id"].to_pylist(), group.rows["response_length"].to_pylist(), strict=True)
    return lengths


def finished_rows(groups: Iterable[Group]) -> pa.Table:
    """Rows of those samples of carried groups that are finished."""
    parts = [
        group.rows.filter(pc.is_in(group.rows["sample_id"], pa.array(sorted(group.finished), pa.string())))
        for group in groups
        if group.rows is not None and group.finished
    ]
    return pa.concat_tables(parts) if parts else ROLLOUT.empty_table()


def trained_rows(rows: pa.Table, step: int, masked: Mapping[str, int]) -> pa.Table:
    """Rows as ``step`` trains on them.

    Args:
        rows: N rows of schema ``ROLLOUT``.
        step: they are of this step now, whichever began them.
        masked: sample id -> how many of its first tokens are not trained on, see ``produced``; others stay as they are.
    """
    rows = _with(rows, "step", pa.array(np.full(rows.num_rows, step, np.int32)))
    masks = Ragged.from_arrow(rows["loss_mask"])
    values = masks.values.copy()
    for row, name in enumerate(rows["sample_id"].to_pylist()):
        begin = masks.offsets[row]
        values[begin : begin + masked.get(name, 0)] = 0
    return _with(rows, "loss_mask", Ragged(values, masks.offsets).to_arrow()) if masked else rows


def stopped_rows(rows: pa.Table, step: int) -> pa.Table:
    """Rows of groups that ``step`` has stopped: it becomes ``metadata.start_rollout_id`` of those without one.

    Args:
        rows: of all their samples, schema ``ROLLOUT``.
    """
    texts = []
    for text in rows["metadata"].to_pylist():
        metadata = json.loads(text)
        texts.append(text if START in metadata else json.dumps({**metadata, START: step}, ensure_ascii=False))
    return _with(rows, "metadata", pa.array(texts, pa.string()))


def unbegun(request: SampleRequest) -> Generated:
    """The result of a request as if nothing of it had ever been generated."""
    count = 0 if request.progress is None else request.progress.abort_count
    nothing = np.empty(0, np.int32), np.empty(0, np.float32)
    again = replace(request, progress=None)
    return Generated(again, *nothing, Status.ABORTED, "abort", weight_versions=(), abort_count=count)


def buffer_table(parts: Sequence[pa.Table]) -> pa.Table | None:
    """The buffer that a step leaves; None: it is empty."""
    rows = pa.concat_tables([ROLLOUT.empty_table(), *parts])
    return conform(rows.sort_by("index").combine_chunks(), ROLLOUT) if rows.num_rows else None


def _with(rows: pa.Table, name: str, column: pa.Array) -> pa.Table:
    return rows.set_column(ROLLOUT.get_field_index(name), ROLLOUT.field(name), column)
