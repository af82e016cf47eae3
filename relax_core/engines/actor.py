"""One SGLang engine as an object: what an actor owns.

Guarantee: plain Python, usable without Ray. Whoever owns the object owns the server, and the server ends with its
owner's process even if that is killed.
"""

from dataclasses import dataclass

from relax_core.engines.control import EngineControl
from relax_core.engines.process import EngineProcess
from relax_core.engines.spec import EngineSpec
from relax_core.weights.label import version_of


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

    def start(self) -> EngineInfo:
        """Start the server unless it runs already, and wait until it answers.

        Raises:
            EngineStartError: it died while starting or did not answer in time; the message has the end of its log.
        """
        if not self._process.alive():
            self._process.start()
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

    def fits(self, spec: EngineSpec) -> bool:
        """Whether this is the engine that ``spec`` describes, and its server runs."""
        return self.spec == spec and self.alive()

    def alive(self) -> bool:
        """Whether the server process runs."""
        return self._process.alive()

    def abort_all(self) -> None:
        """End every request in flight; each returns what it has."""
        with self._control() as control:
            control.abort()

    def stop(self) -> None:
        """End the server."""
        self._process.stop()

    def _control(self) -> EngineControl:
        return EngineControl(self._process.url, self.spec.name)
