"""The rows of a batch table as tensors, and the micro-batches cut from them.

Guarantee: columns go from Parquet to flat tensors without a Python list of tokens; the same table gives the same
tensors on every rank. A response token is scored from the position before it, so a sample's last token is no input.

Shapes: N samples; T tokens of all samples; R response tokens of all samples, in the order of the table ("flat").
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.errors import UserError
from data.ragged import Ragged
from data.schema import FORWARD_COLUMNS

INPUTS = ["sample_id", "group_id", "tokens", "response_length", "loss_mask", "rollout_log_probs"]
"""Columns that a rollout's table has as well as a batch's: all that a pass without gradient needs."""

_OPTIONAL = ("advantages", "returns")


@dataclass(frozen=True)
class TrainingBatch:
    """A rollout step's samples, in the order of the table.

    Args:
        sample_ids, group_ids: N names.
        tokens: int32, prompt and response of each sample.
        response_offsets: int64 [N + 1], where a sample's response tokens begin in the flat tensors.
        mask: bool [R], the token is trained on.
        rollout_log_probs, advantages, returns: float32 [R]; the last two are 0 where the table has none.
        stored: float32 [R] of each column of ``FORWARD_COLUMNS`` that the table has.
    """

    sample_ids: list[str]
    group_ids: list[str]
    tokens: Ragged
    response_offsets: NDArray[np.int64]
    mask: Tensor
    rollout_log_probs: Tensor
    advantages: Tensor
    returns: Tensor
    stored: Mapping[str, Tensor]

    @classmethod
    def from_table(cls, table: pa.Table) -> "TrainingBatch":
        """The columns of a batch table, or of a rollout's.

        Raises:
            UserError: an empty table, or a sample whose lengths do not fit each other (which sample, which column).
        """
        if table.num_rows == 0:
            raise UserError("The batch has no samples.", "Look at why the step's rollout lost all of them.")
        ids = table["sample_id"].to_pylist()
        tokens = Ragged.from_arrow(table["tokens"])
        lengths = table["response_length"].to_numpy().astype(np.int64)
        given = [name for name in (*_OPTIONAL, *FORWARD_COLUMNS) if name in table.column_names]
        given = [name for name in given if table[name].null_count < len(ids)]  # null throughout: not there
        for name in given:
            _require(~_numpy(table[name].is_null()), ids, f"{name} is missing, and other samples have it")
        columns = {name: Ragged.from_arrow(table[name]) for name in ("loss_mask", "rollout_log_probs", *given)}
        for name, column in columns.items():
            _require(column.lengths == lengths, ids, f"{name} has another length than response_length")
        _require(tokens.lengths > lengths, ids, "tokens has no prompt before the response")
        numbers = {
            name: torch.from_numpy(column.values.astype(np.float32))
            for name, column in columns.items()
            if name != "loss_mask"
        }
        zeros = torch.zeros(int(lengths.sum()))
        return cls(
            sample_ids=ids,
            group_ids=table["group_id"].to_pylist(),
            tokens=tokens,
            response_offsets=columns["loss_mask"].offsets,
            mask=torch.from_numpy(columns["loss_mask"].values != 0),
            rollout_log_probs=numbers["rollout_log_probs"],
            advantages=numbers.get("advantages", zeros),
            returns=numbers.get("returns", zeros),
            stored={name: numbers[name] for name in FORWARD_COLUMNS if name in numbers},
        )

    def __len__(self) -> int:
        return len(self.sample_ids)

    @property
    def num_response_tokens(self) -> int:
        """R."""
        return int(self.response_offsets[-1])

    @property
    def response_lengths(self) -> NDArray[np.int64]:
        """[N]"""
        return np.diff(self.response_offsets)

    def fingerprint(self) -> str:
        """Of all that a loss reads, bit by bit, however the table was cut into chunks."""
        numbers = {
            "loss_mask": self.mask,
            "rollout_log_probs": self.rollout_log_probs,
            "advantages": self.advantages,
            "returns": self.returns,
            **self.stored,
        }
        columns = {"tokens": self.tokens.values, "ends": self.tokens.offsets, "responses": self.response_offsets}
        columns |= {name: column.numpy() for name, column in numbers.items()}
        digest = hashlib.sha256(json.dumps([self.sample_ids, self.group_ids]).encode())
        for name, column in columns.items():
            digest.update(f"{name} {column.dtype} {len(column)}\n".encode())
            digest.update(np.ascontiguousarray(column).data)
        return digest.hexdigest()

    def has_signal(self) -> NDArray[np.bool_]:
        """[N] whether a token of the sample is trained on with an advantage that is not 0."""
        tokens = (self.mask & (self.advantages != 0)).numpy()
        counts = np.concatenate([[0], np.cumsum(tokens)])[self.response_offsets]
        return np.diff(counts) > 0  # type: ignore[no-any-return]

    def micro_batch(self, samples: Sequence[int], device: torch.device) -> "MicroBatch":
        """The samples packed one behind the other; without samples a dummy of one token that nothing is scored of."""
        if not samples:
            empty = torch.zeros(0, dtype=torch.int64)
            nothing = empty.to(device)
            one = torch.zeros(1, dtype=torch.int64, device=device)
            return MicroBatch(one, [1], nothing, nothing, empty, nothing, one, total_lengths=[], samples=[])
        chosen = np.asarray(samples, dtype=np.int64)
        starts, lengths = self.tokens.offsets[chosen], self.tokens.lengths[chosen]
        first, responses = self.response_offsets[chosen], np.diff(self.response_offsets)[chosen]
        prompts = lengths - responses
        inputs = np.maximum(lengths - 1, 1)  # the last token predicts nothing
        packed = np.cumsum(inputs) - inputs

        def place(numbers: NDArray[np.int64]) -> Tensor:
            return to_device(torch.from_numpy(numbers), device)

        return MicroBatch(
            tokens=place(self.tokens.values[_ranges(starts, inputs)].astype(np.int64)),
            lengths=inputs.tolist(),
            rows=place(_ranges(packed + prompts - 1, responses)),
            targets=place(self.tokens.values[_ranges(starts + prompts, responses)].astype(np.int64)),
            flat=torch.from_numpy(flat := _ranges(first, responses)),
            places=place(flat),
            response_offsets=place(np.append(0, np.cumsum(responses))),
            total_lengths=lengths.tolist(),
            samples=chosen.tolist(),
        )


@dataclass(frozen=True)
class MicroBatch:
    """Packed sequences and what is scored of them.

    Args:
        tokens: int64 [t], inputs of all sequences.
        lengths: inputs of each sequence.
        rows: int64 [r], positions in ``tokens`` whose next token is a response token.
        targets: int64 [r], those next tokens.
        flat: int64 [r] on the CPU, their places in the batch's flat tensors.
        places: the same on the device.
        response_offsets: int64 [n + 1], where each of the n samples' response tokens begin among the r.
        total_lengths: tokens of each sample with its prompt.
        samples: numbers of the samples in the batch.
    """

    tokens: Tensor
    lengths: list[int]
    rows: Tensor
    targets: Tensor
    flat: Tensor
    places: Tensor
    response_offsets: Tensor
    total_lengths: list[int]
    samples: list[int]


class Columns:
    """Flat columns [R] of a batch, which go to a device as a whole when they are first wanted there.

    Args:
        columns: on the CPU; None where there is no such column.
    """

    def __init__(self, **columns: Tensor | None) -> None:
        self._on: dict[torch.device, dict[str, Tensor | None]] = {torch.device("cpu"): columns}

    def take(self, name: str, places: Tensor) -> Tensor:
        """[r] of a column that there is, at these places and on their device."""
        found = self.find(name, places)
        assert found is not None
        return found

    def find(self, name: str, places: Tensor) -> Tensor | None:
        """As ``take``; None where there is no such column."""
        device = places.device
        if device not in self._on:
            here = self._on[torch.device("cpu")].items()
            self._on[device] = {key: None if column is None else to_device(column, device) for key, column in here}
        column = self._on[device][name]
        return None if column is None else column[places]


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """A copy there, for which the host does not wait: from ordinary memory it would, until the GPU comes to it."""
    if device.type != "cuda":
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def _ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """``starts[i], starts[i] + 1, ...`` (``lengths[i]`` numbers) for every i, joined."""
    ends = np.cumsum(lengths)
    return np.arange(int(ends[-1]), dtype=np.int64) + np.repeat(starts - (ends - lengths), lengths)


def _numpy(column: pa.ChunkedArray) -> NDArray[np.bool_]:
    return column.to_numpy()  # type: ignore[no-any-return]


def _require(holds: NDArray[np.bool_], ids: list[str], problem: str) -> None:
    if not holds.all():
        wrong = int(np.argmin(holds))
        raise UserError(f"Sample {ids[wrong]} (row {wrong}) of the batch: {problem}.", "Make the batch anew.")
