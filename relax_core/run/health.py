"""A watch over engines while they generate (--use-fault-tolerance).

Guarantee: an engine that fails ``FAILURES`` checks in a row is told as lost, once, and asked no more; a check that
hangs holds up no other engine's. Nothing is checked before ``first_wait``, nor while the engines are paused, and a
failure before a pause does not count after it.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

from relax_core.config import RelaxConfig
from relax_core.engines.control import EngineControl
from relax_core.engines.errors import EngineRefused, EngineUnavailable
from relax_core.run.engines import RunEngines

FAILURES = 2
"""Consecutive checks that a dead engine has failed: one may fail while an engine is at something long."""

STUCK_SECONDS = 30.0
"""After which an engine that is at nothing does not answer any more."""

Check = Callable[[str, float], str]
"""Asks the engine at an address, for at most so many seconds; why it is not well, or nothing."""


def ask(url: str, timeout: float) -> str:
    """A ``Check``: whether it generates a token (SGLang's ``/health_generate``)."""
    with EngineControl(url) as control:
        return control.health(timeout)


def stuck(urls: Sequence[str], timeout: float = STUCK_SECONDS) -> dict[str, str]:
    """The engines that do not answer, and why; one that is paused does answer.

    Args:
        timeout: seconds that an answer may take.
    """

    def reason(url: str) -> str:
        try:
            with EngineControl(url, timeout=timeout, retries=0) as control:
                control.server_info()  # the process that computes answers it
        except EngineUnavailable as error:
            return error.problem
        except EngineRefused:
            pass
        return ""

    with ThreadPoolExecutor(max(1, len(urls))) as pool:
        return {url: why for url, why in zip(urls, pool.map(reason, urls), strict=True) if why}


@dataclass
class HealthMonitor:
    """Checks engines from a thread of its own, between ``start`` and ``stop``; a context manager that calls both.

    Args:
        urls: addresses of the engines, asked for anew each time.
        lost: gets the address of one that is dead, and the reason; from that thread.
        interval: seconds between two rounds of checks.
        timeout: seconds that a check may take.
        first_wait: seconds until the first one.
        check: asks one engine.
        paused: whether engines are not to answer now.
    """

    urls: Callable[[], Sequence[str]]
    lost: Callable[[str, str], None]
    interval: float
    timeout: float
    first_wait: float = 0.0
    check: Check = ask
    paused: Callable[[], bool] = lambda: False
    _failed: dict[str, int] = field(default_factory=dict)
    _gone: set[str] = field(default_factory=set)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to check."""
        self._thread = threading.Thread(target=self._watch, name="engine-health", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Check no more; a check that is under way is not waited for, and tells nothing any more."""
        self._ended.set()

    def __enter__(self) -> "HealthMonitor":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _watch(self) -> None:
        wait = self.first_wait
        while not self._ended.wait(wait):
            wait = self.interval
            if self.paused():
                self._failed.clear()
                continue
            urls = [url for url in self.urls() if url not in self._gone]
            if urls:
                with ThreadPoolExecutor(len(urls)) as pool:  # ends within ``timeout``
                    reasons = list(pool.map(lambda url: self.check(url, self.timeout), urls))
                self._judge(dict(zip(urls, reasons, strict=True)))

    def _judge(self, reasons: dict[str, str]) -> None:
        if self._ended.is_set():
            return
        if self.paused():
            self._failed.clear()
            return
        for url, reason in reasons.items():
            self._failed[url] = self._failed.get(url, 0) + 1 if reason else 0
            if self._failed[url] >= FAILURES:
                self._gone.add(url)
                self.lost(url, f"{FAILURES} health checks in a row failed: {reason}")


def monitor(
    config: RelaxConfig,
    urls: Callable[[], Sequence[str]],
    lost: Callable[[str, str], None],
    paused: Callable[[], bool] = lambda: False,
) -> HealthMonitor | None:
    """A monitor as the options want it; None: they want none."""
    options = config.fault_tolerance
    if not options.use_fault_tolerance:
        return None
    return HealthMonitor(
        urls,
        lost,
        options.rollout_health_check_interval,
        options.rollout_health_check_timeout,
        options.rollout_health_check_first_wait,
        paused=paused,
    )


@contextmanager
def watching(run: RunEngines) -> Iterator[None]:
    """Round a generation, whose engines hold their memory: if the options want it, engines that die are taken out of it
    and ended, so that others can be started in their place."""

    def paused() -> bool:
        return run.gate.is_closed and not run.gate.inside  # one that hangs while requests end holds up all others

    found = monitor(run.config, lambda: run.engines.urls, run.lose_engine, paused)
    with found or nullcontext():
        yield
