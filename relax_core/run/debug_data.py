"""Debugging data: copies of a step's samples for other programs, and recorded samples in place of generated ones.

Guarantee: what is written is a table, ``.parquet``, unless the path ends in ``.pt`` or ``.pth``: such a file holds
plain Python values only, in PyTorch's format, ``{"rollout_id", "samples"}`` as slime has them. Either is read, whatever
it is called; a file that would run code when it is loaded is refused. Paths may be fsspec URLs. A file is whole or
absent.
"""

import hashlib
import io
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from data.errors import UserError
from data.files import FileStore
from data.schema import EVAL, REWARD, ROLLOUT, conform, part
from data.schema import table as schema_table
from data.store import RunStore
from relax_core.config.sections import RelaxConfig
from relax_core.run.records import StageRecord
from relax_core.run.samples import (
    Sample,
    batch_samples,
    reward_table_of,
    rollout_samples,
    rollout_table_of,
    subsample,
)
from relax_core.run.session import RunSession
from relax_core.tracking.metrics import aligned

_GIVE = "Give one that --save-debug-rollout-data wrote, or a rollout.parquet."
_TABLE, _TORCH, _MAGIC = ".parquet", (".pt", ".pth"), b"PAR1"


class _RolloutId(int):
    """A rollout's number as it stands in a path: with a word before it for an evaluation."""

    prefix = ""

    def __format__(self, spec: str) -> str:
        return self.prefix + format(int(self), spec)


def place(template: str, step: int, prefix: str = "") -> str:
    """A path with ``{rollout_id}`` and ``{rank}`` filled in; what is trained on is the same for all ranks: rank 0."""
    number = _RolloutId(step)
    number.prefix = prefix
    return template.format(rollout_id=number, rank=0)


def saved_place(template: str, step: int, prefix: str = "") -> str:
    """``place`` of a copy: ``.parquet`` is added where the path does not say what the file is."""
    return _with_ending(place(template, step, prefix))


def _with_ending(path: str) -> str:
    return path if path.endswith((_TABLE, *_TORCH)) else f"{path}{_TABLE}"


def check_recorded(run: RunSession) -> None:
    """Make sure that a run on recorded samples has those of its next step and of its last one.

    Raises:
        UserError: the file that is missing.
    """
    if run.mode == "train":
        for step in (run.next_step(), run.total_steps - 1):
            _require(recorded_path(run.config, step))


def save_debug_data(
    run: RunSession, step: int, rollout: StageRecord, rewards: StageRecord, batch: StageRecord | None
) -> None:
    """Write what --save-debug-rollout-data, --save-debug-train-data and --dump-details ask for, if they do.

    Args:
        batch: None where the step has none.

    Raises:
        UserError: a place that cannot be written.
    """
    debug, read = run.config.debug, run.store.read_table
    if debug.save_debug_rollout_data:
        path, tables = saved_place(debug.save_debug_rollout_data, step), (read(rollout.table), read(rewards.table))
        if _is_table(path):
            _write_table(path, _scored(*tables))
        else:
            write_samples(path, {"rollout_id": step, "samples": rollout_samples(*tables)})
    if debug.save_debug_train_data and batch is not None:
        path, table = saved_place(debug.save_debug_train_data, step), read(batch.table)
        if _is_table(path):
            _write_table(path, table)
        else:
            write_samples(path, {"rollout_id": step, "rank": 0, "samples": batch_samples(table)})
    if debug.dump_details:  # which has set the two paths
        _save_tokenizer(run, debug.dump_details)


def save_debug_evaluation(run: RunSession, step: int, tables: Mapping[str, pa.Table], prefix: str) -> None:
    """Write the samples of an evaluation, by set, where those of rollouts go, if they do: ``<prefix><step>``."""
    template = run.config.debug.save_debug_rollout_data
    if template and _is_table(path := saved_place(template, step, prefix)):
        if tables:
            _write_table(path, pa.concat_tables([conform(table, EVAL) for table in tables.values()]))
    elif template:
        samples = [
            {**sample, "eval_set": name} for name, table in tables.items() for sample in rollout_samples(table, table)
        ]
        write_samples(path, {"rollout_id": step, "samples": samples})


def _is_table(path: str) -> bool:
    return path.endswith(_TABLE)


def _write_table(path: str, table: pa.Table) -> None:
    store, name = _split(path)
    store.write_table(name, table)


def _scored(rollout: pa.Table, reward: pa.Table) -> pa.Table:
    """Samples and scores side by side: schema ``EVAL``."""
    scores, rollout = conform(aligned(reward, rollout), REWARD), part(rollout, ROLLOUT)
    columns = {name: (rollout if name in ROLLOUT.names else scores)[name] for name in EVAL.names}
    return schema_table(EVAL, columns)


def write_samples(path: str, content: Mapping[str, Any]) -> None:
    """Write a file that ``torch.load`` reads."""
    import torch  # here: few runs need it

    buffer = io.BytesIO()
    torch.save(dict(content), buffer)
    store, name = _split(path)
    store.write_bytes(name, buffer.getbuffer())


