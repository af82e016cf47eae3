"""Rows of a rollout as reward functions get them, and how two of them are told apart.

Guarantee: a sample that was aborted or failed has no route and is never called; two calls with the same ``content_key``
give a function the same samples.
"""

import hashlib
import json
from collections.abc import Iterable
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow as pa

from data.ragged import Ragged
from relax_core.rewards.calls import Call
from relax_core.rewards.router import Route, Router
from relax_core.rewards.types import RewardInput, RewardSpec

_COLUMNS = ["sample_id", "group_id", "prompt", "response", "label", "metadata", "response_length", "status"]
_NUMBERS = ["index", "group_index"]
_SCORED = ("completed", "truncated")


class Row(NamedTuple):
    """A sample, and the group that it belongs to."""

    sample: RewardInput
    group_id: str


def rows_of(rollout: pa.Table, custom: RewardSpec | None) -> list[Row]:
    """The samples of a rollout, each with metadata of its own.

    Args:
        rollout: N rows of schema ``ROLLOUT`` or ``EVAL``.
        custom: the user's function; only those of slime's convention get tokens.
    """
    rows = rollout.select(_COLUMNS).to_pylist()
    numbers = {name: rollout[name].to_pylist() if name in rollout.column_names else repeat(-1) for name in _NUMBERS}
    tokens: Iterable[Any] = repeat(None)
    if custom is not None and custom.convention == "slime":
        tokens = Ragged.from_arrow(rollout["tokens"])
    return [
        Row(
            RewardInput(
                sample_id=row["sample_id"],
                prompt=row["prompt"],
                response=row["response"],
                label=None if row["label"] is None else json.loads(row["label"]),
                metadata=json.loads(row["metadata"]),
                response_length=row["response_length"],
                status=row["status"],
                index=index,
                group_index=group_index,
                tokens=ids,
            ),
            row["group_id"],
        )
        for row, index, group_index, ids in zip(rows, *numbers.values(), tokens, strict=False)
    ]


def route_of(row: Row, custom: RewardSpec | None, router: Router) -> Route | None:
    """Which reward scores a sample; None: it was aborted or failed.

    Raises:
        UserError: as ``Router.route``.
    """
    sample = row.sample
    if sample.status not in _SCORED:
        return None
    return Route(custom, "custom") if custom else router.route(sample.sample_id, sample.metadata, sample.label)


def content_key(call: Call) -> bytes:
    """SHA-256 over all that a call gives its function; take it before the call, which may change metadata."""
    samples = [
        (s.sample_id, s.prompt, s.response, s.label, s.metadata, s.response_length, s.status, s.index, s.group_index)
        for s in call.samples
    ]
    content = hashlib.sha256(json.dumps([call.spec.name, call.group_id, samples]).encode())
    for sample in call.samples:
        if sample.tokens is not None:
            content.update(f"\0{len(sample.tokens)}\0".encode() + sample.tokens.tobytes())
    return content.digest()
