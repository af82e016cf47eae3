"""A loss function of the user in an optimiser step: what it gets, and what becomes of its answer.

Guarantee: the function is called with each micro-batch that has a response token, and with no other; what it returns
are sums over samples (with --calculate-per-token-loss over tokens) that are divided by those of the whole optimiser
step, so that neither loss nor metric depends on micro-batches and ranks; an answer of another form is an error that
names the option. Importing this module needs no Megatron.
"""

from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data.errors import UserError
from relax_core.algorithms.logprobs import CHUNK_BYTES
from relax_core.algorithms.reduce import summed
from relax_core.config.sections import RelaxConfig
from relax_core.training.batch import Columns, MicroBatch, TrainingBatch
from relax_core.training.loss import Scores, weigh

OPTION = "--custom-loss-function-path"

CustomLoss = Callable[[dict[str, Any], Tensor, Callable[[Tensor], Tensor]], Any]
"""``(batch, logits, sum_of_sample_mean) -> (loss, metrics)``: the user's function with its ``args`` filled in."""

Gather = Callable[[Any], Sequence[Any]]
"""From a rank's small value to those of the ranks whose parts of the loss add up, on every rank."""

RESERVED = ("grad_norm", "lr", "tokens", "loss_scale", "skipped_steps")
"""Names of metrics that every update has. (``loss`` is always what the function returned.)"""


def _alone(value: Any) -> list[Any]:
    return [value]


class StepCustomLoss:
    """The loss of one optimiser step; its readout gives logits.

    Args:
        samples: first and last + 1 sample of the step: consecutive samples of the batch.
        function: of the user.
        gather: over ranks. Default: there is one.

    Attributes:
        sums, largest: as of every step; the function's metrics are known only when it has been called, and are added
            up by ``metrics``.
    """

    sums: tuple[str, ...] = ("loss",)
    largest: tuple[str, ...] = ()

    def __init__(
        self,
        config: RelaxConfig,
        batch: TrainingBatch,
        scores: Scores,
        samples: tuple[int, int],
        function: CustomLoss,
        gather: Gather = _alone,
    ) -> None:
        self._batch, self._function, self._gather = batch, function, gather
        self._per_token = config.optimizer.calculate_per_token_loss
        self._size, self.weights = weigh(batch, samples, per_token=self._per_token)
        self._with_advantages = not config.algorithm.disable_compute_advantages_and_returns
        given = _columns(batch, scores, self._with_advantages)
        self._given, self._columns = tuple(given), Columns(weights=self.weights, mask=batch.mask, **given)
        self._own: dict[str, Tensor] | None = None

    def __call__(self, logits: Tensor, micro: MicroBatch) -> tuple[Tensor, Tensor, Tensor]:
        """A micro-batch's part of the loss.

        Args:
            logits: float32 [r, vocabulary] of its response tokens, divided by the temperature; carry the gradient.
            micro: where these tokens come from.

        Returns:
            The loss to differentiate, and as float64 [1] and [0] what is summed and of what the largest counts.

        Raises:
            UserError: the function gave something else than it should.
        """
        nothing = torch.zeros(0, dtype=torch.float64, device=logits.device)
        if not len(micro.rows):  # a dummy, or responses without a token
            return logits.sum(), nothing.new_zeros(1), nothing
        lengths = torch.diff(micro.response_offsets).tolist()
        reduce = summed(self._columns.take("weights", micro.places), self._size, per_token=self._per_token)

        def sum_of_sample_mean(values: Tensor) -> Tensor:
            if not isinstance(values, Tensor) or values.shape != micro.targets.shape:
                found = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
                raise _wrong(f"gave sum_of_sample_mean {found} for {len(micro.targets)} response tokens")
            return reduce(values)

        result = self._function(self._inputs(logits, micro, lengths), logits, sum_of_sample_mean)
        loss, metrics = _checked(result, logits, [self._batch.sample_ids[i] for i in micro.samples])
        self._add(metrics)
        loss = loss / self._size.divisor(self._per_token)
        return loss, loss.detach().double().reshape(1), nothing

    def metrics(self, sums: Mapping[str, float], largest: Mapping[str, float]) -> dict[str, float]:
        """The step's metrics: the function's, as means over samples (or tokens), and ``loss``. Collective.

        Raises:
            UserError: ranks on which the function gave other metrics.
        """
        own = None if self._own is None else {name: value.item() for name, value in self._own.items()}
        totals: dict[str, float] | None = None
        for part in self._gather(own):
            if part is None:
                continue
            totals = part if totals is None else _added(totals, part)
        divisor = self._size.divisor(self._per_token)
        return {**{name: value / divisor for name, value in (totals or {}).items()}, "loss": sums["loss"]}

    def _inputs(self, logits: Tensor, micro: MicroBatch, lengths: list[int]) -> dict[str, Any]:
        """What the function gets as ``batch``."""
        samples = micro.samples
        ids = [torch.from_numpy(self._batch.tokens[i].astype(np.int64)).to(logits.device) for i in samples]
        inputs: dict[str, Any] = {
            "sample_ids": [self._batch.sample_ids[i] for i in samples],
            "tokens": ids,
            "response_tokens": list(micro.targets.split(lengths)),
            "total_lengths": list(micro.total_lengths),
            "response_lengths": lengths,
            "loss_masks": list(self._columns.take("mask", micro.places).int().split(lengths)),
        }
        for name in self._given:
            inputs[name] = list(self._columns.take(name, micro.places).split(lengths))
        if self._with_advantages and "log_probs" not in inputs:  # the current policy is the old one
            inputs["log_probs"] = list(_picked(logits.detach(), micro.targets).split(lengths))
        return inputs

    def _add(self, metrics: dict[str, Tensor]) -> None:
        self._own = metrics if self._own is None else _added(self._own, metrics)


