"""Generation by token ids at one SGLang server, many requests at once.

Guarantee: a ``Completion`` has one log-probability for each output token and knows the weights that made it; a request
that an engine did not finish raises, and is never an empty completion. A request is sent again only when no connection
could be made, so that no generation is paid for twice.
"""

import asyncio
import json
import random
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import aiohttp
import numpy as np
import orjson

from relax_core.engines.errors import EngineRefused, EngineUnavailable

CONNECT_ATTEMPTS = 4
KEEP_ALIVE_SECONDS = 2.0
"""Below the 5 s after which the server closes an idle connection: else a request now and then meets a closed one."""

CONNECT_SECONDS = 30.0
"""How long a connection may take; it is tried ``CONNECT_ATTEMPTS`` times."""

READ_SECONDS = 3600.0
"""How long an engine may take for a response, of which nothing is sent before its end. This alone bounds a request at
an engine whose host is there and silent, unless somebody who watches engines gives it up sooner, see
``relax_core.rollout.generation.Generation.lose``."""

ABORT_SECONDS = 10.0
"""How long an engine may take to hear that a request is to end."""

ABORT_CONNECTIONS = 16

_JSON_HEADERS = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Completion:
    """One generated response.

    Attributes:
        output_ids: [tokens] int32.
        log_probs: [tokens] float32, natural logarithm, of the distribution after temperature, before top-p and top-k.
        finish_reason: SGLang's: ``{"type": "stop" | "length" | "abort", ...}``.
        weight_version: version of the weights that made the last token.
        weight_versions: versions that made the tokens, in order; one, unless weights changed during the generation.
        prompt_tokens: length of the prompt.
        cached_tokens: tokens of the prompt that came from the prefix cache.
        spans: (version, first token, token after the last) of the output; none: one version made all tokens.
    """

    output_ids: np.ndarray
    log_probs: np.ndarray
    finish_reason: dict[str, Any]
    weight_version: str
    weight_versions: tuple[str, ...]
    prompt_tokens: int
    cached_tokens: int
    spans: tuple[tuple[str, int, int], ...] = ()


class EngineClient:
    """An asynchronous client of one engine; an async context manager.

    Args:
        url: ``http://host:port``.
        name: how errors call the engine; default: its URL.
        read_timeout: seconds without a byte until a request counts as lost; a generation sends nothing before its end.
        connections: most requests at once.
    """

    def __init__(self, url: str, name: str = "", read_timeout: float = READ_SECONDS, connections: int = 4096) -> None:
        self.url, self.name = url.rstrip("/"), name or f"the engine at {url}"
        self._timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=read_timeout)
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "EngineClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def generate(self, input_ids: np.ndarray, sampling_params: dict[str, Any], rid: str = "") -> Completion:
        """Generate one response.

        Args:
            input_ids: [tokens] prompt.
            sampling_params: SGLang's; without a ``sampling_seed`` the request gets a random one, since SGLang's
                deterministic mode would give every such request the same.
            rid: id by which the request can be aborted; unique among those in flight.

        Raises:
            EngineUnavailable: the engine cannot be reached, died meanwhile, or answered nonsense.
            EngineRefused: the engine refused the request, e.g. for its length.
        """
        params = {"sampling_seed": random.getrandbits(62)} | sampling_params
        body = {"input_ids": np.asarray(input_ids), "sampling_params": params, "return_logprob": True}
        if rid:
            body["rid"] = rid
        return parse_completion(await self.post("/generate", body), self.name)

    async def abort(self, rid: str) -> None:
        """End a request: it returns what it has, with the finish reason ``abort``. One that is not there is no error,
        nor is an engine that does not answer: whoever waits for the request learns of that there."""
        try:
            async with asyncio.timeout(ABORT_SECONDS):
                await self.post("/abort_request", {"rid": rid})
        except (TimeoutError, EngineRefused, EngineUnavailable):
            pass

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """The engine's answer to a request, as JSON. It is sent again only while no connection can be made.

        Raises:
            EngineUnavailable, EngineRefused: as ``generate``.
        """
        data = _written(body)
        for attempt in range(CONNECT_ATTEMPTS):
            try:
                async with self._open().post(self.url + path, data=data, headers=_JSON_HEADERS) as response:
                    answer = _read(await response.read())
                    if response.status >= 400:
                        raise _refusal(self.name, path, response.status, answer)
                    return answer
            except aiohttp.ClientConnectorError as error:  # nothing was sent: sending again is safe
                if attempt == CONNECT_ATTEMPTS - 1:
                    raise self._lost(path, error) from error
                await asyncio.sleep(0.2 * 2**attempt)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                raise self._lost(path, error) from error
        raise AssertionError("unreachable")

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            # a few more: what ends requests must not wait for them
            limit = self._connections + ABORT_CONNECTIONS
            connector = aiohttp.TCPConnector(limit=limit, keepalive_timeout=KEEP_ALIVE_SECONDS)
            self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout)
        return self._session

    def _lost(self, path: str, error: BaseException) -> EngineUnavailable:
        return EngineUnavailable(
            f"{self.name} at {self.url} stopped answering ({path}: {type(error).__name__}: {error}).",
            "Its log says why; the run can be started again and goes on.",
        )


