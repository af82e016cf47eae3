"""The teacher of on-policy distillation on a running SGLang server.

Guarantee: each response token gets the teacher's log-probability of that very token at the temperature asked for, or an
error names the sample and the server. A server that has another tokenizer, ignores the temperature or could not take
the longest sample is refused before it is asked; a token that it does not know, which would end it, is never sent.
Scoring changes nothing, so that a request whose connection is lost is sent again.
"""

import asyncio
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from data.errors import UserError
from relax_core import aio
from relax_core.engines.client import EngineClient
from relax_core.engines.control import EngineControl
from relax_core.engines.errors import EngineRefused, EngineUnavailable

OPTION = "--rm-url"
ROUTE = "/generate"
SECONDS = 300.0
"""Without a byte of the answer until a request counts as lost."""
PATIENCE = 60.0
"""Seconds since a sample was first sent after which a lost request is not sent again."""
LONGEST_PAUSE = 8.0
UNTOLD = "default"
"""SGLang's version of weights that it has loaded itself."""
_START = (
    "Start it (python -m sglang.launch_server --model-path TEACHER), give its address, and run the same command again:"
    " finished stages are kept."
)
_TEXT = "What is 3 + 4? The quick brown fox, naïve: 你好, привет! def f(x): return x ** 2\n"
_HUGE = 2**31 - 1


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    def encode(self, text: str, **options: Any) -> list[int]: ...


@dataclass(frozen=True)
class Teacher:
    """A server and what it can take.

    Attributes:
        url: its address, without a route.
        vocabulary: tokens that it knows; None: it does not tell.
        longest: most tokens of a sample; None: it does not tell.
        serves: model and version of its weights, as it says; empty: it does not.
    """

    url: str
    vocabulary: int | None
    longest: int | None
    serves: str = ""


@dataclass(frozen=True)
class Scored:
    """What is to be scored: the last ``response_length`` of ``tokens``."""

    sample_id: str
    tokens: NDArray[np.int32]
    response_length: int


def address(url: str) -> str:
    """The server's address in ``--rm-url``, which may end in the route, as slime has it."""
    return url.rstrip("/").removesuffix(ROUTE).rstrip("/")


def meet(url: str, tokenizer: Tokenizer, temperature: float, longest: int | None = None) -> Teacher:
    """Make sure that a server can be the teacher. A few small requests.

    Args:
        url: ``--rm-url``.
        tokenizer: of the student.
        temperature: of the rollout, which the teacher is scored at.
        longest: tokens that a sample may have; None: not known.

    Raises:
        UserError: nothing answers there, or no server that could be the teacher.
    """
    url = address(url)
    try:
        with EngineControl(url, "the teacher's server", timeout=SECONDS) as control:
            info = control.model_info()
            if info.get("is_generation") is False:
                raise UserError(f"{OPTION} {url} serves {info.get('model_path')}, which does not generate.", _START)
            teacher = Teacher(url, _vocabulary(control), _longest(control), _serves(info))
            ids = tokenizer.encode(_TEXT, add_special_tokens=False)
            _same_tokenizer(control, teacher, ids)
            scores = _probe(control, teacher, ids, temperature)
            if temperature != 1:
                _heeds(temperature, scores, _probe(control, teacher, ids, 1.0), url)
    except EngineUnavailable as error:
        raise UserError(f"{OPTION} {url}: no teacher answers there: {error.problem}", _START) from error
    except EngineRefused as error:
        raise UserError(f"{OPTION} {url} is no server that scores tokens: {error.problem}", _START) from error
    if longest is not None and teacher.longest is not None and longest > teacher.longest:
        raise UserError(
            f"{OPTION} {url}: the teacher takes samples of up to {teacher.longest:,} tokens, and a prompt with its"
            f" response may have {longest:,}.",
            "Start it with a larger --context-length, or lower --rollout-max-response-len.",
        )
    return teacher


def score(
    teacher: Teacher,
    samples: Sequence[Scored],
    temperature: float,
    concurrency: int,
    progress: Callable[[int, int, int], None] | None = None,
) -> list[NDArray[np.float32]]:
    """Log-probabilities of response tokens by the teacher. For callers without an event loop, from any thread.

    Args:
        samples: N of them.
        temperature: that the logits are divided by.
        concurrency: most requests in flight.
        progress: called with finished samples, all samples, and response tokens so far.

    Returns:
        [response_length] float32 of each sample, in their order.

    Raises:
        UserError: the server is gone for good, refused a sample, or gave a value that is none.
    """

    async def work() -> list[NDArray[np.float32]]:
        permits = asyncio.Semaphore(concurrency)
        done = tokens = 0
        async with EngineClient(
            teacher.url, "the teacher's server", read_timeout=SECONDS, connections=concurrency
        ) as client:

            async def one(sample: Scored) -> NDArray[np.float32]:
                nonlocal done, tokens
                async with permits:
                    found = await _ask(client, teacher, sample, temperature)
                done, tokens = done + 1, tokens + len(found)
                if progress is not None:
                    progress(done, len(samples), tokens)
                return found

            return await aio.gather(one(sample) for sample in samples)

    return aio.run(work())


