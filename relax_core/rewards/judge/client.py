"""Asking a judge's engines.

Guarantee: a question is tried three times, with growing waits between and at another engine where there is one, unless
an engine refuses it; never more than 256 are open at once in an event loop. An answer that was cut off says so. What no
engine answers is an error that says what the last one did, and never an empty answer.
"""

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from data.errors import UserError

if TYPE_CHECKING:
    import aiohttp

URLS, SAMPLING = "RELAX_GENRM_URLS", "RELAX_GENRM_SAMPLING"
"""Environment variables of processes that run reward functions: the engines' addresses, separated by commas, and
--genrm-sampling-config as JSON."""

ATTEMPTS = 3
ONGOING = 256
"""Most questions that are open at once, over all engines."""
TRY_SECONDS = 600.0
"""Until a try counts as lost; --reward-timeout bounds a call of a reward function as a whole."""
FIRST_WAIT = 0.5
ASK_AGAIN = (408, 429)
MAX_SHOWN = 300

DEFAULTS = {"temperature": 0.1, "top_p": 1.0, "top_k": -1, "max_response_len": 4096}
"""How a judge samples unless --genrm-sampling-config says otherwise."""

_ROUTE = "/v1/chat/completions"
NO_JUDGE = "Start one with --genrm-model-path MODEL, or name running SGLang servers in the variable " + URLS + "."


class _NoAnswer(Exception):
    """A try that may be repeated."""


@dataclass(frozen=True)
class Answer:
    """What a judge said.

    Attributes:
        text: of its answer.
        cut: whether it was cut off at max_response_len, so that its end is missing.
    """

    text: str
    cut: bool


@dataclass(frozen=True)
class JudgeService:
    """The engines of a judge.

    Args:
        urls: ``http://host:port`` of each.
        sampling: in place of ``DEFAULTS``, some or all.

    Raises:
        UserError: there are none.
    """

    urls: tuple[str, ...]
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.urls:
            raise UserError("A judge is asked, and none runs.", NO_JUDGE)

    async def ask(self, messages: Sequence[Mapping[str, str]], seed: int | None = None, **sampling: Any) -> Answer:
        """The answer to a conversation.

        Args:
            messages: with ``role`` and ``content``.
            seed: of the sampling; None: another one each time.
            sampling: temperature, top_p, top_k, max_response_len, and what else SGLang's chat requests take.

        Raises:
            UserError: an engine refuses the question, or none answers.
        """
        import aiohttp  # here: it takes time that other rewards do not need

        chosen = {**DEFAULTS, **self.sampling, **sampling}
        chosen["max_tokens"] = chosen.pop("max_response_len")
        chosen["seed"] = random.getrandbits(31) if seed is None else seed
        body = {"model": "default", "messages": [dict(message) for message in messages], **chosen}
        traffic = _traffic()
        timeout = aiohttp.ClientTimeout(total=TRY_SECONDS, sock_connect=10.0)
        tried: list[str] = []
        # no trust_env: a proxy of the environment must not see calls to an engine
        async with traffic.permits, aiohttp.ClientSession(timeout=timeout) as session:
            for attempt in range(ATTEMPTS):
                url = traffic.quietest(self.urls, tried)
                tried.append(url)
                traffic.open[url] += 1
                try:
                    return await _asked(session, url, body)
                except (_NoAnswer, aiohttp.ClientError, TimeoutError) as error:
                    if attempt == ATTEMPTS - 1:
                        raise _given_up(url, error) from error
                finally:
                    traffic.open[url] -= 1
                await _wait(FIRST_WAIT * 2**attempt * (1 + random.random()))
        raise AssertionError("unreachable")


def service_of_environment() -> JudgeService:
    """The engines that the environment names.

    Raises:
        UserError: it names none, or the sampling is no JSON object.
    """
    urls = tuple(url.strip() for url in os.environ.get(URLS, "").split(",") if url.strip())
    try:
        sampling = json.loads(os.environ.get(SAMPLING) or "{}")
        return JudgeService(urls, dict(sampling))
    except (TypeError, ValueError) as error:
        raise UserError(f"The variable {SAMPLING} is no JSON object: {error}.") from error


def service_environment(urls: Sequence[str], sampling: Mapping[str, Any] | None) -> dict[str, str]:
    """The variables from which ``service_of_environment`` reads the same; none without engines."""
    return {URLS: ",".join(urls), SAMPLING: json.dumps(dict(sampling or {}))} if urls else {}


class _Traffic:
    """What is open in one event loop."""

    def __init__(self) -> None:
        self.permits = asyncio.Semaphore(ONGOING)
        self.open: Counter[str] = Counter()

    def quietest(self, urls: Sequence[str], tried: Sequence[str]) -> str:
        """The engine with the fewest open questions, one that has not failed before others."""
        return min(urls, key=lambda url: (tried.count(url), self.open[url]))


_TRAFFIC: "WeakKeyDictionary[asyncio.AbstractEventLoop, _Traffic]" = WeakKeyDictionary()


def _traffic() -> _Traffic:
    return _TRAFFIC.setdefault(asyncio.get_running_loop(), _Traffic())


async def _asked(session: "aiohttp.ClientSession", url: str, body: dict[str, Any]) -> Answer:
    async with session.post(url.rstrip("/") + _ROUTE, json=body) as response:
        text = await response.text(errors="replace")
        if 400 <= response.status < 500 and response.status not in ASK_AGAIN:
            raise UserError(
                f"The judge at {url} refuses a question: status {response.status}, {text[:MAX_SHOWN]!r}.",
                "A question that is too long needs a larger max_context_len in --genrm-engine-config, or a smaller "
                "max_response_len in --genrm-sampling-config; the model needs a chat template.",
            )
        if response.status >= 400:
            raise _NoAnswer(f"status {response.status}, {text[:MAX_SHOWN]!r}")
    try:
        [choice] = json.loads(text)["choices"]
        content = choice["message"]["content"]
        if not isinstance(content, str | None):
            raise TypeError(f"content {content!r}")
        return Answer(content or "", choice.get("finish_reason") == "length")
    except (KeyError, TypeError, ValueError) as error:
        raise _NoAnswer(f"no answer but {text[:MAX_SHOWN]!r} ({type(error).__name__})") from error


async def _wait(seconds: float) -> None:
    await asyncio.sleep(seconds)


def _given_up(url: str, error: Exception) -> UserError:
    said = str(error) if isinstance(error, _NoAnswer) else f"{type(error).__name__}: {error}"
    return UserError(
        f"The judge gave no answer in {ATTEMPTS} tries; the last one, at {url}, ended with {said}.",
        "Its log (logs/genrm-0.log in the run directory) says why; run again: finished generations are kept.",
    )
