"""Generation of single samples by a function of the user: ``--custom-generate-function-path``.

    async def generate(args, sample, sampling_params):
        engine = relax_core.rollout.custom.engine()
        for _ in range(args.turns):
            response = await engine.generate(sample.tokens, sampling_params)
            sample.append(response)
            sample.append_context(engine.tokenizer.encode("Are you sure?", add_special_tokens=False))
        return sample

The function gets every option and the keys of ``--custom-args`` as attributes of ``args``, a ``Sample`` whose response
is empty (with --partial-rollout: what an earlier step made of it), and SGLang's parameters with the sample's seed. It
goes on with what a response holds though weights changed meanwhile, and returns its sample soon after a response whose
finish reason is ``abort``: the sample is wanted as it is. It returns that sample with tokens, loss mask, log-probs and
status, which ``append`` and ``append_context`` keep in line. With an argument ``evaluation`` it is told whether the
sample is one of evaluation. All samples of a step are made at once; each request waits for its engine by itself, so
that a slow tool holds up no engine.

Guarantee: what comes back is complete and no longer than --rollout-max-response-len and the context allow, or it is an
error that names function and sample.
"""

import asyncio
import copy
import json
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from data.errors import UserError
from data.jsontext import dumps
from relax_core import aio
from relax_core.config.options import as_namespace
from relax_core.config.sections import RelaxConfig
from relax_core.functions import UserFunction, load_function
from relax_core.rollout.generated import Answer, Ask, Generated, Own
from relax_core.rollout.pieces import NO_ENGINE
from relax_core.rollout.requests import SampleRequest
from relax_core.rollout.sample import STATUS_OF, Sample, Status
from relax_core.rollout.sampling import response_budget

OPTION = "--custom-generate-function-path"
SIGNATURE = "generate(args, sample, sampling_params)"

_ENDS = {Status.COMPLETED: "stop", Status.TRUNCATED: "length", Status.ABORTED: "abort", Status.FAILED: "error"}


def load_generate(path: str) -> UserFunction:
    """Load the function.

    Raises:
        UserError: it cannot be loaded, or is no coroutine function of three arguments.
    """
    return load_function(path, OPTION, SIGNATURE, 3, is_async=True)


