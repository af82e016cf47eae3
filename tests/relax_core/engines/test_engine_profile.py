"""When engines are profiled, what they are asked, and that nothing of it ends a run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from served import Served

from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig
from relax_core.engines.profile import ENDLESS, is_profiled, profiled, trace_folder


class ProfiledServer:
    """An engine's profiler: refuses with 500, as SGLang does, to stop what is not in progress."""

    def __init__(self) -> None:
        self.started: list[dict[str, Any]] = []
        self.calls: list[str] = []
        self.in_progress = self.refuses = False
        served = Served({"POST /start_profile": self._start, "POST /stop_profile": self._stop})
        self.url, self.end = served.url, served.stop

    async def _start(self, request: web.Request) -> web.Response:
        self.calls.append("start")
        if self.refuses or self.in_progress:
            raise web.HTTPInternalServerError
        self.started.append(await request.json())
        self.in_progress = True
        return web.Response(text="Start profiling.\n")

    async def _stop(self, request: web.Request) -> web.Response:
        self.calls.append("stop")
        if not self.in_progress:
            raise web.HTTPInternalServerError
        self.in_progress = False
        return web.Response(text="Stop profiling.\n")


@pytest.fixture
def servers() -> Iterator[list[ProfiledServer]]:
    servers = [ProfiledServer(), ProfiledServer()]
    yield servers
    for server in servers:
        server.end()


def settings(**options: Any) -> RelaxConfig:
    given = {f"sglang_profile_{name}": value for name, value in options.items()}
    return with_options(RelaxConfig(), {"sglang_profile": True, **given})


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),  # every step
        ({"steps": [0, 4]}, [0, 4]),
        ({"step_start": 2, "step_end": 4}, [2, 3, 4]),  # both ends are included
        ({"step_start": 4}, [4, 5]),
        ({"step_end": 1}, [0, 1]),
        ({"steps": [5], "step_start": 0, "step_end": 3}, [5]),  # the list wins
    ],
    ids=str,
)
def test_the_chosen_steps_are_absolute(options: dict[str, Any], steps: list[int]) -> None:
    assert [step for step in range(6) if is_profiled(settings(**options), step)] == steps
    unprofiled = with_options(settings(**options), {"sglang_profile": False})
    assert not any(is_profiled(unprofiled, step) for step in range(6))


def test_the_folder_is_absolute_and_has_a_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    named = with_options(settings(), {"tb_experiment_name": "first"})
    assert trace_folder(named, 7) == tmp_path / "traces/first/sglang_trace/rollout_7"
    assert trace_folder(settings(), 7) == tmp_path / "traces/sglang_trace/rollout_7"
    assert trace_folder(settings(output_dir="out"), 7) == tmp_path / "out/rollout_7"


def test_every_engine_is_told_what_the_options_say(servers: list[ProfiledServer], tmp_path: Path) -> None:
    config = settings(
        output_dir=str(tmp_path), num_steps=5, activities=["CPU"], by_stage=True, with_stack=True, record_shapes=True
    )
    with profiled(config, [server.url for server in servers], 7):
        assert all(server.in_progress for server in servers)
    assert not any(server.in_progress for server in servers)
    for index, server in enumerate(servers):
        assert server.started == [
            {
                "output_dir": f"{tmp_path}/rollout_7",
                "num_steps": 5,
                "activities": ["CPU"],
                "profile_by_stage": True,
                "with_stack": True,
                "record_shapes": True,
                "profile_prefix": f"engine{index}",
            }
        ]


@pytest.mark.parametrize(("by_stage", "asked"), [(False, None), (True, ENDLESS)])
def test_minus_one_records_until_the_step_ends(
    servers: list[ProfiledServer], by_stage: bool, asked: int | None
) -> None:
    with profiled(settings(num_steps=-1, by_stage=by_stage), [servers[0].url], 0):
        assert servers[0].started[0]["num_steps"] == asked
    assert servers[0].calls[-1] == "stop"


def test_a_step_that_is_not_chosen_asks_nothing(servers: list[ProfiledServer]) -> None:
    for config in (settings(steps=[1]), RelaxConfig()):
        with profiled(config, [servers[0].url], 0):
            pass
    assert servers[0].calls == []


def test_what_a_killed_driver_left_recording_is_stopped_first(servers: list[ProfiledServer]) -> None:
    servers[0].in_progress = True
    with profiled(settings(), [servers[0].url], 0):
        pass
    assert servers[0].calls == ["stop", "start", "stop"]
    assert len(servers[0].started) == 1


def test_a_profiler_that_does_not_start_is_a_warning(
    servers: list[ProfiledServer], caplog: pytest.LogCaptureFixture, unused_port: int
) -> None:
    servers[0].refuses = True
    with profiled(settings(), [servers[0].url, servers[1].url], 0):
        assert servers[1].in_progress
    assert "engine 0 is not profiled: " in caplog.text
    assert "engine 1" not in caplog.text


def test_an_error_of_the_step_itself_still_stops_the_recording(servers: list[ProfiledServer]) -> None:
    with pytest.raises(KeyError), profiled(settings(), [servers[0].url], 0):
        raise KeyError
    assert not servers[0].in_progress
