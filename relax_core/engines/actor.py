"""One SGLang engine as an object: what an actor owns.

Guarantee: plain Python, usable without Ray. Whoever owns the object owns the server, and the server ends with its
owner's process even if that is killed. Giving up memory and taking it again may be repeated; an engine of which it is
not known what it holds fits no description, and so is replaced.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from relax_core.engines.control import EngineControl
from relax_core.engines.process import EngineProcess
from relax_core.engines.spec import EngineSpec
from relax_core.weights.label import version_of

PARTS = ("weights", "kv_cache")
"""What an engine can give up, in the order in which it is taken again."""

RELEASED = "released"
"""Weight version of an engine whose weights are gone: nobody's, so that they are sent again."""

Calls: TypeAlias = dict[str, Callable[[], None]]
"""Calls to a server by what they do, in order."""


@dataclass(frozen=True)
class EngineInfo:
    """A running engine.

    Attributes:
        index: its number.
        url: ``http://host:port``.
        pid: process id of its server.
        sglang_version: version of SGLang.
        weight_version: number of the policy version it holds; None: none (fresh, or a push broke off in the middle).
        log_path: file of its output.
    """

    index: int
    url: str
    pid: int
    sglang_version: str
    weight_version: int | None
    log_path: str


class SGLangEngine:
    """A real SGLang server process and the calls that its owner needs."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self._process = EngineProcess(spec)
        self._memory = threading.Lock()
        self._held: frozenset[str] | None = frozenset()
        self._starting = False

    def start(self) -> EngineInfo:
        """Start the server unless it runs already, and wait until it answers.

        Raises:
            EngineStartError: it died while starting or did not answer in time; the message has the end of its log.
        """
        if not self._process.alive():
            self._held = frozenset()  # nothing that could be given up until it answers
            self._starting = True
            try:
                self._process.start()
            finally:
                self._starting = False
            self._held = frozenset(PARTS)
        return self.info()

    def info(self) -> EngineInfo:
        """Ask the running server what it is.

        Raises:
            EngineUnavailable: it does not answer.
        """
        with self._control() as control:
            version = control.weight_version()
            server = control.server_info()
        return EngineInfo(
            self.spec.index,
            self._process.url,
            self._process.pid or 0,
            str(server.get("version", "")),
            version_of(version),
            self.spec.log_path,
        )

    def status(self) -> dict[str, Any]:
        """What ``relax status`` shows: as ``info``; of a server that does not answer yet, that it starts."""
        return {"busy_with": "start"} if self._starting else asdict(self.info())

    def fits(self, spec: EngineSpec) -> bool:
        """Whether this is the engine that ``spec`` describes, and its server runs. A change of memory that another call
        is at is waited for."""
        with self._memory:
            return self.spec == spec and self.alive() and self._held is not None

    def alive(self) -> bool:
        """Whether the server process runs."""
        return self._process.alive()

    def abort_all(self) -> None:
        """End every request in flight; each returns what it has."""
        with self._control() as control:
            control.abort()

    def release(self, parts: Sequence[str] = PARTS) -> dict[str, float]:
        """Give up these parts of the device memory, as far as they are held; requests in flight are ended.

        An engine that was not started with the memory saver keeps them: on a CPU there is nothing to give up.

        Args:
            parts: of ``PARTS``.

        Returns:
            Seconds of each call to the server; nothing where nothing was held.

        Raises:
            EngineUnavailable, EngineRefused: it did not; ``fits`` says no from now on.
        """

        def free(control: EngineControl, chosen: list[str]) -> Calls:
            calls: Calls = {"abort": control.abort}
            # succeeds once nothing runs; the server dies of a release while something does
            calls["flush"] = control.flush_cache
            if "weights" in chosen and not self.spec.keeps_weights:
                calls["version"] = lambda: control.set_weight_version(RELEASED)
            return {**calls, "release": lambda: control.release_memory(chosen)}

        return self._change([part for part in reversed(PARTS) if part in parts], free, held=True)

    def resume(self, parts: Sequence[str] = PARTS) -> dict[str, float]:
        """Take these parts again, as far as they are not held. Weights hold anything then, unless the engine keeps
        them.

        Returns:
            Seconds of each call to the server; nothing where all was held.

        Raises:
            EngineUnavailable, EngineRefused: it did not, e.g. for lack of memory; ``fits`` says no from now on.
        """

        def take(control: EngineControl, chosen: list[str]) -> Calls:
            return {"resume": lambda: control.resume_memory(chosen)}

        return self._change([part for part in PARTS if part in parts], take, held=False)

    def _change(
        self, parts: list[str], calls: Callable[[EngineControl, list[str]], Calls], held: bool
    ) -> dict[str, float]:
        if not self.spec.releases_memory or not self.alive():
            return {}
        with self._memory:
            now = self._held or frozenset()
            chosen = [part for part in parts if (part in now) == held]
            if not chosen:
                return {}
            self._held = None  # until it has answered
            spent = {}
            with self._control() as control:
                for name, call in calls(control, chosen).items():
                    begin = time.perf_counter()
                    call()
                    spent[name] = time.perf_counter() - begin
            self._held = now.difference(chosen) if held else now.union(chosen)
            return spent

    def stop(self) -> None:
        """End the server."""
        self._process.stop()

    def _control(self) -> EngineControl:
        return EngineControl(self._process.url, self.spec.name)
