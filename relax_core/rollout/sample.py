"""A sample, as the user's own functions see it.

Guarantee: tokens, loss mask, log-probs and versions stay in line when a response grows through ``append`` and
``append_context``; a sample made from a table has that table's values, and changing it changes no table.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from relax_core.rollout.requests import Progress
from relax_core.tracking.metrics import aligned


class Status(StrEnum):
    """How a response ended. Each equals its text, so that ``"completed"`` does as well."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


STATUS_OF = {"stop": Status.COMPLETED, "length": Status.TRUNCATED, "abort": Status.ABORTED}
"""SGLang's word for the end of a response -> status; any other is a failure."""


class Response(Protocol):
    """What an engine answers, as far as a sample takes it; R response tokens."""

    @property
    def output_ids(self) -> NDArray[np.int32]: ...  # [R]
    @property
    def log_probs(self) -> NDArray[np.float32]: ...  # [R]
    @property
    def finish_reason(self) -> dict[str, Any]: ...  # {"type": ...}


@dataclass
class Sample:
    """One prompt and the response to it; P prompt tokens and R response tokens.

    Attributes:
        sample_id, group_id: name it in tables and messages.
        index, group_index: number over the whole run, of the sample and of its group.
        prompt: rendered text.
        tokens: [P + R] prompt, then response.
        label: the row's label as a Python value; None without one.
        metadata: the row's metadata, a copy of this sample's own.
        response: text of the response.
        response_length: R.
        loss_mask: [R] 1: trained on; None: every token is.
        rollout_log_probs: [R] log-probs of the engine; of tokens that are not trained on, anything.
        teacher_log_probs: [R] of a teacher, for on-policy distillation; None: --opd-type says where they come from.
        status: how it ended.
        weight_versions: versions of the weights that made it, in order.
        token_versions: [R] version of the weights that made each token, -1: no engine did; None: not known.
        remove_sample: it counts in its group's statistics and is not trained on.
        abort_count: how often it was stopped and left to a later step.
        reward: its score; None: not scored.
        raw_reward: the score that metrics report.
    """

    Status: ClassVar[type[Status]] = Status

    sample_id: str
    group_id: str
    index: int
    group_index: int
    prompt: str
    tokens: list[int]
    label: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)
    response: str = ""
    response_length: int = 0
    loss_mask: list[int] | None = None
    rollout_log_probs: list[float] | None = None
    teacher_log_probs: list[float] | None = None
    status: str = Status.PENDING
    weight_versions: list[int] = field(default_factory=list)
    token_versions: list[int] | None = None
    remove_sample: bool = False
    abort_count: int = 0
    reward: float | None = None
    raw_reward: float | None = None

    @property
    def prompt_length(self) -> int:
        """P."""
        return len(self.tokens) - self.response_length

    def get_reward_value(self, args: Any) -> float | None:
        """``reward``, as functions written for slime ask for it."""
        return self.reward

    def append(self, response: Response) -> None:
        """Add what an engine generated: it is trained on, and says how the sample ends so far."""
        log_probs = [float(value) for value in response.log_probs]
        tokens = [int(token) for token in response.output_ids]
        versions = getattr(response, "token_versions", None)  # a response of the function's own has none
        self._append(tokens, log_probs, [-1] * len(tokens) if versions is None else map(int, versions), trained=1)
        self.status = STATUS_OF.get(str(response.finish_reason.get("type")), Status.FAILED)

    def append_context(self, tokens: Sequence[int]) -> None:
        """Add tokens that the model did not generate, e.g. the result of a tool: they are not trained on."""
        self._append([int(token) for token in tokens], [0.0] * len(tokens), [-1] * len(tokens), trained=0)

    def go_on(self, progress: Progress) -> None:
        """Take over what an earlier step made of the response."""
        self.tokens = [*self.tokens, *progress.output_ids.tolist()]
        self.response_length = len(progress.output_ids)
        self.loss_mask = progress.loss_mask.tolist()
        self.rollout_log_probs = progress.log_probs.tolist()
        self.token_versions = progress.token_versions.tolist()

    def _append(self, tokens: list[int], log_probs: list[float], versions: Iterable[int], trained: int) -> None:
        before = self.response_length
        mask = [1] * before if self.loss_mask is None else self.loss_mask
        known = [0.0] * before if self.rollout_log_probs is None else self.rollout_log_probs
        made_by = [-1] * before if self.token_versions is None else self.token_versions
        self.tokens = [*self.tokens, *tokens]
        self.token_versions = [*made_by, *versions]
        self.response_length = before + len(tokens)
        self.loss_mask = [*mask, *[trained] * len(tokens)]
        self.rollout_log_probs = [*known, *log_probs]


def samples_of(rollout: pa.Table, reward: pa.Table) -> list[Sample]:
    """The samples of a rollout and their scores.

    Args:
        rollout: N rows of schema ``ROLLOUT`` or ``EVAL``.
        reward: rows of schema ``REWARD`` or ``EVAL`` for the same samples, in any order.

    Returns:
        N samples in the order of ``rollout``.

    Raises:
        UserError: ``reward`` lacks a sample of ``rollout``.
    """
    own = ("sample_id", "group_id", "index", "group_index", "prompt", "tokens", "response", "response_length")
    more = (
        "loss_mask",
        "rollout_log_probs",
        "weight_versions",
        "remove_sample",
        "status",
        "label",
        "metadata",
        "abort_count",
    )
    late = [name for name in ("token_versions",) if name in rollout.column_names]  # tables of older versions lack it
    rows = rollout.select([*own, *more, *late]).to_pylist()
    scores = aligned(reward, rollout).select(["reward", "raw_reward"]).to_pylist()
    for row in rows:
        row["label"] = None if row["label"] is None else json.loads(row["label"])
        row["metadata"] = json.loads(row["metadata"])
        row["status"] = Status(row["status"])
    return [Sample(**row, **score) for row, score in zip(rows, scores, strict=True)]