def _written(body: dict[str, Any]) -> bytes:
    """JSON of a request; an array of tokens stands beside other fields. The standard library takes ten times as long
    for tokens; of the other fields orjson would write NaN as null, which is the engine's default."""
    tokens = body.get("input_ids")
    if not isinstance(tokens, np.ndarray):
        return json.dumps(body).encode()
    ids = orjson.dumps(np.ascontiguousarray(tokens), option=orjson.OPT_SERIALIZE_NUMPY)
    others = json.dumps({name: value for name, value in body.items() if name != "input_ids"})
    return b'%b, "input_ids": %b}' % (others[:-1].encode(), ids)


def _read(text: bytes) -> Any:
    """JSON; None for no text, which is what a request that asks for nothing gets."""
    try:
        return orjson.loads(text) if text.strip() else None
    except ValueError:
        return json.loads(text)  # takes NaN too


def parse_completion(answer: Any, name: str) -> Completion:
    """Read SGLang's answer to ``/generate``.

    Raises:
        EngineUnavailable: a field is missing or does not fit the others.
        EngineRefused: the request was aborted by the engine itself because of an error.
    """
    try:
        meta = answer["meta_info"]
        reason = meta["finish_reason"] or {"type": "abort"}
        reason = {"type": reason} if isinstance(reason, str) else dict(reason)
        scored = meta.get("output_token_logprobs") or []
        log_probs = np.array([entry[0] for entry in scored], dtype=np.float32)
        scored_ids = np.array([entry[1] for entry in scored], dtype=np.int32)
        given = answer.get("output_ids")
        output_ids = scored_ids if given is None else np.array(given, dtype=np.int32)
        spans = tuple(
            (str(span["version"]), int(span["start"]), int(span["end"]))
            for span in meta.get("weight_versions") or []
            if span["end"] > span["start"]
        )
        version = str(meta.get("weight_version", ""))
        prompt_tokens, cached_tokens = int(meta.get("prompt_tokens", 0)), int(meta.get("cached_tokens") or 0)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise EngineUnavailable(f"{name} answered /generate with what cannot be read: {error!r}.") from error
    if reason["type"] == "abort" and int(reason.get("status_code") or 0) == 400:
        raise EngineRefused(f"{name} refused a request: {reason.get('message')}.")
    if not np.array_equal(output_ids, scored_ids):
        raise EngineUnavailable(
            f"{name} answered /generate with {len(output_ids)} tokens and the scores of {len(scored_ids)} others."
        )
    versions = tuple(dict.fromkeys(label for label, *_ in spans)) or (version,)
    return Completion(output_ids, log_probs, reason, version, versions, prompt_tokens, cached_tokens, spans)


def _refusal(name: str, path: str, status: int, answer: Any) -> EngineRefused | EngineUnavailable:
    error = answer.get("error") if isinstance(answer, dict) else None
    message = error.get("message") if isinstance(error, dict) else answer
    if status >= 500:
        return EngineUnavailable(f"{name} answered {path} with {status}: {message}.")
    return EngineRefused(f"{name} refused {path} ({status}): {message}.")
