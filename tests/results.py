"""Requests and results of a rollout step, without engines."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from data.prompts import Prompt
from relax_core.rollout.generated import Generated
from relax_core.rollout.generation import joined
from relax_core.rollout.pieces import Merged
from relax_core.rollout.requests import SampleRequest, group_requests
from relax_core.rollout.table import rollout_table

STEP = 5


class Words:
    """Decodes a token as its number."""

    def batch_decode(self, sequences: Any, **options: Any) -> list[str]:
        return [" ".join(map(str, tokens)) for tokens in sequences]


def requests(groups: int = 2, samples: int = 2, step: int = STEP) -> list[SampleRequest]:
    prompts = [
        Prompt(f"{row:08d}", f"p{row}", np.array([row, row], np.int32), f'"{row}"', {"n": row}) for row in range(groups)
    ]
    return group_requests(prompts, prefix=f"{step:06d}", samples=samples, run_seed=42, step=step, first_group=10)


def made(request: SampleRequest, tokens: list[int], status: str = "completed", version: int = STEP) -> Generated:
    """A result with these new tokens."""
    count, reason = len(tokens), {"completed": "stop", "aborted": "abort"}[status]
    merged = Merged(
        np.array(tokens, np.int32),
        np.arange(-1.0, -1 - count, -1.0, dtype=np.float32),
        np.full(count, version, np.int32),
        (version,) if count else (),
        {"type": reason},
    )
    before = 0 if request.progress is None else request.progress.abort_count
    return replace(joined(request, merged), abort_count=before + (status == "aborted"))


def rows(*results: Generated, step: int = STEP) -> pa.Table:
    return rollout_table(results, step=step, version=None, tokenizer=Words())
