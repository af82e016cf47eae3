"""When a run's summary is written."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from tasks import artefacts


def test_summaries_of_evaluated_steps_keep_their_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    monkeypatch.setattr(artefacts, "_silent_until", [float("inf")])
    monkeypatch.setattr(artefacts, "_later", lambda write: lambda seconds, made: written.append(made))
    run: Any = SimpleNamespace(total_steps=4, evaluation_due=lambda step: step > 0)
    manifest: dict[str, Any] = {"metrics": {}, "seconds": {}, "wall_seconds": 1.0}
    shows = artefacts.Shown(run, 0)
    shows.step(0, manifest)  # the first one
    shows.step(1, manifest)  # its evaluation is shown, though a summary has just been
    shows._earliest_summary = time.monotonic() + 1000.0  # that took 20 s, which are 2 % of this
    shows.step(2, manifest)
    assert written == [1, 2]
