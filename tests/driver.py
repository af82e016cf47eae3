"""A driver that kills itself: ``python tests/driver.py CONFIG.json STEP:STAGE:WHEN`` runs the flow and, at that stage,
sends itself a real SIGKILL. WHEN is ``enter``, ``leave`` or milliseconds after entering. Without a plan it runs to
the end.
"""

import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from flows.train import train
from relax_core.config import RelaxConfig
from relax_core.tracking.progress import Progress

real_stage = Progress.stage


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def install(plan: str) -> None:
    step, stage, when = plan.split(":")

    @contextlib.contextmanager
    def stage_that_dies(self: Progress, number: int, name: str) -> Iterator[None]:
        here = (number, name) == (int(step), stage)
        if here and when == "enter":
            die()
        if here and when.isdigit():
            threading.Timer(int(when) / 1000, die).start()
        with real_stage(self, number, name):
            yield
        if here and when == "leave":
            die()

    Progress.stage = stage_that_dies  # type: ignore[method-assign]


if __name__ == "__main__":
    if len(sys.argv) > 2:
        install(sys.argv[2])
    train(RelaxConfig.model_validate(json.loads(Path(sys.argv[1]).read_text())))
