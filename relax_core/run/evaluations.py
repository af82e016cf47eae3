"""Evaluations of a run's weights: ``<run>/evaluations/<version>/<set>.parquet`` and ``metrics.json``.

Guarantee: an evaluation is found again by what decides its scores (weights, prompts, options, the source of functions)
and only while its tables are as it wrote them; its key is that of the stage ``evaluate`` of the run itself, whose work
counts too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from data.prompts import PromptDataset
from data.store import RunStore, TableRef
from relax_core.config import RelaxConfig, options_hash, stage_options
from relax_core.config.eval_set import EvalSet
from relax_core.rollout.evaluate import evaluation_source
from relax_core.run.records import StageRecord, StageRecords, fingerprint

FOLDER = "evaluations"

Sets = Sequence[tuple[EvalSet, PromptDataset]]


def evaluation_inputs(weights_id: str, sets: Sets, config: RelaxConfig) -> dict[str, Any]:
    """What decides an evaluation's scores beside options."""
    return {
        "weights": weights_id,
        "prompts": {eval_set.name: prompts.fingerprint for eval_set, prompts in sets},
        "source": evaluation_source((eval_set for eval_set, _ in sets), config),
    }


def evaluation_key(version: int, weights_id: str, sets: Sets, config: RelaxConfig) -> str:
    """Identity of the evaluation of a version."""
    options = options_hash(stage_options(config, "evaluate"))
    inputs = evaluation_inputs(weights_id, sets, config)
    return fingerprint({"stage": "evaluate", "step": version - 1, "options": options, "inputs": inputs})


class Evaluations:
    """The evaluations of one run."""

    def __init__(self, store: RunStore) -> None:
        self._store = store

    def folder(self, version: int) -> str:
        """Of a version, below the run directory."""
        return f"{FOLDER}/{version:06d}"

    def known(self, version: int, key: str) -> StageRecord | None:
        """This very evaluation, if it was made, by the run itself in step ``version - 1`` too: its ``metrics`` and
        tables."""
        found = StageRecords(self._store).find(version - 1, "evaluate", key) if version else None
        return found or self._record(version, key)

    def write_table(self, version: int, name: str, table: pa.Table) -> TableRef:
        """Samples and scores of a set."""
        return self._store.write_table(f"{self.folder(version)}/{name}.parquet", table)

    def finish(
        self, version: int, key: str, tables: Mapping[str, TableRef], metrics: Mapping[str, float]
    ) -> StageRecord:
        """Make an evaluation known, and the newest of its version."""
        record = StageRecord("evaluate", key, dict(tables), {"metrics": dict(metrics)})
        self._store.write_json(f"{self.folder(version)}/{key}.json", record.to_json())
        self._store.write_json(f"{self.folder(version)}/metrics.json", {"version": version, "key": key, **metrics})
        return record

    def _record(self, version: int, key: str) -> StageRecord | None:
        row = self._store.read_json(f"{self.folder(version)}/{key}.json")
        try:
            record = StageRecord.from_json(row) if isinstance(row, dict) else None
        except (KeyError, TypeError, ValueError):
            return None
        return record if record and all(map(self._store.valid, record.tables.values())) else None