def _columns(batch: TrainingBatch, scores: Scores, with_advantages: bool) -> dict[str, Tensor]:
    """[R] of each column that there is, under the name that a function of the user knows it by."""
    found: dict[str, Tensor | None] = {
        "log_probs": scores.old,
        "ref_log_probs": scores.reference,
        "rollout_log_probs": batch.rollout_log_probs,
        "teacher_log_probs": batch.stored.get("teacher_log_probs"),
        "values": batch.stored.get("values"),
    }
    if with_advantages:
        found |= {"advantages": batch.advantages, "returns": batch.returns}
    return {name: values for name, values in found.items() if values is not None}


def _picked(logits: Tensor, targets: Tensor) -> Tensor:
    """[r] log-probability of each target, some rows at a time."""
    rows = max(CHUNK_BYTES // (4 * max(logits.shape[1], 1)), 1)  # 4: float32
    parts = zip(logits.split(rows), targets.split(rows), strict=True)
    return torch.cat([z.gather(1, ids[:, None]).squeeze(1) - z.logsumexp(1) for z, ids in parts])


def _checked(result: Any, logits: Tensor, sample_ids: list[str]) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss as a scalar, and the metrics as detached float64 scalars."""
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise _wrong(f"returned {type(result).__name__}, not a pair")
    loss, metrics = result
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = f"of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"{loss!r}, which is no tensor"
        raise _wrong(f"returned a loss {found}")
    if torch.is_grad_enabled() and logits.requires_grad and not loss.requires_grad:
        raise _wrong("returned a loss that has no gradient")
    if not torch.isfinite(loss).all():
        shown = ", ".join(sample_ids[:3]) + (", ..." if len(sample_ids) > 3 else "")
        raise _wrong(f"returned the loss {loss.item()} for the samples {shown}")
    if not isinstance(metrics, Mapping):
        raise _wrong(f"returned metrics of type {type(metrics).__name__}")
    return loss.reshape(()), {name: _number(name, value, logits.device) for name, value in metrics.items()}


def _number(name: Any, value: Any, device: torch.device) -> Tensor:
    if not isinstance(name, str) or name in RESERVED:
        raise _wrong(f"returned a metric of the name {name!r}, which is {'taken' if name in RESERVED else 'no text'}")
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        return value.detach().double().reshape(()).to(device)
    if isinstance(value, Real):
        return torch.tensor(float(value), dtype=torch.float64, device=device)
    found = f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
    raise _wrong(f"returned the metric '{name}' as {found}, which is no number")


def _added(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    """Sums of metrics; both must have the same."""
    if left.keys() != right.keys():
        names = ", ".join(sorted(left.keys() ^ right.keys()))
        raise _wrong(f"gave a metric for some micro-batches only: {names}")
    return {name: value + right[name] for name, value in left.items()}


def _wrong(what: str) -> UserError:
    return UserError(
        f"The function of {OPTION} {what}.",
        "It returns (loss, metrics): a loss made of logits by sum_of_sample_mean, and a dictionary of such sums, the"
        " same ones in every call.",
    )
