"""The reward of a service: ``remote_rm`` sends each sample to --rm-url.

Guarantee: a service that is away for a while costs time, not samples: a request is tried ten times, with growing waits
between; what it refuses is not asked again, and what is no JSON, such as the page of a web server, once. Without an
answer the sample has no score of ours: it is an error, met as --reward-error-policy says.
"""

import asyncio
import json
import logging
import random
from typing import TYPE_CHECKING, Any

from data.errors import UserError
from relax_core.rewards.registry import register
from relax_core.rewards.types import RewardInput

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger(__name__)

TRIES = 10
TRIES_WITHOUT_JSON = 2
LONGEST_WAIT = 30.0
TRY_SECONDS = 120.0
ASK_AGAIN = (408, 429)
"""Refusals that are none: the service timed out, or is too busy."""

MAX_SHOWN = 200


class _NoAnswer(Exception):
    """A try that may be repeated."""


class _NoJson(_NoAnswer):
    """An answer of something else: more often the wrong address than a proxy that is passing."""


@register("remote_rm", options=("rm_url",), patient=True)
async def remote_rm(sample: RewardInput, rm_url: str | None) -> Any:
    """What the service at --rm-url answers to prompt, response and label: a number, null or an object.

    It is sent as the JSON object ``{"prompt", "response", "label"}`` by POST. A try lasts 120 s at most; before try
    k + 2 pass min(2^k, 30) seconds and up to one more, k from 0: no service is asked by all at the same time.

    Raises:
        UserError: there is no service, it refuses the sample, or it does not answer.
    """
    if rm_url is None:
        raise UserError(
            f"Sample {sample.sample_id} is to be scored by remote_rm, and there is no service.",
            "Name its address with --rm-url.",
        )
    import aiohttp  # here: it takes time that the other rewards do not need

    body = {"prompt": sample.prompt, "response": sample.response, "label": sample.label}
    # trust_env: --http-proxy comes as environment variables
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TRY_SECONDS), trust_env=True) as session:
        without_json = 0
        for k in range(TRIES):
            try:
                return await _asked(session, rm_url, body, sample)
            except aiohttp.InvalidURL as error:
                raise UserError(f"--rm-url {_shown(rm_url)} is no address.", "Write http://host:port/path.") from error
            except (_NoAnswer, aiohttp.ClientError, TimeoutError) as error:
                without_json += isinstance(error, _NoJson)
                if without_json == TRIES_WITHOUT_JSON:
                    raise UserError(
                        f"The service of remote_rm at {_shown(rm_url)} answers sample {sample.sample_id} with {error}.",
                        "It must answer JSON: a number, null, or an object with --reward-key. Is --rm-url its address?",
                    ) from error
                if k == TRIES - 1:
                    raise _given_up(rm_url, sample, error) from error
                _tell_once(rm_url, error)
                await _wait(min(2.0**k, LONGEST_WAIT) + random.random())
    raise AssertionError("unreachable")


async def _asked(session: "aiohttp.ClientSession", url: str, body: dict[str, Any], sample: RewardInput) -> Any:
    async with session.post(url, json=body) as response:
        text = await response.text(errors="replace")
        if 400 <= response.status < 500 and response.status not in ASK_AGAIN:
            raise UserError(
                f"The service of remote_rm at {_shown(url)} refuses sample {sample.sample_id}: status "
                f"{response.status}, {text[:MAX_SHOWN]!r}.",
                "Correct --rm-url or the service; it gets a JSON object with prompt, response and label.",
            )
        if response.status >= 400:
            raise _NoAnswer(f"status {response.status}, {text[:MAX_SHOWN]!r}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _NoJson(f"no JSON but {text[:MAX_SHOWN]!r}") from None


_told: set[str] = set()


def _tell_once(url: str, error: Exception) -> None:
    """Warn of a service whose first try failed: all tries together take minutes."""
    if url not in _told:
        _told.add(url)
        log.warning(
            "the service of remote_rm at %s gives no score yet, and is asked again: %s", _shown(url), _said(error)
        )


async def _wait(seconds: float) -> None:
    await asyncio.sleep(seconds)


def _given_up(url: str, sample: RewardInput, error: Exception) -> UserError:
    return UserError(
        f"The service of remote_rm at {_shown(url)} gave no score for sample {sample.sample_id} in {TRIES} tries; "
        f"the last one ended with {_said(error)}.",
        "Start it, or correct --rm-url, and run again: finished generations are kept.",
    )


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, _NoAnswer) else f"{type(error).__name__}: {error}"


def _shown(url: str) -> str:
    """An address without a password."""
    from relax_core.config.secrets import redact_text

    return redact_text(url)
