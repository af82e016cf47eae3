"""Work that asks a judge, and goes on where one of its engines dies.

Guarantee: work that failed is done again, at most ``TRIES`` times in all, when an engine of the judge has been replaced
meanwhile, and only then; every other error is raised at once.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

from data.errors import UserError
from relax_core.rewards.pools import Services
from relax_core.run.session import RunSession

log = logging.getLogger(__name__)

T = TypeVar("T")

TRIES = 3


def asking(run: RunSession, work: Callable[[Services], T], turn: Callable[[], object] = lambda: None) -> T:
    """What ``work`` returns, given the addresses of what it may ask.

    Args:
        turn: called before each try: where devices are shared, the start of an engine takes the others' memory.

    Raises:
        UserError: it raised it, and all engines live, or one has died for the third time.
    """
    services = run.services()
    for _ in range(TRIES - 1):
        turn()
        try:
            return work(services)
        except UserError as error:
            now = run.services()  # an engine that died is replaced, and has another address
            if now == services:
                raise
            log.warning(
                "%s An engine of the judge had died and was replaced; what it left is asked again.", error.problem
            )
            services = now
    turn()
    return work(services)
