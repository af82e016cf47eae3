"""Passes of the model over micro-batches, through Megatron's pipeline schedules.

Guarantee: sequences are packed without padding and logits exist for response tokens only. Both passes are collective:
every rank calls them with its own micro-batches, of which all ranks have the same number.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from relax_core.algorithms.logprobs import CHUNK_BYTES, token_log_probs
from relax_core.config.sections import RelaxConfig
from relax_core.training.batch import MicroBatch, TrainingBatch
from relax_core.training.distributed import Layout, max_over_ranks, sum_over_ranks
from relax_core.training.loss import StepLoss
from relax_core.training.megatron import get_forward_backward_func, mpu
from relax_core.training.model import hidden_rows, lm_head_weight
from relax_core.training.work import MicroBatches


class Passes:
    """Passes of one model.

    Args:
        model: the policy in Megatron's data-parallel wrapper.
        device: where micro-batches go.
    """

    def __init__(self, config: RelaxConfig, model: torch.nn.Module, layout: Layout, device: torch.device) -> None:
        self._config, self._model, self._layout, self._device = config, model, layout, device

    @torch.no_grad()
    def score(self, batch: TrainingBatch, micro_batches: MicroBatches) -> Tensor:
        """Log-probability of every response token under the present weights.

        Args:
            micro_batches: those of this rank.

        Returns:
            float32 [R] on the CPU, on every rank.
        """
        log_probs = torch.zeros(batch.num_response_tokens)

        def loss(micro: MicroBatch, hidden: Tensor) -> tuple[Tensor, Tensor, None]:
            values, _ = self._score(micro, hidden, with_entropy=False, entropy_grad=False)
            log_probs[micro.flat] = values.cpu()
            return values.new_zeros(()), torch.zeros((), dtype=torch.int, device=hidden.device), None

        self._run(batch, micro_batches, loss, forward_only=True)
        return sum_over_ranks(log_probs.to(self._device)).cpu()

    def gradient(
        self, batch: TrainingBatch, learn: MicroBatches, watch: MicroBatches, step: StepLoss
    ) -> dict[str, float]:
        """Forward and backward of one optimiser step; gradients are then in the model's buffers, reduced over ranks.

        Args:
            learn: this rank's micro-batches.
            watch: further ones, of samples without a gradient: forward only, for the metrics.

        Returns:
            The step's metrics, the same on every rank.
        """
        sums, largest = (
            torch.zeros(len(names), dtype=torch.float64, device=self._device) for names in (step.sums, step.largest)
        )

        def loss(micro: MicroBatch, hidden: Tensor) -> tuple[Tensor, Tensor, None]:
            log_probs, entropy = self._score(micro, hidden, with_entropy=True, entropy_grad=step.entropy_grad)
            assert entropy is not None
            value, parts, peaks = step(log_probs, entropy, micro)
            sums.add_(parts)
            torch.maximum(largest, peaks, out=largest)
            if not len(micro.rows) and hidden.requires_grad:  # a dummy has no row that leads back to the model
                value = value + hidden[:1].sum() * 0
            return value, torch.zeros((), dtype=torch.int, device=hidden.device), None

        if learn:
            self._run(batch, learn, loss, forward_only=False)
        if watch:
            with torch.no_grad():
                self._run(batch, watch, loss, forward_only=True)
        totals, peak = sum_over_ranks(sums).tolist(), max_over_ranks(largest).tolist()
        return step.metrics(dict(zip(step.sums, totals, strict=True)), dict(zip(step.largest, peak, strict=True)))

    def _run(
        self,
        batch: TrainingBatch,
        micro_batches: MicroBatches,
        loss: Callable[[MicroBatch, Tensor], Any],
        forward_only: bool,
    ) -> None:
        def forward(
            source: Iterator[MicroBatch], model: torch.nn.Module
        ) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor, Tensor, None]]]:
            micro = next(source)
            return model(micro.tokens, micro.lengths), partial(loss, micro)

        get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=(batch.micro_batch(samples, self._device) for samples in micro_batches),
            model=self._model,
            num_microbatches=len(micro_batches),
            seq_length=self._layout.tp_size,  # stages tell each other the real sizes
            micro_batch_size=1,
            forward_only=forward_only,
        )

    def _score(
        self, micro: MicroBatch, hidden: Tensor, *, with_entropy: bool, entropy_grad: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probs [r], and the entropies, of a micro-batch's response tokens from the last stage's result."""
        weight = lm_head_weight(self._model)
        self._await(weight)
        return token_log_probs(
            hidden_rows(self._model, hidden, micro.rows),
            weight,
            micro.targets,
            temperature=self._config.rollout.rollout_temperature,
            group=mpu.get_tensor_model_parallel_group(),
            chunk_size=self._chunk_rows(weight),
            with_entropy=with_entropy,
            entropy_grad=entropy_grad,
        )

    def _chunk_rows(self, weight: Tensor) -> int:
        """Rows whose logits exist at once; a number keeps nothing of them for the backward pass, -1 may."""
        options = self._config.training
        if options.log_probs_chunk_size <= 0 and options.recompute_loss_function:
            return max(CHUNK_BYTES // (4 * weight.shape[0]), 1)  # 4: float32
        return options.log_probs_chunk_size

    def _await(self, weight: Tensor) -> None:
        """Wait for the other ranks' parts of a weight that no module's forward pass, where Megatron waits, uses."""
        groups: Any = self._model
        if groups.ddp_config.overlap_param_gather and weight in groups.param_to_bucket_group:
            groups.param_to_bucket_group[weight].finish_param_sync()
