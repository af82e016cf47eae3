"""What can go wrong with an engine.

Guarantee: each error names the engine, and each is a ``UserError``: a person sees cause and fix, not a traceback.
"""

from data.errors import Lost, NotStarted, UserError


class EngineStartError(NotStarted):
    """An engine did not come up: it died, or did not answer in time. ``details`` holds the end of its log."""


class EngineUnavailable(Lost):
    """An engine stopped answering, or answered what no engine answers; a request in flight at it is lost."""


class EngineRefused(UserError):
    """A living engine refused a request: HTTP status 4xx or ``success: false``, with its own message."""
