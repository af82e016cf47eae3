"""What flows find in their environment of the standing Prefect server."""

import os
from pathlib import Path

import psutil
import pytest

from flows import environment
from relax_core.cluster import access, services

URL = "http://127.0.0.1:4200/api"


@pytest.fixture(autouse=True)
def protected_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The password of a standing server, which this process plays."""
    for name in [*os.environ]:
        if name.startswith("PREFECT_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("RELAX_HOME", str(tmp_path))
    created = psutil.Process().create_time()
    services.record({"prefect": services.Service("prefect", URL, os.getpid(), created, "", protected=True)})
    return access.prefect_auth(tmp_path, {})


@pytest.fixture(autouse=True)
def put_back() -> object:
    """What ``prepare`` sets is gone after each test."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def test_the_standing_server_is_used_with_its_password(protected_server: str) -> None:
    environment.prepare()
    assert (os.environ["PREFECT_API_URL"], os.environ["PREFECT_API_AUTH_STRING"]) == (URL, protected_server)


def test_the_password_goes_to_no_other_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://192.0.2.7:4200/api")
    environment.prepare()
    assert "PREFECT_API_AUTH_STRING" not in os.environ


def test_what_the_user_has_set_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", URL)
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "me:word")
    environment.prepare()
    assert os.environ["PREFECT_API_AUTH_STRING"] == "me:word"
