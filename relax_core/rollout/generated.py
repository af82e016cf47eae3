"""What a request gave.

Guarantee: tokens, log-probs, weight versions and loss mask of a result are in line.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from relax_core.rollout.pieces import NO_ENGINE, Merged
from relax_core.rollout.requests import Progress, SampleRequest


@dataclass(frozen=True, eq=False)
class Generated:
    """A request and its response of R tokens.

    Attributes:
        request: what was asked.
        output_ids: [R] int32.
        log_probs: [R] float32, log-probs of the sampled tokens as the engine computed them.
        status: ``completed``, ``truncated``, ``aborted`` or ``failed``.
        finish_reason: the engine's word, ``length`` for a response that had no room.
        weight_versions: versions of the weights that made it, in order; none for a response without tokens.
        cached_tokens: tokens sent to the engine that its prefix cache held.
        asked_tokens: tokens sent to the engine; None: those of the prompt.
        own: what a function of the user decided; None: nothing.
        token_versions: [R] int32, version of the weights that made each token, -1: no engine made it; None: the one
            of ``weight_versions``.
        loss_mask: [R] uint8, 1: trained on; None: ``own``'s, else every token is.
        abort_count: how often the response was ended and put back, this time included.
        interrupted: how often it stopped while weights changed, and went on.
    """

    request: SampleRequest
    output_ids: NDArray[np.int32]
    log_probs: NDArray[np.float32]
    status: str
    finish_reason: str
    weight_versions: tuple[int, ...]
    cached_tokens: int = 0
    asked_tokens: int | None = None
    own: "Own | None" = None
    token_versions: NDArray[np.int32] = None  # type: ignore[assignment]  # set below
    loss_mask: NDArray[np.uint8] = None  # type: ignore[assignment]
    abort_count: int = 0
    interrupted: int = 0

    def __post_init__(self) -> None:
        length = len(self.output_ids)
        if self.token_versions is None:
            if len(self.weight_versions) > 1:
                raise ValueError("several weight versions, and not which token is whose")
            version = self.weight_versions[0] if self.weight_versions else NO_ENGINE
            object.__setattr__(self, "token_versions", np.full(length, version, np.int32))
        if self.loss_mask is None:
            mask = np.ones(length, np.uint8) if self.own is None else self.own.loss_mask
            object.__setattr__(self, "loss_mask", mask)
        if not len(self.log_probs) == len(self.token_versions) == len(self.loss_mask) == length:
            raise ValueError("tokens, log-probs, weight versions and loss mask differ in length")

    def left_over(self, step: int) -> Progress:
        """What a later request goes on from.

        Args:
            step: the rollout step that this result is of: the one that began it, unless an earlier one did.
        """
        before = self.request.progress
        return Progress(
            self.output_ids,
            self.log_probs,
            self.token_versions,
            self.loss_mask,
            abort_count=self.abort_count,
            start_step=step if before is None else before.start_step,
        )


@dataclass(frozen=True, eq=False)
class Own:
    """What a function of the user says of its sample beside the response; R response tokens.

    Attributes:
        prompt_ids: [P] the prompt before the response.
        loss_mask: [R] uint8, 1: trained on.
        response: text of the response; None: the tokens', decoded.
        label: JSON text; None: no label.
        metadata: JSON text of an object.
        remove_sample: not trained on.
        teacher_log_probs: [R] float32; None: the function gives none.
    """

    prompt_ids: NDArray[np.int32]
    loss_mask: NDArray[np.uint8]
    response: str | None
    label: str | None
    metadata: str
    remove_sample: bool
    teacher_log_probs: NDArray[np.float32] | None = None


Ask: TypeAlias = Callable[[NDArray[np.int32], dict[str, Any]], Awaitable[Merged]]
"""Sends tokens and SGLang's sampling parameters to an engine, again where it was interrupted."""

Answer: TypeAlias = Callable[[SampleRequest, dict[str, Any], Ask], Awaitable[Generated]]
"""Makes the result of a request, out of its sampling parameters and a way to the engines."""