async def _ask(client: EngineClient, teacher: Teacher, sample: Scored, temperature: float) -> NDArray[np.float32]:
    """One sample's scores."""
    if sample.response_length == 0:
        return np.empty(0, np.float32)
    _require_known(teacher, sample)
    where = f"Sample {sample.sample_id} at the teacher's server {teacher.url} ({OPTION})"
    deadline, pause = time.monotonic() + PATIENCE, 0.5  # a request that ran into its time limit is not sent again
    while True:
        try:
            answer = await client.post(ROUTE, request_of(sample, temperature))
            return scores_of(answer, sample)
        except EngineUnavailable as error:
            if time.monotonic() + pause > deadline:
                raise UserError(f"{where}: {error.problem}", _START) from error
        except EngineRefused as error:
            raise UserError(f"{where}: {error.problem}", "Its log says more.") from error
        except ValueError as error:
            raise UserError(f"{where}: it answered {error}.", "It must be SGLang's own server.") from error
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def request_of(sample: Scored, temperature: float) -> dict[str, Any]:
    """SGLang's request for the log-probabilities of a sample's response: no token is generated.

    ``sampling_params.temperature`` does not reach the tokens of the input in SGLang up to 0.5.23;
    ``input_logprob_temperature`` is what later versions may have for it. ``meet`` looks whether one of them counts.
    """
    body = {
        "input_ids": sample.tokens.tolist(),
        "sampling_params": {"temperature": temperature, "max_new_tokens": 0},
        "return_logprob": True,
        # The position before the first response token predicts it; its own entry is the empty first one.
        "logprob_start_len": len(sample.tokens) - sample.response_length - 1,
    }
    return body if temperature == 1 else {**body, "input_logprob_temperature": temperature}


def scores_of(answer: Any, sample: Scored) -> NDArray[np.float32]:
    """[response_length] float32 of SGLang's answer.

    The entries are (log-probability, token, text) of the input's tokens from some place on. The first one is empty, as
    nothing predicts it here; the last ``response_length`` are the response's.

    Raises:
        ValueError: too few or too many of them, another token, or a value that is missing or not finite; the text says
            what was answered.
    """
    length, tokens = sample.response_length, sample.tokens
    try:
        entries = answer["meta_info"]["input_token_logprobs"][1:]
        values, ids = [entry[0] for entry in entries[-length:]], [int(entry[1]) for entry in entries[-length:]]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"with what cannot be read ({error!r})") from error
    if not length <= len(entries) < len(tokens):
        raise ValueError(f"with {len(entries)} log-probs of {length} response tokens")
    for place, (value, found, wanted) in enumerate(zip(values, ids, tokens[-length:].tolist(), strict=True)):
        # SGLang calls the last token of its vocabulary 0 here.
        if found not in (wanted, 0):
            raise ValueError(f"with token {found} in place of {wanted}, its response token {place}")
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"log-prob {value} of token {wanted}, its response token {place}")
    return np.asarray(values, np.float32)


def _require_known(teacher: Teacher, sample: Scored) -> None:
    largest = int(sample.tokens.max())
    if teacher.vocabulary is not None and largest >= teacher.vocabulary:
        raise UserError(
            f"Sample {sample.sample_id} has token {largest}, and the teacher at {teacher.url} ({OPTION}) knows"
            f" {teacher.vocabulary} tokens.",
            "Student and teacher need one tokenizer and one vocabulary.",
        )


def _serves(info: Mapping[str, Any]) -> str:
    """The model that a server says it serves; with the version of its weights, where it was told one."""
    model, version = str(info.get("model_path") or ""), str(info.get("weight_version") or UNTOLD)
    return model if version == UNTOLD else f"{model} (weights {version})"


def _vocabulary(control: EngineControl) -> int | None:
    """Size of the vocabulary: SGLang names it when it refuses a bias of a token that it does not know.

    It does not refuse such a token in the input, which ends the server.
    """
    sampling = {"max_new_tokens": 0, "logit_bias": {str(_HUGE): 0.0}}
    try:
        control.ask(ROUTE, {"input_ids": [0], "sampling_params": sampling})
    except EngineRefused as error:
        told = re.search(r"\[0, (\d+)\]", error.problem)
        return int(told[1]) + 1 if told else None
    return None


def _longest(control: EngineControl) -> int | None:
    """Most tokens of a request's input; None where the server does not tell (a router)."""
    try:
        told = control.server_info().get("max_req_input_len")
    except EngineRefused:
        return None
    return told - 1 if isinstance(told, int) else None


def _same_tokenizer(control: EngineControl, teacher: Teacher, ids: list[int]) -> None:
    try:
        told = control.ask("/tokenize", {"prompt": _TEXT, "add_special_tokens": False}).get("tokens")
    except (EngineRefused, EngineUnavailable):  # a router, or a server without a tokenizer
        told = None
    largest = max(ids)
    if (told is not None and told != ids) or (teacher.vocabulary is not None and largest >= teacher.vocabulary):
        raise UserError(
            f"{OPTION} {teacher.url}: the teacher has another tokenizer than --hf-checkpoint.",
            "Distillation compares log-probs of the same tokens: take a teacher with the student's tokenizer.",
        )


def _probe(control: EngineControl, teacher: Teacher, ids: list[int], temperature: float) -> NDArray[np.float32]:
    """Scores of a short text."""
    sample = Scored("", np.asarray(ids, np.int32), len(ids) - 1)
    try:
        return scores_of(control.ask(ROUTE, request_of(sample, temperature)), sample)
    except ValueError as error:
        problem = f"{OPTION} {teacher.url} is no server that scores tokens: it answered {error}."
        raise UserError(problem, _START) from error


def _heeds(temperature: float, scaled: NDArray[np.float32], plain: NDArray[np.float32], url: str) -> None:
    """Refuse a server whose scores at two temperatures differ by less than a tenth of what they should."""
    expected = abs(1 / temperature - 1) * float(np.abs(plain).mean())
    if float(np.abs(scaled - plain).mean()) > 0.1 * expected:
        return
    raise UserError(
        f"{OPTION} {url}: the server scores given tokens at temperature 1, not at --rollout-temperature {temperature}:"
        " SGLang up to 0.5.23 knows no other. Student and teacher would be compared at two temperatures.",
        "Use --rollout-temperature 1, or --opd-type megatron.",
    )
