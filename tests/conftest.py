"""What the whole suite shares: quiet libraries, one Prefect server, one Ray head, tiny models. Each is started once."""

import functools
import logging
import os
import re
import signal
import threading

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    # a shell's background job: all that tests start would be deaf to Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

LANES = {"engines": ("e2e", "sglang", "ray"), "trainers": ("megatron",), "standing": ("standing",)}
"""With `-n`, files that use one of these marks stay together in one process: a Ray head, an engine, and the memory that
they take, are there once. Longest first; a file with the mark `standing` has the services that it needs from there."""


@functools.cache
def _lane(path: Path) -> str:
    """The lane of a file of tests, or the file itself."""
    marks = set(re.findall(r"\bmark\.(\w+)", path.read_text()))
    if "standing" in marks:
        return "standing"
    return next((lane for lane, its in LANES.items() if marks.intersection(its)), str(path))


@functools.cache
def _rank(path: Path) -> int:
    """Where a file stands in the queue: lanes, then flows, which share a Prefect server, then what fills the gaps."""
    lane = _lane(path)
    return list(LANES).index(lane) if lane in LANES else len(LANES) + ("prefect_server" not in path.read_text())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `-n`, what takes longest comes first."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _rank(item.path))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n --dist loadfile`, a process takes a lane or a file at a time, in the order above."""
    from xdist.scheduler import LoadScopeScheduling

    class Lanes(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _lane(config.rootpath / nodeid.partition("::")[0])

    if config.getoption("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    return Lanes(config, log)


@pytest.fixture(scope="session")
def relax_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A RELAX_HOME of its own, so that no test sees the services of the person who runs it."""
    folder = tmp_path_factory.mktemp("relax-home")
    before = os.environ.get("RELAX_HOME")
    os.environ["RELAX_HOME"] = str(folder)
    os.environ["PREFECT_HOME"] = str(folder / "prefect")
    (folder / "prefect").mkdir()
    yield folder
    from relax_core.cluster import services

    services.stop()
    del os.environ["PREFECT_HOME"]
    if before is None:
        del os.environ["RELAX_HOME"]
    else:
        os.environ["RELAX_HOME"] = before


@pytest.fixture
def unused_port() -> int:
    """A port at which nobody listens."""
    from relax_core.cluster.ports import free_port

    return free_port()


@pytest.fixture(scope="session")
def prefect_server(relax_home: Path) -> Iterator[None]:
    """A Prefect server for the whole session, with a database of its own."""
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
    from prefect.testing.utilities import prefect_test_harness

    import flows.environment  # noqa: F401
    from flows.patience import use_for_temporary_servers

    use_for_temporary_servers()
    # The end of a flow waits up to a second for its heartbeat, of which no test is about.
    quick = temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None})
    with quick, prefect_test_harness(server_startup_timeout=120):
        yield


@pytest.fixture(scope="session")
def ray_head(relax_home: Path) -> Iterator[str]:
    """A standing Ray head, recorded as `relax up` would, and this process connected to it."""
    from relax_core.cluster import services
    from relax_core.cluster.head import connected

    service = services.start_ray()
    with connected():
        yield service.address


@pytest.fixture(scope="session")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """What `relax up` starts, with a home of its own that this process does not see: see ``standing.Standing``."""
    from standing import Standing

    with Standing(tmp_path_factory.mktemp("standing")) as services:
        yield services


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless browser (playwright's ``Browser``). While it is there ``asyncio.run`` fails in this process."""
    from browsing import browser as started

    with started() as one:
        yield one


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Qwen3 with a tokenizer, as a Hugging Face folder."""
    from tiny import make_tiny

    return Path(make_tiny(tmp_path_factory.mktemp("models") / "qwen3"))


@pytest.fixture(scope="session")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight prompts with labels, as JSONL."""
    import json

    path = tmp_path_factory.mktemp("prompts") / "sums.jsonl"
    rows = [{"input": f"{a} + 2 =", "label": str(a + 2)} for a in range(8)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """An S3 server in this process with the bucket ``runs``; fsspec and s3fs find it through the environment."""
    server_module = pytest.importorskip("moto.moto_server.threaded_moto_server")
    pytest.importorskip("s3fs")
    import boto3

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # not a line per request
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    environment = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for key, value in environment.items():
            patch.setenv(key, value)
        for key in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY", "all_proxy", "AWS_PROFILE"):
            patch.delenv(key, raising=False)
        boto3.client("s3").create_bucket(Bucket="runs")
        yield endpoint
    server.stop()
