"""The schedule of learning rate and weight decay, from our options.

Guarantee: it counts optimiser steps and follows the options, not what a checkpoint was made with. As in Megatron the
warm-up goes in a straight line from --lr-warmup-init, 0 by default: step n (from 0) of a warm-up of w steps from 0 has
the learning rate lr n / w.
"""

from typing import Any

from data.errors import UserError
from relax_core.config.sections import RelaxConfig
from relax_core.training.megatron import OptimizerParamScheduler
from relax_core.training.work import steps_per_rollout


def build_schedule(config: RelaxConfig, optimizer: Any) -> Any:
    """The learning rate and weight decay of every optimiser step; they change over the whole run.

    Raises:
        UserError: options that contradict each other, a warm-up that is not shorter than the decay, or a change over a
            run of unknown length.
    """
    options, more = config.optimizer, config.megatron
    total = (config.rollout.num_rollout or 0) * steps_per_rollout(config)
    decay = more.lr_decay_iters or total
    if not decay and options.lr_decay_style != "constant":
        raise _needs_length("--lr-decay-style", options.lr_decay_style)
    if not total and more.weight_decay_incr_style != "constant":
        raise _needs_length("--weight-decay-incr-style", more.weight_decay_incr_style)
    warmup = _warmup(config, decay)
    if options.min_lr > options.lr:
        raise UserError(f"--min-lr {options.min_lr} is above --lr {options.lr}.", "Give a lower --min-lr.")
    if more.lr_warmup_init > options.lr:
        raise UserError(f"--lr-warmup-init {more.lr_warmup_init} is above --lr {options.lr}.", "Give a lower one.")
    first, last = _weight_decays(config)
    return OptimizerParamScheduler(
        optimizer,
        init_lr=more.lr_warmup_init,
        max_lr=options.lr,
        min_lr=options.min_lr,
        lr_warmup_steps=warmup,
        lr_decay_steps=decay or warmup + 1,
        lr_decay_style=options.lr_decay_style,
        start_wd=first,
        end_wd=last,
        wd_incr_steps=total or 1,
        wd_incr_style=more.weight_decay_incr_style,
        wsd_decay_steps=_last_phase(config, decay),
        lr_wsd_decay_style=more.lr_wsd_decay_style,
    )


def _needs_length(flag: str, value: str) -> UserError:
    return UserError(f"{flag} {value} needs the length of the run.", "Give --num-rollout.")


def _warmup(config: RelaxConfig, decay: int) -> float:
    """Optimiser steps of the warm-up; a share of the decay need not be whole."""
    iterations, share = config.optimizer.lr_warmup_iters, config.megatron.lr_warmup_fraction
    if share is not None:
        if iterations:
            raise UserError("--lr-warmup-fraction and --lr-warmup-iters both say how long the warm-up is.", "Give one.")
        if not decay:
            raise _needs_length("--lr-warmup-fraction", str(share))
        if share >= 1:
            raise UserError(f"--lr-warmup-fraction {share} leaves no step behind the warm-up.", "Give less than 1.")
        return share * decay
    if decay and iterations >= decay:
        what = "--lr-decay-iters" if config.megatron.lr_decay_iters else "the run's"
        raise UserError(
            f"--lr-warmup-iters {iterations} is not less than {what} {decay} optimiser steps.",
            "Give fewer warm-up steps, or a longer run or decay.",
        )
    return iterations


def _last_phase(config: RelaxConfig, decay: int) -> int | None:
    """Optimiser steps of the last phase of WSD, in which the rate goes down."""
    if config.optimizer.lr_decay_style != "WSD":
        return None
    steps = config.megatron.lr_wsd_decay_iters
    if steps is None or steps > decay:
        value = "" if steps is None else f" {steps} is more than the decay's {decay} optimiser steps, and"
        raise UserError(
            f"--lr-wsd-decay-iters{value} is what --lr-decay-style WSD needs: the steps in which the rate goes down.",
            f"Give 1 to {decay}.",
        )
    return steps


def _weight_decays(config: RelaxConfig) -> tuple[float, float]:
    """The first and the last weight decay."""
    more, constant = config.megatron, config.optimizer.weight_decay
    first, last = more.start_weight_decay, more.end_weight_decay
    if more.weight_decay_incr_style == "constant":
        if any(value not in (None, constant) for value in (first, last)):
            raise UserError(
                "--start-weight-decay and --end-weight-decay need --weight-decay-incr-style linear or cosine.",
                "Add it, or give --weight-decay alone.",
            )
        return constant, constant
    first, last = (constant if value is None else value for value in (first, last))
    if last < first:
        raise UserError(f"--end-weight-decay {last} is below the first one, {first}.", "Megatron only raises it.")
    return first, last
