"""Errors of the trainer that its caller can act on. Importing this module needs nothing heavy."""

from data.errors import UserError


class VersionMismatch(UserError):
    """A call was made for another version than the trainer has: the caller reconciles and calls again.

    Attributes:
        wanted: version that the call expected.
        actual: version that the trainer has.
    """

    def __init__(self, wanted: int, actual: int, reason: str = "") -> None:
        why = f" ({reason})" if reason else ""
        super().__init__(f"The call expects the trainer at version {wanted}, it is at {actual}{why}.")
        self.args = (wanted, actual, reason)
        self.wanted, self.actual = wanted, actual


class StaleDriver(UserError):
    """A driver that another one has superseded made a call."""

    def __init__(self, epoch: int, current: int) -> None:
        super().__init__(
            f"This driver (epoch {epoch}) was superseded by another one (epoch {current}).",
            "Only the newest `relax train` of a run goes on.",
        )
        self.args = (epoch, current)


class DirtyTrainer(UserError):
    """An update failed half-way: the trainer refuses everything but ``load`` and ``initialise``."""
