"""Where a run stands in its prompts.

Guarantee: the cursor and (rows, seed, shuffle) alone decide which rows come next, so a run that saved its cursor draws
the rows that the uninterrupted run would have drawn. Each epoch visits every row once, in an order of its own when
shuffled. A request larger than what is left wraps into as many epochs as it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.errors import UserError


@lru_cache(maxsize=4)
def epoch_order(rows: int, seed: int, epoch: int, shuffle: bool) -> NDArray[np.int64]:
    """[rows] int64, read-only: the row numbers in the order in which ``epoch`` visits them."""
    if shuffle:
        order = np.random.default_rng([seed, epoch]).permutation(rows)
    else:
        order = np.arange(rows, dtype=np.int64)
    order.flags.writeable = False
    return order


@dataclass(frozen=True)
class Cursor:
    """A position between two prompts.

    The end of an epoch is the start of the next one: after the last row of epoch 0 the cursor is
    ``(epoch=1, offset=0)``. So ``epoch`` is the number of finished passes and ``offset`` is below the number of rows.

    Args:
        epoch: finished passes over the rows.
        offset: rows taken in this epoch.
        groups: rows taken in all, i.e. the index of the next group.
    """

    epoch: int = 0
    offset: int = 0
    groups: int = 0

    def take(self, n: int, rows: int, seed: int, shuffle: bool) -> tuple[list[int], Cursor]:
        """The next ``n`` row numbers of a set of ``rows``, and the cursor behind them.

        Raises:
            UserError: no rows, a negative seed, or a cursor that lies outside the set (the data changed).
        """
        if n < 0:
            raise ValueError(f"n must not be negative, got {n}")
        if rows < 1:
            raise UserError("The prompt set has no rows.", "Check --prompt-data.")
        if seed < 0:
            raise UserError(f"--rollout-seed is {seed}, which is negative.", "Give a seed of 0 or more.")
        if self.offset >= rows:
            raise UserError(
                f"The run stopped after row {self.offset} of its epoch, but the prompt set has {rows} rows now.",
                "Give the run the data that it began with, or start a new run.",
            )
        taken: list[int] = []
        epoch, offset = self.epoch, self.offset
        while len(taken) < n:
            stop = min(rows, offset + n - len(taken))
            taken += epoch_order(rows, seed, epoch, shuffle)[offset:stop].tolist()
            epoch, offset = (epoch + 1, 0) if stop == rows else (epoch, stop)
        return taken, Cursor(epoch, offset, self.groups + n)

    def to_json(self) -> dict[str, int]:
        """As a JSON object."""
        return {"epoch": self.epoch, "offset": self.offset, "groups": self.groups}

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> Cursor:
        """From ``to_json()``'s object, whatever the order of its keys."""
        return cls(epoch=int(obj["epoch"]), offset=int(obj["offset"]), groups=int(obj["groups"]))
