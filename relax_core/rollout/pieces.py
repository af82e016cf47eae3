"""A response that is made in pieces: each is asked for with what the ones before it gave.

Guarantee: joined pieces hold every token once, in order, each with its log-prob and the version of the weights that
made it; the budget is that of the whole response, and the caller's parameters stay as they are. A stop string that
lies across a boundary ends the response at the token at which one piece would have ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from data.errors import Lost, UserError
from relax_core.rollout.sample import Response
from relax_core.weights.label import version_of

NO_ENGINE = -1
"""Version of a token that no engine made."""

UNSYNCED = "default"
"""What SGLang calls weights that nobody has named."""


class Completion(Response, Protocol):
    """What an engine answers, and what made it; R response tokens."""

    @property
    def weight_versions(self) -> tuple[str, ...]: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def spans(self) -> tuple[tuple[str, int, int], ...]: ...  # (version, first token, token after the last); or none


class StopTokenizer(Protocol):
    """The part of a Hugging Face tokenizer that finds stop strings."""

    def encode(self, text: str, **options: Any) -> list[int]: ...
    def decode(self, tokens: Sequence[int], **options: Any) -> str: ...


@dataclass(frozen=True, eq=False)
class Merged:
    """A response, of one completion or of several; R tokens.

    Attributes:
        output_ids: [R] int32.
        log_probs: [R] float32.
        token_versions: [R] int32, versions of the weights.
        weight_versions: the versions in order, each once.
        finish_reason: of the last piece.
        asked_tokens: tokens sent to engines, over all pieces.
        cached_tokens: those of them that prefix caches held.
        interrupted: how often it was ended for the gate and went on.
    """

    output_ids: NDArray[np.int32]
    log_probs: NDArray[np.float32]
    token_versions: NDArray[np.int32]
    weight_versions: tuple[int, ...]
    finish_reason: dict[str, Any]
    asked_tokens: int = 0
    cached_tokens: int = 0
    interrupted: int = 0


def stop_across(
    stop: Sequence[str], tokenizer: StopTokenizer, before: NDArray[np.int32], after: NDArray[np.int32]
) -> tuple[int, str] | None:
    """Where a stop string that begins in ``before`` ends in ``after``, by the rule of SGLang's ``Req.tail_str``: a
    response ends with the token that makes a stop string appear in the text of its last tokens, of which it takes one
    more than the longest stop string has.

    Returns:
        Tokens of ``after`` up to the end of the stop string, and that; None where none lies across.
    """
    window = max(len(tokenizer.encode(one, add_special_tokens=False)) for one in stop) + 1
    head, tail = before[-window:].tolist(), after[: window - 1].tolist()  # later windows lie in ``after`` as a whole
    for end in range(1, len(tail) + 1):
        text = tokenizer.decode([*head, *tail[:end]][-window:])
        for one in stop:
            if one in text:
                return end, one
    return None


class Pieces:
    """Joins completions.

    Args:
        sample_id: how errors call the sample.
        params: SGLang's sampling parameters, with the budget of all pieces together.
        tokenizer: finds the stop strings of ``params``; None: an engine alone finds them, in each piece by itself.
        before: [D] tokens that the response has already and that are no part of the result.
    """

    def __init__(
        self,
        sample_id: str,
        params: dict[str, Any],
        tokenizer: StopTokenizer | None = None,
        before: NDArray[np.int32] | None = None,
    ) -> None:
        self._sample_id, self._params, self._tokenizer = sample_id, params, tokenizer
        self._before = np.empty(0, np.int32) if before is None else before
        self._outputs: list[NDArray[np.int32]] = []
        self._log_probs: list[NDArray[np.float32]] = []
        self._versions: list[NDArray[np.int32]] = []
        self._reason: dict[str, Any] = {"type": "abort"}
        self._asked = self._cached = 0
        self.length = 0
        self.interrupted = 0

    def tokens(self, prompt: NDArray[np.int32]) -> NDArray[np.int32]:
        """``prompt`` and all tokens so far: what the next piece is asked with."""
        return np.concatenate([np.asarray(prompt, np.int32), *self._outputs]) if self._outputs else prompt

    def params(self) -> dict[str, Any]:
        """The parameters of the next piece: a new dict, with what is left of the budget."""
        return reduced(self._params, self.length)

    @property
    def full(self) -> bool:
        """Whether nothing is left of the budget."""
        budget = self._params.get("max_new_tokens")
        return budget is not None and self.length >= budget

    def add(self, completion: Completion, asked: int) -> str:
        """The next piece, and why it ended.

        Args:
            completion: what the engine answered.
            asked: tokens that it was asked with.

        Raises:
            UserError: it does not fit itself, or was made by weights of another run.
        """
        output_ids, log_probs = _tokens(completion, self._sample_id)
        versions = _versions(completion, len(output_ids), self._sample_id)
        self._reason = dict(completion.finish_reason)
        found = self._stop_across(output_ids)
        if found is not None:
            end, text = found
            output_ids, log_probs, versions = output_ids[:end], log_probs[:end], versions[:end]
            self._reason = {"type": "stop", "matched": text}
        self._outputs.append(output_ids)
        self._log_probs.append(log_probs)
        self._versions.append(versions)
        self.length += len(output_ids)
        self._asked += asked
        self._cached += int(completion.cached_tokens)
        return str(self._reason.get("type"))

    def _stop_across(self, output_ids: NDArray[np.int32]) -> tuple[int, str] | None:
        stop = self._params.get("stop")
        if not stop or self._tokenizer is None or not len(self._before) + self.length:
            return None
        strings = [stop] if isinstance(stop, str) else stop
        return stop_across(strings, self._tokenizer, np.concatenate([self._before, *self._outputs]), output_ids)

    def merged(self, reason: str | None = None) -> Merged:
        """All pieces as one.

        Args:
            reason: why it ended; None: for the reason of the last piece.
        """
        versions = _joined(self._versions, np.int32)
        return Merged(
            _joined(self._outputs, np.int32),
            _joined(self._log_probs, np.float32),
            versions,
            in_order(versions),
            self._reason if reason is None else {"type": reason},
            self._asked,
            self._cached,
            self.interrupted,
        )


def in_order(values: NDArray[np.int32]) -> tuple[int, ...]:
    """The different values of [R], each once, in the order in which they come."""
    begins = np.flatnonzero(values[1:] != values[:-1]) + 1  # of runs: there are few
    return tuple(dict.fromkeys(values[[0, *begins]].tolist())) if len(values) else ()


def reduced(params: dict[str, Any], produced: int) -> dict[str, Any]:
    """SGLang's sampling parameters after ``produced`` tokens of the response: a new dict, with smaller
    ``max_new_tokens`` and ``min_new_tokens`` where it has them."""
    result = dict(params)
    if params.get("max_new_tokens") is not None:
        result["max_new_tokens"] = params["max_new_tokens"] - produced
    if params.get("min_new_tokens"):
        result["min_new_tokens"] = max(0, params["min_new_tokens"] - produced)
    return result


def _joined(parts: list[NDArray[Any]], kind: type) -> NDArray[Any]:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, kind)


def _tokens(completion: Completion, sample_id: str) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """[R] tokens and [R] log-probs."""
    output_ids = np.asarray(completion.output_ids, np.int32)
    log_probs = np.asarray(completion.log_probs, np.float32)
    if output_ids.shape != log_probs.shape:
        raise UserError(
            f"The engine answered sample {sample_id} with {len(output_ids)} tokens and {len(log_probs)} log-probs.",
            "This is a fault of the engine: see its log.",
        )
    return output_ids, log_probs


def _versions(completion: Completion, length: int, sample_id: str) -> NDArray[np.int32]:
    """[R] versions of the weights; a completion without tokens (ended while it was queued) was made by none."""
    if not length:
        return np.empty(0, np.int32)
    labels = tuple(completion.weight_versions)
    spans = tuple(completion.spans) or (((labels[0], 0, length),) if len(labels) == 1 else ())
    versions = [version for label, *_ in spans if (version := version_of(label)) is not None]
    if len(versions) < len(spans) or None in map(version_of, labels):
        unsynced = set(labels) == {UNSYNCED}  # one that was just replaced, and whose weights are still on their way
        raise (Lost if unsynced else UserError)(
            f"The engine answered sample {sample_id} with the weight versions "
            f"{', '.join(map(repr, labels))}, which are no numbers.",
            "Weights must come from this run: let it sync them, or start the engine with --weight-version 0.",
        )
    result = np.full(length, NO_ENGINE, np.int32)
    for version, (_, start, end) in zip(versions, spans, strict=True):
        result[start:end] = version
    if (result == NO_ENGINE).any():
        raise UserError(
            f"The engine answered sample {sample_id} with {length} tokens, but says of some not which weights made "
            "them.",
            "This is a fault of the engine: see its log.",
        )
    return result
