"""Pictures of Prefect's interface and of `relax show`, for the documentation: ``python docs/screenshots.py``

Starts everything with homes of its own in a temporary folder (`relax up`), trains the toy to its end as a flow run,
opens the real pages in Debian's chromium, and writes ``docs/pictures/ui*.png``. Needs `make dev`; takes three minutes.

Guarantee: nothing of the person's own services or runs is used or shown, and what was started is ended; a picture is
written once the page shows what it is for, and is smaller than ``LARGEST``.
"""

import argparse
import io
import json
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

PICTURES = ROOT / "docs" / "pictures"
COLOURS = 160
LARGEST = 150_000
WIDTH = 1280
SIDEBAR = 248
"""Pixels that the interface's menu takes at the left."""

Shoot = Callable[[Any], bytes]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--folder", type=Path, help="a new folder to work in, which stays (default: a temporary one)")
    folder = parser.parse_args().folder
    from browsing import browser  # of tests/
    from standing import Standing

    with ExitStack() as stack:
        folder = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relax-")))
        folder.mkdir(parents=True, exist_ok=True)
        chromium = stack.enter_context(browser())
        standing = stack.enter_context(Standing(folder))
        print(f"interface: {standing.ui}", flush=True)
        standing.relax("models", "toy", "models/toy", check=True)
        watched = standing.prefect("deployment", "run", "train/toy", "--watch", timeout=900)
        if watched.returncode != 0:
            sys.exit(watched.stdout[-3000:] + watched.stderr[-3000:])
        standing.relax("show", "runs/toy", "--step", "10", "--html", "rollouts.html", check=True)
        for name, shoot in pictures(standing).items():
            page = chromium.new_page(viewport={"width": WIDTH, "height": 900}, color_scheme="dark")
            size = save(name, shoot(page))
            page.close()
            print(f"docs/pictures/{name}.png  {size / 1000:.0f} kB", flush=True)


def pictures(standing: Any) -> dict[str, Shoot]:
    """Name of each picture, and what takes it."""
    ask = Ask(standing.api)
    run = ask.first("flow_runs", {"deployments": {"name": {"any_": ["toy"]}}, "sort": "START_TIME_DESC"})
    step = ask.first("flow_runs", {"flow_runs": {"name": {"like_": "step-000010"}}})
    table = ask.first("artifacts", {"artifacts": {"type": {"any_": ["table"]}}, "sort": "CREATED_DESC"})
    summary = ask.first("artifacts", {"artifacts": {"type": {"any_": ["markdown"]}}, "sort": "CREATED_DESC"})
    form = ask.first("deployments", {"deployments": {"name": {"any_": ["default"]}}})
    return {
        "ui": lambda page: graph(page, f"{standing.ui}/runs/flow-run/{run['id']}", 560),
        "ui-stages": lambda page: graph(page, f"{standing.ui}/runs/flow-run/{step['id']}", 500),
        "ui-step": lambda page: content(page, f"{standing.ui}/artifacts/artifact/{table['id']}", "reward/mean", 520),
        "ui-summary": lambda page: content(
            page, f"{standing.ui}/artifacts/artifact/{summary['id']}", "Best rollouts", 760
        ),
        "ui-form": lambda page: content(
            page, f"{standing.ui}/deployments/deployment/{form['id']}/run", "--run-dir", 720
        ),
        "ui-refused": lambda page: refused(page, f"{standing.ui}/deployments/deployment/{form['id']}/run"),
        "rollouts": lambda page: rollouts(page, standing.folder / "rollouts.html"),
    }


class Ask:
    """Prefect's API, without a client that would look at this process's settings."""

    def __init__(self, api: str) -> None:
        self._api = api

    def first(self, what: str, wanted: dict[str, Any]) -> dict[str, Any]:
        """The first one that fits a filter."""
        body = json.dumps({"limit": 1, **wanted}).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self._api}/{what}/filter", body, headers)
        with urllib.request.urlopen(request) as answer:
            found: list[dict[str, Any]] = json.load(answer)
        if not found:
            sys.exit(f"the server has none of these {what}: {wanted}")
        return found[0]


def graph(page: Any, address: str, height: int) -> bytes:
    """The upper part of a flow run's page, once its graph is drawn."""
    with page.expect_response(lambda answer: "graph-v2" in answer.url, timeout=60_000):
        page.goto(address)
    page.locator("canvas").first.wait_for(timeout=60_000)
    settled(page)
    return part(page, 0, 0, WIDTH, height)


def content(page: Any, address: str, text: str, height: int) -> bytes:
    """A page without its menu, once it shows ``text``."""
    page.goto(address)
    page.get_by_text(text).first.wait_for(timeout=60_000)
    settled(page)
    return part(page, SIDEBAR, 0, WIDTH - SIDEBAR, height)


def refused(page: Any, address: str) -> bytes:
    """The form, sent empty, and the answer."""
    page.goto(address)
    page.get_by_text("--run-dir").first.wait_for(timeout=60_000)
    page.get_by_role("button", name="Submit").click()
    page.get_by_text("options are wrong").first.wait_for(timeout=60_000)
    settled(page)
    return part(page, SIDEBAR, 400, WIDTH - SIDEBAR, 500)


def rollouts(page: Any, file: Path) -> bytes:
    """The page of `relax show`."""
    page.goto(file.as_uri())
    page.locator(".t").first.wait_for()
    settled(page)
    return part(page, 0, 0, WIDTH, 720)


def settled(page: Any) -> None:
    """Wait for what moves or is still loaded."""
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(2500)


def part(page: Any, x: int, y: int, width: int, height: int) -> bytes:
    """A part of what the window shows, as PNG."""
    taken: bytes = page.screenshot(clip={"x": x, "y": y, "width": width, "height": height})
    return taken


def save(name: str, taken: bytes) -> int:
    """Write a picture with few colours, and return its size in bytes."""
    from PIL import Image

    picture = Image.open(io.BytesIO(taken)).convert("RGB")
    few = picture.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    path = PICTURES / f"{name}.png"
    few.save(path, optimize=True)
    size = path.stat().st_size
    if size > LARGEST:
        sys.exit(f"{path} has {size} bytes, more than {LARGEST}: take less of the page")
    return size


if __name__ == "__main__":
    main()
