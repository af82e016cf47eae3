"""Stores of every kind for the tests of the data package."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings

from data.ragged import Ragged
from data.schema import BATCH, table
from data.store import RunStore

settings.register_profile("no-deadline", deadline=None)  # the first example pays for imports, on a machine under load
settings.load_profile("no-deadline")


@pytest.fixture(params=["local", "file", "memory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> RunStore:
    """An empty run directory on each kind of file system."""
    name = uuid.uuid4().hex
    if request.param == "s3":
        request.getfixturevalue("s3_endpoint")
        return RunStore(f"s3://runs/{name}")
    urls = {"local": os.fspath(tmp_path / name), "file": f"file://{tmp_path}/{name}", "memory": f"memory://{name}/run"}
    return RunStore(urls[request.param])


@pytest.fixture
def batch() -> pa.Table:
    """Three samples of a batch table."""
    response = Ragged.from_list([[1.0], [2.0, 3.0], []], np.float32)
    return table(
        BATCH,
        {
            "sample_id": ["000000-0000-000", "000000-0000-001", "000000-0001-000"],
            "group_id": ["000000-0000", "000000-0000", "000000-0001"],
            "tokens": Ragged.from_list([[5, 6], [5, 6, 7], [8]], np.int32),
            "response_length": np.array([1, 2, 0], np.int32),
            "loss_mask": Ragged.from_list([[1], [1, 0], []], np.uint8),
            "rollout_log_probs": response,
            "advantages": response,
            "returns": response,
            "reward": [1.0, None, 0.0],
        },
    )
