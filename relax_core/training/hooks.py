"""Functions of the user in the loss: an importance correction, a reduction of the policy loss, or the loss itself.

Guarantee: each is loaded, and checked to be callable as it will be, before anything starts; what it raises is an error
that names its option. Another source of one is another identity of the update. Importing this module needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from data.errors import UserError
from relax_core.config.options import as_namespace
from relax_core.config.sections import RelaxConfig
from relax_core.functions import UserFunction, load_function

if TYPE_CHECKING:
    from relax_core.algorithms.corrections import CorrectionFunction
    from relax_core.algorithms.reduce import ReducerFactory
    from relax_core.training.custom_loss import CustomLoss

_CORRECTION_GETS = (
    "pg_loss",
    "train_log_probs",
    "rollout_log_probs",
    "loss_masks",
    "total_lengths",
    "response_lengths",
)
_CORRECTION = f"correct(args, *, {', '.join(_CORRECTION_GETS)})"
_REDUCER = "reducer(total_lengths, response_lengths, loss_masks, per_token)"
_LOSS = "loss(args, batch, logits, sum_of_sample_mean)"


@dataclass(frozen=True)
class LossFunctions:
    """Functions of the user as the loss takes them; None where none is given."""

    correction: CorrectionFunction | None = None
    reducer: ReducerFactory | None = None
    loss: CustomLoss | None = None


def loss_functions(config: RelaxConfig) -> LossFunctions:
    """Load them for use.

    Raises:
        UserError: one is missing or cannot be called as it will be; later, when it fails.
    """
    from relax_core.algorithms.corrections import user_correction
    from relax_core.algorithms.reduce import with_options

    args, correction, reducer, loss = as_namespace(config), _correction(config), _reducer(config), _loss(config)
    return LossFunctions(
        correction=None if correction is None else user_correction(_told(correction, correction.call), args),
        reducer=None if reducer is None else _told_twice(reducer, with_options(reducer.call, args)),
        loss=None if loss is None else _told(loss, partial(loss.call, args)),
    )


def check_loss_functions(config: RelaxConfig) -> None:
    """Load every function, so that a mistake in one is found before an engine starts.

    Raises:
        UserError: as ``loss_functions``.
    """
    loss_sources(config)


def loss_sources(config: RelaxConfig) -> dict[str, str]:
    """The sources of the functions that decide the update, for the identity of that stage."""
    functions = [_correction(config), _reducer(config), _loss(config)]
    return {function.option: function.source_hash for function in functions if function is not None}


def _correction(config: RelaxConfig) -> UserFunction | None:
    path, option = config.algorithm.custom_tis_function_path, "--custom-tis-function-path"
    return None if not path else _plain(load_function(path, option, _CORRECTION, 1, keywords=_CORRECTION_GETS))


def _reducer(config: RelaxConfig) -> UserFunction | None:
    path, option = config.algorithm.custom_pg_loss_reducer_function_path, "--custom-pg-loss-reducer-function-path"
    return None if not path else _plain(load_function(path, option, _REDUCER, 4))


def _loss(config: RelaxConfig) -> UserFunction | None:
    path, option = config.algorithm.custom_loss_function_path, "--custom-loss-function-path"
    return None if not path else _plain(load_function(path, option, _LOSS, 4))


def _plain(function: UserFunction) -> UserFunction:
    if function.is_async:
        raise UserError(f"{function.name} is a coroutine function.", "Define it with `def`.")
    return function


def _told(function: UserFunction, call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, with its failure told as the user's."""

    def guarded(*arguments: Any, **named: Any) -> Any:
        try:
            return call(*arguments, **named)
        except UserError:
            raise
        except Exception as error:
            raise function.failure("in the loss", error) from error

    return guarded


def _told_twice(function: UserFunction, factory: Callable[..., Any]) -> Callable[..., Any]:
    """As ``_told``, also for the function that the call gives."""

    def guarded(*arguments: Any) -> Any:
        made = _told(function, factory)(*arguments)
        return _told(function, made) if callable(made) else made

    return guarded