def _save_tokenizer(run: RunSession, folder: str) -> None:
    store = FileStore(folder)
    if store.exists("tokenizer"):
        return
    with tempfile.TemporaryDirectory() as temporary:
        run.tokenizer.save_pretrained(temporary)
        for file in sorted(Path(temporary).iterdir()):
            store.write_bytes(f"tokenizer/{file.name}", file.read_bytes())


@dataclass(frozen=True)
class Recorded:
    """The recorded rollout of a step.

    Attributes:
        rollout: schema ``ROLLOUT``.
        reward: schema ``REWARD``; None when the file holds no scores.
    """

    rollout: pa.Table
    reward: pa.Table | None


def recorded_path(config: RelaxConfig, step: int) -> str:
    """Where the recorded rollout of a step is: as --save-debug-rollout-data, ``.parquet`` may be left out."""
    path = place(str(config.debug.load_debug_rollout_data), step)
    written = _with_ending(path)
    return written if written != path and not _exists(path) and _exists(written) else path


def recorded_hash(config: RelaxConfig, step: int) -> str:
    """SHA-256 of the file of a step.

    Raises:
        UserError: it is missing.
    """
    return hashlib.sha256(_read(recorded_path(config, step))).hexdigest()


def read_recorded(config: RelaxConfig, step: int) -> Recorded:
    """The recorded rollout of a step: samples that were saved with ``torch.save``, or a table as ``rollout.parquet``.

    Raises:
        UserError: the file is missing or damaged, or holds something else.
    """
    path, share = recorded_path(config, step), config.debug.load_debug_rollout_data_subsample
    content, group_size = _read(path), config.rollout.n_samples_per_prompt
    if content.startswith(_MAGIC) or _is_table(path):
        table, reward = _tables(path)
        if share is not None:
            kept = subsample(table.select(["sample_id", "group_id"]).to_pylist(), share, group_size)
            chosen = pa.array([sample["sample_id"] for sample in kept], pa.string())
            table = table.take(pc.index_in(chosen, value_set=table["sample_id"].combine_chunks()))
        return Recorded(table, None if reward is None else aligned(reward, table))
    loaded = _samples(content, path)
    if share is not None:
        loaded = subsample(loaded, share, group_size)
    rollout = rollout_table_of(loaded, step, group_size)
    return Recorded(rollout, reward_table_of(loaded, rollout, config.reward.reward_key))


def _tables(path: str) -> tuple[pa.Table, pa.Table | None]:
    """Samples, and their scores if the file has them."""
    store, name = _split(path)
    try:
        table = store.read_table(name)
        reward = part(table, REWARD) if "reward" in table.column_names else None
        return part(table, ROLLOUT) if reward is not None else conform(table, ROLLOUT), reward
    except UserError as error:
        raise UserError(
            f"--load-debug-rollout-data: {path} is no table of recorded samples: {error.problem}", _GIVE, error.details
        ) from error


def _samples(content: bytes, path: str) -> Sequence[Sample]:
    import torch  # here: few runs need it

    try:
        with torch.serialization.safe_globals(_numpy_values()):
            loaded = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # what is no such file fails in many ways
        raise UserError(
            f"--load-debug-rollout-data: {path} is no file of plain values that torch.save wrote; none of it was run.",
            f"{_GIVE} Where you trust the file, write its samples anew as dictionaries of plain values.",
            f"{type(error).__name__}: {error}".splitlines()[0],
        ) from error
    samples = loaded.get("samples") if isinstance(loaded, dict) else None
    if not isinstance(samples, list) or not samples or not all(isinstance(sample, dict) for sample in samples):
        raise UserError(
            f"--load-debug-rollout-data: {path} holds no list of samples under 'samples'.",
            _GIVE,
        )
    return [dict(_values(sample)) for sample in samples]


def _numpy_values() -> list[Any]:
    """What NumPy's numbers and arrays are pickled with, as scores often are: it makes values and runs nothing else."""
    made_by = {name: getattr(np._core.multiarray, name) for name in ("scalar", "_reconstruct")}  # type: ignore[attr-defined]
    made = [
        (function, f"numpy.{module}.multiarray.{name}")  # NumPy 1 and 2
        for name, function in made_by.items()
        for module in ("core", "_core")
    ]
    kinds = [type(np.dtype(code)) for code in "?bBhHiIlLqQefdU"]
    return [*made, np.ndarray, np.dtype, *kinds]


def _values(sample: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in sample.items():
        yield str(name), _plain(value)


def _plain(value: Any) -> Any:
    """Tensors and NumPy's values as lists and numbers, at any depth."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value


def _exists(path: str) -> bool:
    store, name = _split(path)
    return store.exists(name)


def _require(path: str) -> None:
    if not _exists(path):
        raise UserError(f"--load-debug-rollout-data: {path} is missing.", "Correct the path, or --num-rollout.")


def _read(path: str) -> bytes:
    _require(path)
    store, name = _split(path)
    return store.read_bytes(name)


def _split(path: str) -> tuple[RunStore, str]:
    folder, _, name = path.rpartition("/")
    return RunStore(folder or ("/" if path.startswith("/") else ".")), name
