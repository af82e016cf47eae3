"""One flow run a run directory: a second one waits.

Guarantee: nothing of the run is touched before its driver's claim is ours (``relax_core.run.lock``); the wait ends with
the other driver, however that ends, and is shown as the state ``Waiting`` meanwhile. Of several that wait any one may
be the next.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from flows.deployed.own import say
from relax_core.run.lock import Driven

LOOK_SECONDS = 3.0
"""Between two tries."""

log = logging.getLogger(__name__)
T = TypeVar("T")


def in_turn(work: Callable[[], T], look_seconds: float = LOOK_SECONDS) -> T:
    """What ``work`` returns, tried until no other process drives its run."""
    waits = False
    while True:
        try:
            return work()
        except Driven as held:
            if not waits:
                waits = True
                log.warning("%s This flow run waits for it.", held.problem)
                say("Waiting", f"{held.problem} This flow run waits for it.")
            time.sleep(look_seconds)
