"""Messages to people: a run failed, or goes on after it was stopped (--notify-urls).

Guarantee: an address that Apprise does not know is an error before anything starts; a message that does not arrive is
a warning and never stops a run; no address appears in a message or a log.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from data.errors import UserError
from relax_core.config.sections import RelaxConfig

log = logging.getLogger(__name__)


def _addresses(config: RelaxConfig) -> list[str]:
    return [part.strip() for part in (config.tracking.notify_urls or "").split(",") if part.strip()]


def check_addresses(config: RelaxConfig) -> None:
    """Find addresses that lead nowhere.

    Raises:
        UserError: the first of them, by its place and kind.
    """
    addresses = _addresses(config)
    if not addresses:
        return
    import apprise  # here: it takes a second that most runs do not need; it comes with Prefect

    for number, address in enumerate(addresses, start=1):
        if not apprise.Apprise().add(address):
            kind = f"{address.partition('://')[0]}://" if "://" in address else "no scheme"
            raise UserError(
                f"--notify-urls: address {number} of {len(addresses)} ({kind}...) is none that Apprise knows.",
                "See the list of Apprise, e.g. mailto://, slack://, json://; between addresses stand commas.",
            )


def notify(config: RelaxConfig, title: str, text: str) -> None:
    """Send a message to all addresses, if there are any."""
    addresses = _addresses(config)
    if not addresses:
        return
    import apprise

    sender = apprise.Apprise()
    for address in addresses:
        sender.add(address)
    try:
        arrived = sender.notify(title=title, body=text)
    except Exception as error:  # a message is never worth a run
        log.warning("--notify-urls: the message was not sent (%s)", type(error).__name__)
        return
    if not arrived:
        log.warning("--notify-urls: the message did not reach every address")


@contextmanager
def telling(config: RelaxConfig, run: str, first_step: int) -> Iterator[None]:
    """Tell that a run goes on, if it does, and, when the body fails, why.

    Args:
        run: its address.
        first_step: the first step that is not finished.
    """
    if first_step:
        notify(config, f"Relax goes on with {run}", f"Step {first_step + 1} is next.")
    try:
        yield
    except Exception as error:
        notify(config, f"Relax failed: {run}", f"{type(error).__name__}: {error}")
        raise
