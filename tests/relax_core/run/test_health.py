"""Engines that are watched while they generate."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from aiohttp import web
from served import Served

from relax_core.config import RelaxConfig
from relax_core.config.options import with_options
from relax_core.engines.control import EngineControl
from relax_core.run.engines import RunEngines
from relax_core.run.health import FAILURES, HealthMonitor, monitor, stuck, watching
from relax_core.tracking.events import NO_EVENTS

QUICK = {"interval": 0.02, "timeout": 0.3}


class Server:
    """An engine that answers health checks, or says no, or hangs."""

    def __init__(self) -> None:
        self.status, self.hangs, self.asked = 200, False, 0

        async def health(request: web.Request) -> web.Response:
            self.asked += 1
            while self.hangs:
                await asyncio.sleep(0.01)
            return web.Response(status=self.status)

        served = Served({"GET /health_generate": health, "GET /server_info": health})
        self.url, self.stop = served.url, served.stop


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


@pytest.fixture
def other() -> Iterator[Server]:
    made = Server()
    yield made
    made.stop()


def until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_engine_that_hangs_is_lost_and_the_other_is_not(server: Server, other: Server) -> None:
    lost: list[tuple[str, str]] = []
    server.hangs = True
    with HealthMonitor(lambda: [server.url, other.url], lambda url, why: lost.append((url, why)), **QUICK):
        until(lambda: lost)
        asked = other.asked
        until(lambda: other.asked > asked + 3)  # it is asked on, the lost one is not
    assert lost == [(server.url, "2 health checks in a row failed: /health_generate had no answer after 0.3 s")]
    assert server.asked == FAILURES


def test_one_failure_is_forgiven() -> None:
    # fails, answers, fails, answers, ...: never twice in a row
    answers = iter(["no", ""] * 6)
    done = threading.Event()
    lost: list[str] = []

    def check(url: str, timeout: float) -> str:
        try:
            return next(answers)
        except StopIteration:
            done.set()
            return ""

    with HealthMonitor(lambda: ["a"], lambda url, why: lost.append(url), 0.001, 1.0, check=check):
        assert done.wait(30)
    assert lost == []


def test_an_engine_that_says_no_is_lost(server: Server) -> None:
    lost: list[str] = []
    server.status = 503
    with HealthMonitor(lambda: [server.url], lambda url, why: lost.append(why), **QUICK):
        until(lambda: lost)
    assert "answered with 503" in lost[0]


def test_nothing_is_checked_while_engines_are_paused() -> None:
    # Fails once before the pause and once after it: the two are not in a row.
    states = iter([False, False, True, False, False, *[True] * 1000])
    seen: list[bool] = []
    lost: list[str] = []

    def paused() -> bool:
        seen.append(next(states, True))
        return seen[-1]

    with HealthMonitor(
        lambda: ["a"], lambda url, why: lost.append(url), 0.001, 1.0, check=lambda *_: "no", paused=paused
    ):
        until(lambda: len(seen) > 10)
    assert lost == []


def test_the_first_check_waits() -> None:
    checked: list[str] = []
    watch = HealthMonitor(
        lambda: ["a"],
        lambda url, why: None,
        0.001,
        1.0,
        first_wait=1000.0,
        check=lambda url, _: checked.append(url) or "",
    )
    with watch:
        time.sleep(0.1)
    assert checked == []


def config(**options: object) -> RelaxConfig:
    return with_options(RelaxConfig(), {"use_fault_tolerance": True, **options})


def test_the_options_decide() -> None:
    options = {
        "rollout_health_check_interval": 5.0,
        "rollout_health_check_timeout": 6.0,
        "rollout_health_check_first_wait": 7.0,
    }
    found = monitor(config(**options), list, lambda url, why: None)
    assert found is not None
    assert (found.interval, found.timeout, found.first_wait) == (5.0, 6.0, 7.0)
    assert monitor(config(use_fault_tolerance=False), list, lambda url, why: None) is None


class Run(RunEngines):
    """As far as the watch needs one."""

    mode, has_critic, history = "whole", False, None  # type: ignore[assignment]

    def __init__(self, config: RelaxConfig, url: str) -> None:
        super().__init__(lambda config, name: self)  # type: ignore[arg-type, return-value]
        self.config, self.id, self.events = config, "run", NO_EVENTS
        self._engines = self  # type: ignore[assignment]
        self.urls, self.happened = [url], list[str]()
        self.generations = [self]  # type: ignore[assignment]

    def lose(self, url: str, reason: str) -> None:
        self.happened.append(f"lost {url}")

    def end_engine(self, url: str) -> None:
        self.happened.append(f"ended {url}")


def test_a_dead_engine_leaves_the_generation_before_it_is_ended(server: Server) -> None:
    server.status = 500
    options = config(rollout_health_check_interval=0.02, rollout_health_check_timeout=5.0)
    run = Run(options, server.url)
    with watching(run):
        until(lambda: len(run.happened) == 2)
    assert run.happened == [f"lost {server.url}", f"ended {server.url}"]


def test_a_check_says_why_an_engine_cannot_be_reached(server: Server) -> None:
    with EngineControl(server.url) as control:
        assert control.health(5.0) == ""
    with EngineControl("http://127.0.0.1:9") as control:
        assert "cannot be reached" in control.health(5.0)


def test_an_engine_is_stuck_that_does_not_answer_and_one_that_says_no_is_not(server: Server, other: Server) -> None:
    other.hangs, server.status = True, 404
    found = stuck([server.url, other.url], timeout=0.3)
    assert list(found) == [other.url]
    assert "/server_info" in found[other.url]
    other.stop()
    assert stuck([]) == {}