@dataclass(frozen=True)
class Response:
    """What an engine generated; R tokens.

    Attributes:
        output_ids: [R] int32.
        log_probs: [R] float32.
        finish_reason: SGLang's: ``{"type": "stop" | "length" | "abort", ...}``.
        token_versions: [R] int32, versions of the weights; None: not known.
    """

    output_ids: NDArray[np.int32]
    log_probs: NDArray[np.float32]
    finish_reason: dict[str, Any]
    token_versions: NDArray[np.int32] | None = None


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that the function is promised."""

    def encode(self, text: str, **options: Any) -> list[int]: ...
    def decode(self, tokens: Sequence[int], **options: Any) -> str: ...


class SampleEngine:
    """The run's engines, for one sample. Get it by ``engine()``.

    Attributes:
        tokenizer: of the model.
    """

    def __init__(self, request: SampleRequest, ask: Ask, tokenizer: Any, context: int | None, longest: int | None):
        self.tokenizer: Tokenizer = tokenizer
        self._request, self._ask, self._context, self._longest = request, ask, context, longest
        self.versions: list[int] = []
        self.asked_tokens = self.cached_tokens = self.interrupted = 0
        self.end = ""

    async def generate(self, tokens: Sequence[int], sampling_params: dict[str, Any]) -> Response:
        """Continue tokens.

        Args:
            tokens: prompt and what has been generated so far.
            sampling_params: SGLang's, left as they are; of ``max_new_tokens`` no more is used than the response and
                the context have left. Where nothing is left the response is empty and ends for its length.

        Raises:
            UserError: no engine is left, or it refused the request.
        """
        ids, prompt_length = np.asarray(tokens, np.int32), len(self._request.prompt.tokens)
        produced = max(0, len(ids) - prompt_length)
        limit = self._context if self._context is not None else prompt_length + (self._longest or 0)
        budget = response_budget(len(ids) - produced, self._longest, limit, produced)
        wanted = sampling_params.get("max_new_tokens")
        budget = budget if wanted is None else min(budget, int(wanted))
        if budget < 1:
            self.end = "length"
            nothing = np.empty(0, np.int32)
            return Response(nothing, np.empty(0, np.float32), {"type": "length"}, nothing)
        params = {**sampling_params, "max_new_tokens": budget}
        if "min_new_tokens" in params:
            params["min_new_tokens"] = min(params["min_new_tokens"], budget)
        merged = await self._ask(ids, params)
        self.versions += merged.weight_versions
        self.asked_tokens += merged.asked_tokens
        self.cached_tokens += merged.cached_tokens
        self.interrupted += merged.interrupted
        self.end = str(merged.finish_reason.get("type"))
        return Response(merged.output_ids, merged.log_probs, merged.finish_reason, merged.token_versions)


_engine: ContextVar[SampleEngine] = ContextVar("engine")


def engine() -> SampleEngine:
    """The engines, inside a function given as ``--custom-generate-function-path``.

    Raises:
        RuntimeError: anywhere else.
    """
    try:
        return _engine.get()
    except LookupError:
        raise RuntimeError(f"engine() works inside a function given as {OPTION} only") from None


def custom_answer(
    path: str | None,
    config: RelaxConfig,
    tokenizer: Any,
    *,
    context: int | None,
    longest: int | None,
    evaluation: bool = False,
) -> Answer | None:
    """How the samples are made; None where no function is given.

    Args:
        path: of the function.
        config: resolved.
        tokenizer: of the model.
        context: most tokens of prompt and response together.
        longest: most tokens of a response.
        evaluation: whether the samples are of evaluation.

    Raises:
        UserError: the function cannot be loaded.
    """
    if not path:
        return None
    function, args = load_generate(path), as_namespace(config)
    further = {"evaluation": evaluation} if function.takes("evaluation") else {}

    async def answer(request: SampleRequest, params: dict[str, Any], ask: Ask) -> Generated:
        engines = SampleEngine(request, ask, tokenizer, context, longest)
        token = _engine.set(engines)
        try:
            made = await function.call(args, _new_sample(request), params, **further)
        except UserError:
            raise
        except (Exception, asyncio.CancelledError) as error:
            if aio.cancelled():
                raise
            raise function.failure(f"on sample {request.sample_id}", error) from error
        finally:
            _engine.reset(token)
        try:
            return _generated(request, made, engines, context, longest)
        except (TypeError, ValueError, OverflowError) as error:
            problem = f"{function.name} returned for sample {request.sample_id}: {error}."
            raise UserError(problem, f"Expected: async def {SIGNATURE} -> sample.") from error

    return answer


def _new_sample(request: SampleRequest) -> Sample:
    prompt = request.prompt
    sample = Sample(
        sample_id=request.sample_id,
        group_id=request.group_id,
        index=request.index,
        group_index=request.group_index,
        prompt=prompt.text,
        tokens=prompt.tokens.tolist(),
        label=None if prompt.label is None else json.loads(prompt.label),
        metadata=copy.deepcopy(prompt.metadata),  # the samples of a group share the prompt
    )
    if request.progress is not None:
        sample.go_on(request.progress)
    return sample


def _generated(
    request: SampleRequest, made: Any, engines: SampleEngine, context: int | None, longest: int | None
) -> Generated:
    """What a function returned, checked. An end that does not fit and is not trained on is cut off.

    Raises:
        ValueError, TypeError: the text says what is wrong with it.
    """
    if not isinstance(made, Sample):
        raise TypeError(f"a {type(made).__name__}, not the sample")
    if made.reward is not None:
        raise ValueError("a sample with a reward, which only --custom-rm-path gives")
    tokens, length = _tokens(made.tokens), made.response_length
    if not 0 <= length < len(tokens):
        raise ValueError(f"response_length {length} of {len(tokens)} tokens, of which some are the prompt")
    prompt, response = tokens[: len(tokens) - length], tokens[len(tokens) - length :]
    mask = np.ones(length, np.uint8) if made.loss_mask is None else np.asarray(made.loss_mask)
    if mask.shape != (length,) or not np.isin(mask, (0, 1)).all():
        raise ValueError(f"a loss_mask that is not {length} times 0 or 1, one for each response token")
    log_probs = _log_probs("rollout_log_probs", made.rollout_log_probs, mask, length)
    teacher = None
    if made.teacher_log_probs is not None:
        teacher = _log_probs("teacher_log_probs", made.teacher_log_probs, mask, length)
    fits = min(len(tokens) if context is None else context - len(prompt), length if longest is None else longest)
    if fits < 0 or mask[fits:].any():
        raise ValueError(f"{length} response tokens after {len(prompt)} of the prompt, of which {max(fits, 0)} fit")
    status = made.status
    if status == Status.PENDING and engines.end:
        status = STATUS_OF.get(engines.end, Status.FAILED)
    if status not in _ENDS:
        raise ValueError(f"the status {str(status)!r}, not one of {', '.join(_ENDS)}")
    status = Status(status)
    known = request.progress.token_versions.tolist() if request.progress is not None else []
    weight_versions = tuple(dict.fromkeys(version for version in [*known, *engines.versions] if version >= 0))
    own = Own(
        prompt_ids=prompt,
        loss_mask=mask[:fits].astype(np.uint8),
        response=made.response or None,
        label=None if made.label is None else dumps(made.label),
        metadata=_object(made.metadata),
        remove_sample=bool(made.remove_sample),
        teacher_log_probs=None if teacher is None else teacher[:fits],
    )
    return Generated(
        request,
        response[:fits],
        log_probs[:fits],
        status=status,
        finish_reason=engines.end or _ENDS[status],
        weight_versions=weight_versions,
        cached_tokens=engines.cached_tokens,
        asked_tokens=engines.asked_tokens,
        own=own,
        token_versions=_token_versions(made.token_versions, mask, weight_versions)[:fits],
        interrupted=engines.interrupted,
    )


def _token_versions(values: Any, mask: NDArray[Any], asked: Sequence[int]) -> NDArray[np.int32]:
    """[R] versions of the tokens. A token that is trained on, of which the function does not say it, may be as old as
    the oldest weights that it asked."""
    versions = np.full(len(mask), NO_ENGINE, np.int32)
    if values is not None and len(values) == len(mask):
        versions = np.asarray(values, np.int32).copy()
    if asked:
        versions[(mask == 1) & (versions < 0)] = min(asked)
    return versions


def _tokens(values: Any) -> NDArray[np.int32]:
    tokens = np.asarray(values)
    if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer) or (tokens < 0).any():
        raise ValueError("tokens that are no list of token ids")
    return tokens.astype(np.int32)


def _log_probs(name: str, values: Any, mask: NDArray[Any], length: int) -> NDArray[np.float32]:
    if values is None:
        if mask.any():
            raise ValueError(f"no {name} for tokens that are trained on; add responses by sample.append")
        return np.zeros(length, np.float32)
    log_probs = np.asarray(values, np.float32)
    if log_probs.shape != (length,) or not np.isfinite(log_probs[mask == 1]).all():
        raise ValueError(f"{name} that are not {length} numbers, one for each response token")
    return np.where(mask == 1, log_probs, np.float32(0))


def _object(metadata: Any) -> str:
    if not isinstance(metadata, dict):
        raise TypeError(f"metadata that is a {type(metadata).__name__}, not a dict")
    return dumps(metadata)
