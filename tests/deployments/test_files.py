"""Files of runs by HTTP, with a run directory on the disk and nothing behind."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.settings import PREFECT_SERVER_API_AUTH_STRING, temporary_settings

from deployments.files import PATH, RunFiles
from relax_core.config.seal import sealed


async def nobody(scope: Any, receive: Any, send: Any) -> None:
    """What stands behind: Prefect."""
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": b"prefect"})


def get(path: str = PATH, **options: Any) -> httpx.Response:
    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(app=RunFiles(nobody))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            return await client.get(path, **options)

    return asyncio.run(call())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder that looks like a run, with secrets in it."""
    (tmp_path / "config.yaml").write_text(sealed("tracking: {notify_urls: secret}\n"))
    for name in ("steps/000003/rollout.parquet", "pages/step-000003.html", "curves.svg", "logs/x.svg", "notes.html"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path


def file(run: Path, name: str) -> httpx.Response:
    return get(params={"run": str(run), "file": name})


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("steps/000003/rollout.parquet", "application/vnd.apache.parquet"),
        ("pages/step-000003.html", "text/html; charset=utf-8"),
        ("curves.svg", "image/svg+xml"),
    ],
)
def test_what_is_made_for_people_is_given(run: Path, name: str, kind: str) -> None:
    answer = file(run, name)
    assert (answer.status_code, answer.headers["content-type"], answer.text) == (200, kind, name)


@pytest.mark.parametrize(
    "name",
    [
        *("config.yaml", "logs/x.svg", "notes.html", "steps/000004/rollout.parquet", "pages/../config.yaml"),
        *("steps/000003/../../config.yaml", "/etc/passwd", "", "curves.svg\n"),
    ],
)
def test_nothing_else_is(run: Path, name: str) -> None:
    assert file(run, name).status_code == 404


def test_a_folder_that_is_no_run_gives_nothing(run: Path) -> None:
    (run / "config.yaml").write_text("tracking: {}\n")  # somebody else's
    assert file(run, "curves.svg").status_code == 404
    (run / "config.yaml").unlink()
    assert file(run, "curves.svg").status_code == 404


def test_the_server_s_password_is_asked_for_here_too(run: Path) -> None:
    with temporary_settings({PREFECT_SERVER_API_AUTH_STRING: "me:word"}):
        answer = file(run, "curves.svg")
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Basic realm="relax"')
        assert get(params={"run": str(run), "file": "curves.svg"}, auth=("me", "other")).status_code == 401
        assert get(params={"run": str(run), "file": "curves.svg"}, auth=("me", "word")).status_code == 200


def test_other_requests_reach_prefect_and_a_bare_one_says_who_answers(run: Path) -> None:
    assert get("/api/health").status_code == 299
    assert get().text == "relax"


def test_whether_a_run_is_here_is_told(run: Path) -> None:
    assert get(params={"run": str(run)}).text == "relax"
    assert get(params={"run": str(run / "other")}).status_code == 404
    assert get(params={"run": "http://127.0.0.1:1/run"}).status_code == 404


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/run", "simplecache::{run}", "zip://a::{run}", "ftp://127.0.0.1/run"]
)
def test_no_host_that_a_url_names_is_asked(run: Path, url: str) -> None:
    assert get(params={"run": url.format(run=run), "file": "curves.svg"}).status_code == 404


@pytest.mark.parametrize("name", ["curves.svg", "pages/step-000003.html"])
def test_what_is_shown_is_shut_in(run: Path, name: str) -> None:
    policy = file(run, name).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "sandbox" in policy
    assert "allow-same-origin" not in policy
