"""Messages to people: a run failed, is finished, or goes on after it was stopped (--notify-urls).

Guarantee: an address that Apprise does not know is an error before anything starts; a message that does not arrive is
a warning and never stops a run; no address appears in a message or a log; of what somebody else tells (a new start, the
last of them) nothing is told a second time here.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from data.errors import UserError
from relax_core.config.secrets import redact_text
from relax_core.config.sections import RelaxConfig

log = logging.getLogger(__name__)

LONGEST = 1000
"""Characters of an error in a message."""


def split_urls(text: str | None) -> list[str]:
    """Addresses of Apprise, with commas between them."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def check_urls(urls: Sequence[str], name: str = "--notify-urls") -> None:
    """Find addresses that lead nowhere.

    Args:
        urls: of Apprise.
        name: the option or variable that they are from.

    Raises:
        UserError: the first of them, by its place and kind.
    """
    if not urls:
        return
    import apprise  # here: it takes a second that most runs do not need; it comes with Prefect

    for number, address in enumerate(urls, start=1):
        if not apprise.Apprise().add(address):
            kind = f"{address.partition('://')[0]}://" if "://" in address else "no scheme"
            raise UserError(
                f"{name}: address {number} of {len(urls)} ({kind}...) is none that Apprise knows.",
                "See the list of Apprise, e.g. mailto://, slack://, json://; between addresses stand commas.",
            )


def check_addresses(config: RelaxConfig) -> None:
    """``check_urls`` of a run."""
    check_urls(split_urls(config.tracking.notify_urls))


def notify(config: RelaxConfig, title: str, text: str) -> None:
    """Send a message to all addresses, if there are any."""
    addresses = split_urls(config.tracking.notify_urls)
    if not addresses:
        return
    import apprise

    sender = apprise.Apprise()
    for address in addresses:
        sender.add(address)
    try:
        arrived = sender.notify(title=redact_text(title), body=redact_text(text))
    except Exception as error:  # a message is never worth a run
        log.warning("--notify-urls: the message was not sent (%s)", type(error).__name__)
        return
    if not arrived:
        log.warning("--notify-urls: the message did not reach every address")


@contextmanager
def telling(
    config: RelaxConfig,
    run: str,
    first_step: int,
    outcome: Callable[[], str] = lambda: "",
    restarted: bool = False,
    watched: Callable[[Exception], bool] = lambda error: False,
) -> Iterator[None]:
    """Tell that a run goes on, if it does; that it is finished, when the body is; why it failed, if it fails.

    Args:
        run: its address.
        first_step: the first step that is not finished.
        outcome: one line of what is done so far, asked for at the end.
        restarted: somebody has told that the run is started again.
        watched: whether somebody starts the run again after an error, or tells that this was the last time.
    """
    if first_step and not restarted:
        notify(config, f"Relax goes on with {run}", f"Step {first_step + 1} is next.")
    started = time.monotonic()
    try:
        yield
    except Exception as error:
        if not watched(error):
            told = [f"{type(error).__name__}: {error}"[:LONGEST], outcome()]
            told.append("Nothing finished is lost: mend the cause, and the same command goes on.")
            notify(config, f"Relax failed: {run}", "\n".join(filter(None, told)))
        raise
    took = _duration(time.monotonic() - started)
    notify(config, f"Relax finished {run}", f"{', '.join(filter(None, [outcome(), took]))}. See `relax show {run}`.")


def _duration(seconds: float) -> str:
    """Such as ``1 h 05 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
