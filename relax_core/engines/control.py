"""Control calls to one SGLang server: everything but generation.

Guarantee: each call returns what the engine confirmed or raises: ``EngineUnavailable`` when it cannot be reached or
answers nonsense, ``EngineRefused`` with the engine's own message when it says no. Differences between SGLang 0.5.17 and
0.5.23 are found by its answers: nothing is remembered of a server, which another one may have replaced.

Control calls go to each engine itself, never through a router.
"""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal

import httpx

from relax_core.engines.errors import EngineRefused, EngineUnavailable

QUICK_SECONDS = 120.0
"""In which an engine answers what it need not work for, however busy; one that waits for a dead process never does."""

PauseMode = Literal["abort", "retract", "in_place"]


class EngineControl:
    """A synchronous client of one engine; a context manager that closes its connections.

    Args:
        url: ``http://host:port``.
        name: how errors call the engine; default: its URL.
        timeout: seconds until an answer must come.
        retries: further attempts when no connection can be made.
    """

    def __init__(self, url: str, name: str = "", timeout: float = 600.0, retries: int = 3) -> None:
        self.url, self.name, self.retries = url, name or f"the engine at {url}", retries
        # trust_env off: a proxy of the environment must not see calls to an engine.
        # verify off: engines speak plain HTTP, and loading certificates would take longer than a call.
        self.timeout, self._limits = timeout, httpx.Timeout(timeout, connect=5.0)
        self._http = httpx.Client(base_url=url, timeout=self._limits, trust_env=False, verify=False)

    def __enter__(self) -> "EngineControl":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def model_info(self) -> dict[str, Any]:
        """What the server serves: ``model_path``, ``weight_version`` and more. Cheap: fit for polling."""
        response = self._call("GET", "/model_info", missing_ok=True, within=QUICK_SECONDS)
        if response.status_code == 404:  # before 0.5.4
            response = self._call("GET", "/get_model_info")
        return self._json(response)

    def weight_version(self) -> str:
        """The version of the weights as text; ``default`` in a server that was never told."""
        return str(self.model_info().get("weight_version", ""))

    def server_info(self) -> dict[str, Any]:
        """The server's arguments, its SGLang ``version`` and its state."""
        response = self._call("GET", "/server_info", missing_ok=True)
        if response.status_code == 404:
            response = self._call("GET", "/get_server_info")
        return self._json(response)

    def health(self, timeout: float) -> str:
        """Why the engine is not well; empty: it generates a token. Takes a second or more: not for polling.

        Args:
            timeout: seconds until it must have answered; it gives up by itself after SGLang's 20 s.
        """
        try:
            response = self._http.get("/health_generate", timeout=httpx.Timeout(timeout, connect=min(5.0, timeout)))
        except httpx.TimeoutException:
            return f"/health_generate had no answer after {timeout:g} s"
        except httpx.HTTPError as error:
            return f"/health_generate cannot be reached: {error!r}"
        return "" if response.status_code == 200 else f"/health_generate was answered with {response.status_code}"

    def abort(self, rid: str | None = None) -> None:
        """End one request, or all; each returns what it has, with the finish reason ``abort``."""
        self._call("POST", "/abort_request", {"abort_all": True} if rid is None else {"rid": rid})

    def pause(self, mode: PauseMode = "abort") -> None:
        """Stop generating. ``abort`` ends what is in flight, ``retract`` and ``in_place`` go on after ``resume``."""
        self._call("POST", "/pause_generation", {"mode": mode}, within=QUICK_SECONDS)

    def resume(self) -> None:
        """Go on after ``pause``."""
        self._call("POST", "/continue_generation", {})

    def flush_cache(self, patience: float = 30.0) -> None:
        """Forget all cached prefixes. The server refuses while requests run; it is asked again for ``patience`` s."""
        deadline = time.monotonic() + patience
        while True:
            try:
                self._call("POST", "/flush_cache", within=QUICK_SECONDS)
                return
            except EngineRefused:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.05)

    def set_weight_version(self, version: str, abort: bool = False) -> None:
        """Name the weights, and read the name back.

        Raises:
            EngineUnavailable: the engine reports another version than it was told.
        """
        body = {"new_version": version, "abort_all_requests": abort}
        self._call("POST", "/update_weight_version", body, within=QUICK_SECONDS)
        seen = self.weight_version()
        if seen != version:
            raise EngineUnavailable(f"{self.name} was told weight version {version!r} but reports {seen!r}.")

    def begin_weight_update(self) -> bool:
        """Open an update where this version of SGLang wants that; one that a killed trainer left open is closed.

        Returns:
            Whether it wants that, and so ``end_weight_update``.
        """
        try:
            return self._call("POST", "/begin_weight_update", {}, missing_ok=True).status_code != 404
        except EngineRefused as refusal:
            if "already open" not in str(refusal):
                raise
            self.end_weight_update()
            self._call("POST", "/begin_weight_update", {})
            return True

    def end_weight_update(self) -> None:
        """Close the update that ``begin_weight_update`` has opened."""
        self._call("POST", "/end_weight_update", {})

    def update_weights(self, payloads: list[str], load_format: str | None) -> None:
        """Load tensors: base64 text, one for each tensor-parallel rank, made by ``relax_core.weights.transport``."""
        body = {"serialized_named_tensors": payloads, "load_format": load_format, "flush_cache": False}
        self._call("POST", "/update_weights_from_tensor", body)

    def join_group(self, name: str, backend: str, address: tuple[str, int], rank: int, ranks: int) -> None:
        """Join a process group of torch; answered once all have joined (gloo), or when first used (NCCL).

        Args:
            address: host and port of the group's store.
            rank: of the engine's first rank; its others follow.
            ranks: of the whole group.
        """
        body = {"master_address": address[0], "master_port": address[1], "rank_offset": rank, "world_size": ranks}
        self._call("POST", "/init_weights_update_group", {**body, "group_name": name, "backend": backend})

    def receive_weights(self, group: str, tensors: Sequence[tuple[str, str, Sequence[int]]]) -> None:
        """Load tensors that rank 0 of a group broadcasts as one stretch of bytes, without gaps.

        Args:
            tensors: name, type (``bfloat16``) and shape, in the order of the bytes.
        """
        names, dtypes, shapes = zip(*tensors, strict=True)
        body = {
            "names": names,
            "dtypes": dtypes,
            "shapes": [list(shape) for shape in shapes],
            "group_name": group,
            "load_format": "flattened_bucket",
            "flush_cache": False,
        }
        self._call("POST", "/update_weights_from_distributed", body)

    def check_weights(self, action: Literal["snapshot", "reset_tensors", "compare"]) -> None:
        """SGLang's own comparison of weights; ``compare`` is refused with the tensors that differ."""
        self._call("POST", "/weights_checker", {"action": action})

    def release_memory(self, tags: list[str] | None = None) -> None:
        """Free device memory (``weights``, ``kv_cache``, ``cuda_graph``; None: all). The server must be idle."""
        self._call("POST", "/release_memory_occupation", {"tags": tags})

    def resume_memory(self, tags: list[str] | None = None) -> None:
        """Take the memory again. Weights come back undefined: resume them, update, then resume ``kv_cache``."""
        self._call("POST", "/resume_memory_occupation", {"tags": tags})

    def ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request, as JSON."""
        return self._json(self._call("POST", path, body))

    def start_profile(self, body: dict[str, Any]) -> None:
        """Record what the engine does from now on; SGLang's ``ProfileReq`` as JSON."""
        self._call("POST", "/start_profile", body)

    def stop_profile(self) -> None:
        """End the recording and wait until its trace is written; an error where nothing is recorded."""
        self._call("POST", "/stop_profile")

    def _call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        missing_ok: bool = False,
        refuse: bool = True,
        within: float | None = None,
    ) -> httpx.Response:
        """Ask the engine.

        Args:
            within: seconds until it must answer, where that is less than for other calls.
        """
        limits = self._limits if within is None else httpx.Timeout(min(within, self.timeout), connect=5.0)
        for attempt in range(self.retries + 1):
            try:
                response = self._http.request(method, path, json=body, timeout=limits)
                break
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:  # nothing was sent: asking again is safe
                if attempt == self.retries:
                    raise self._lost(path, error) from error
                time.sleep(0.2 * 2**attempt)
            except httpx.HTTPError as error:
                raise self._lost(path, error) from error
        if response.status_code >= 500 and refuse:
            raise EngineUnavailable(f"{self.name} answered {path} with {response.status_code}: {_message(response)}")
        if response.status_code >= 400 and refuse and not (missing_ok and response.status_code == 404):
            raise EngineRefused(f"{self.name} refused {path} ({response.status_code}): {_message(response)}")
        return response

    def _lost(self, path: str, error: Exception) -> EngineUnavailable:
        return EngineUnavailable(f"{self.name} at {self.url} cannot be reached for {path}: {error!r}.")

    def _json(self, response: httpx.Response) -> dict[str, Any]:
        try:
            body = response.json()
        except ValueError as error:
            raise EngineUnavailable(f"{self.name} answered {response.url.path} with no JSON.") from error
        if not isinstance(body, dict):
            raise EngineUnavailable(f"{self.name} answered {response.url.path} with no JSON object.")
        return body


def _message(response: httpx.Response) -> str:
    """The message in an error response, whichever of SGLang's shapes it has."""
    try:
        body = response.json()
    except ValueError:
        return response.text[:2000]
    if isinstance(body, dict):
        error = body.get("error")
        inner = error.get("message") if isinstance(error, dict) else error
        return str(body.get("message") or inner or body)
    return str(body)
