"""Why a trainer refuses a call.

Guarantee: whoever catches one of these knows that the refused call changed nothing, except for ``DirtyTrainer``, which
says that an earlier one may have. They travel between processes and arrive as themselves.
"""

from typing import Any

from data.errors import Lost, UserError


class VersionMismatch(UserError):
    """The trainer is not at the version that the call starts from.

    Args:
        wanted: version that the caller took as the base.
        actual: version of the trainer's weights.
        reason: what else differs, when the versions alone do not explain it.
    """

    def __init__(self, wanted: int, actual: int, reason: str = "") -> None:
        super().__init__(
            f"The trainer's weights have version {actual}; the call needs version {wanted}{reason and ': '}{reason}.",
            "Bring the trainer to that version first: load a checkpoint, or train again on the stored batches.",
        )
        self.wanted, self.actual, self.reason = wanted, actual, reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.wanted, self.actual, self.reason)


class DirtyTrainer(Lost):
    """An update failed after it had begun, so the weights belong to no version.

    Args:
        cause: what failed.
    """

    def __init__(self, cause: str) -> None:
        super().__init__(
            f"An update of the trainer failed halfway ({cause}), so its weights belong to no version.",
            "Load a checkpoint or initialise it again.",
        )
        self.cause = cause

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.cause,)


class StaleDriver(UserError):
    """A newer driver has taken over the trainer.

    Args:
        epoch: of the driver that called; current: of the driver that owns the trainer.
    """

    def __init__(self, epoch: int, current: int) -> None:
        super().__init__(
            f"Another process took over this run's trainer (driver {current}; this is driver {epoch}).",
            "Only one process may drive a run: end this one, or the other and start again.",
        )
        self.epoch, self.current = epoch, current

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.epoch, self.current)


class SliceRefused(UserError):
    """A slice of a batch was not taken; what has been accumulated is as it was, and the update can do without.

    Args:
        reason: what is wrong with it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"The trainer does not take this slice ahead of its batch: {reason}.", "Train on the stored batch."
        )
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.reason,)


class NonFiniteUpdate(UserError):
    """Loss or gradient is not a finite number; the optimiser step was not applied.

    Args:
        target: version that the update was to make.
        update: optimiser step within the rollout step, from 0.
        loss: its loss.
        grad_norm: norm of its gradient; None when the loss already told.
    """

    def __init__(self, target: int, update: int, loss: float, grad_norm: float | None) -> None:
        norm = "" if grad_norm is None else f", gradient norm {grad_norm}"
        super().__init__(
            f"The update of step {target - 1} (optimiser step {update} of it) is not finite: loss {loss}{norm}. "
            "It was not applied.",
            "Look at the step's batch.parquet for extreme log-probs or advantages; a new run may need a lower --lr.",
        )
        self.target, self.update, self.loss, self.grad_norm = target, update, loss, grad_norm

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.target, self.update, self.loss, self.grad_norm)
