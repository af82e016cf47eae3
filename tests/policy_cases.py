"""Random batches of samples for the objectives, cut into micro-batches in any way.

Guarantee: a token's log-probability and entropy are the same bits however the batch is cut, so that what differs
between two cuts is the objective's doing; gradients come back per token, in the order of the batch, and for a vector
of parameters that all tokens share.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from relax_core.algorithms.assemble import PolicyObjective, SupervisedObjective, ValueObjective
from relax_core.algorithms.kl import KL_KINDS
from relax_core.algorithms.loss_parts import LossOptions, LossParts, Tokens
from relax_core.algorithms.reduce import StepSize, sample_token_counts, step_weights
from relax_core.algorithms.registry import get_estimator
from relax_core.algorithms.sequences import Sequences

COLUMNS = ("old", "ref", "rollout", "train", "advantage")


OPTIONS = st.builds(
    LossOptions,
    eps_clip=st.sampled_from([0.2, 0.1]),
    eps_clip_high=st.sampled_from([None, 0.28]),
    eps_clip_c=st.sampled_from([None, 1.5]),
    sapo_tau_pos=st.sampled_from([1.0, 2.0]),
    sapo_tau_neg=st.sampled_from([1.05, 0.5]),
    entropy_coef=st.sampled_from([0.0, 0.1]),
    kl_loss_coef=st.sampled_from([0.0, 0.2]),
    kl_loss_type=st.sampled_from(KL_KINDS),
    use_unbiased_kl=st.booleans(),
    use_opsm=st.booleans(),
    opsm_delta=st.sampled_from([0.0, 0.1]),
    use_tis=st.booleans(),
    tis_clip=st.just(1.5),
    tis_clip_low=st.sampled_from([0.0, 0.7]),
    calculate_per_token_loss=st.booleans(),
)
"""Options of a policy's objective, every term on and off."""


def offsets_of(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *torch.tensor(list(lengths), dtype=torch.int64).cumsum(0).tolist()])


@dataclasses.dataclass
class Result:
    """Of a whole step; ``gradient`` of the shared parameters, the others [T] in the order of the batch."""

    loss: float
    by_log_prob: Tensor
    by_entropy: Tensor
    gradient: Tensor
    metrics: dict[str, float]


class Case:
    """Samples of these lengths.

    Args:
        lengths: response tokens of each sample.
        seed: of all numbers.
        dtype: of the policy's log-probabilities; ``columns`` of the others.
        spread: standard deviation of a log-ratio.
        masked: part of the tokens that is masked; what the other columns hold there is NaN.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        seed: int,
        dtype: torch.dtype = torch.float32,
        columns: torch.dtype | None = None,
        spread: float = 0.4,
        masked: float = 0.3,
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.lengths, total = list(lengths), sum(lengths)
        self.offsets = offsets_of(self.lengths)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        base = -0.2 - draw(total).abs()
        kind = columns or dtype
        self.mask = torch.rand(total, generator=generator) >= masked
        self.new = torch.where(self.mask, base, torch.nan).to(dtype)
        self.entropy = torch.where(self.mask, draw(total).abs(), torch.nan).to(dtype)
        rows = {name: (draw(total) if name == "advantage" else base + spread * draw(total)) for name in COLUMNS}
        flat = torch.rand(total, generator=generator) < 0.15  # some advantages are exactly 0
        rows["advantage"] = torch.where(flat, 0.0, rows["advantage"])
        self.columns = {name: torch.where(self.mask, row, torch.nan).to(kind) for name, row in rows.items()}
        self.features = draw(total, 5).to(dtype)
        self.size = StepSize(len(self.lengths), int(self.mask.sum()))

    def rows(self) -> list[list[dict[str, float]]]:
        """The samples for the plain loops."""
        named = {"new": self.new, "entropy": self.entropy, "mask": self.mask, **self.columns}
        lists = {name: column.double().tolist() for name, column in named.items()}
        bounds = self.offsets.tolist()
        return [
            [{name: column[t] for name, column in lists.items()} for t in range(bounds[i], bounds[i + 1])]
            for i in range(len(self.lengths))
        ]

    def places(self, samples: Sequence[int]) -> Tensor:
        """Places of the samples' tokens."""
        parts = [torch.arange(int(self.offsets[i]), int(self.offsets[i + 1])) for i in samples]
        return torch.cat([torch.zeros(0, dtype=torch.int64), *parts])

    def policy(
        self, micro_batches: Sequence[Sequence[int]], estimator: str, options: LossOptions, kl: bool = True, **more: Any
    ) -> Result:
        """The policy's objective over micro-batches of sample numbers."""
        objective = PolicyObjective(get_estimator(estimator), options, self.size, **more)
        parts = [self._part(self.places(samples), [self.lengths[i] for i in samples]) for samples in micro_batches]
        return self._run(parts, lambda *part: objective(self.tokens(*part, options, kl=kl)), objective.finish)

    def step_tokens(self, options: LossOptions) -> Tokens:
        """All samples of the step, without a gradient."""
        everything = self.places(range(len(self.lengths)))
        return self.tokens(everything, Sequences(self.offsets), None, self.new, self.entropy, options)

    def tokens(
        self,
        at: Tensor,
        sequences: Sequences,
        counts: Tensor | None,
        new: Tensor,
        entropy: Tensor,
        options: LossOptions,
        kl: bool = True,
    ) -> Tokens:
        own = {name: column[at] for name, column in self.columns.items()}
        weights = self._weights(at, sequences, counts, options.calculate_per_token_loss)
        return Tokens(
            log_probs=new,
            entropy=entropy,
            advantages=own["advantage"],
            mask=self.mask[at],
            weights=weights,
            sequences=sequences,
            old_log_probs=own["old"],
            ref_log_probs=own["ref"] if kl else None,
            rollout_log_probs=own["rollout"],
            train_log_probs=own["train"],
            total_lengths=[n + 3 for n in torch.diff(sequences.offsets).tolist()],
        )

    def value(self, micro_batches: Sequence[Sequence[int]], value_clip: float, per_token: bool) -> Result:
        """The critic's objective: ``new`` are its values, ``old`` the old ones, ``ref`` the returns."""
        parts = [self._part(self.places(samples), [self.lengths[i] for i in samples]) for samples in micro_batches]
        objective = ValueObjective(LossOptions(value_clip=value_clip))
        return self._run(parts, self.value_part(objective, per_token), objective.finish)

    def supervised(self, micro_batches: Sequence[Sequence[int]], per_token: bool) -> Result:
        """The supervised objective."""
        parts = [self._part(self.places(samples), [self.lengths[i] for i in samples]) for samples in micro_batches]
        objective = SupervisedObjective()
        return self._run(parts, self.supervised_part(objective, per_token), objective.finish)

    def value_part(self, objective: ValueObjective, per_token: bool) -> Callable[..., LossParts]:
        def part(at: Tensor, sequences: Sequences, counts: Tensor | None, new: Tensor, _: Tensor) -> LossParts:
            weights = self._weights(at, sequences, counts, per_token)
            return objective(new, self.columns["old"][at], self.columns["ref"][at], self.mask[at], weights)

        return part

    def supervised_part(self, objective: SupervisedObjective, per_token: bool) -> Callable[..., LossParts]:
        def part(at: Tensor, sequences: Sequences, counts: Tensor | None, new: Tensor, entropy: Tensor) -> LossParts:
            return objective(new, self.mask[at], self._weights(at, sequences, counts, per_token), entropy)

        return part

    def _weights(self, at: Tensor, sequences: Sequences, counts: Tensor | None, per_token: bool) -> Tensor:
        return step_weights(self.mask[at], sequences.offsets, self.size, per_token=per_token, token_counts=counts)

    def _part(self, at: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Sequences, Tensor | None]:
        return at, Sequences(offsets_of(lengths)), None

    def _run(
        self,
        parts: Sequence[tuple[Tensor, Sequences, Tensor | None]],
        function: Callable[..., LossParts],
        finish: Callable[..., dict[str, float]],
    ) -> Result:
        result, sums, largest = self.run_parts(parts, function)
        result.metrics = finish(sums, largest)
        return result

    def run_parts(
        self, parts: Sequence[tuple[Tensor, Sequences, Tensor | None]], function: Callable[..., LossParts]
    ) -> tuple[Result, dict[str, float], dict[str, float]]:
        """Loss and gradients added up over parts (places of tokens, their samples, counts of whole samples)."""
        new, entropy = self.new.clone().requires_grad_(), self.entropy.clone().requires_grad_()
        theta = torch.zeros(5, dtype=self.new.dtype, requires_grad=True)
        loss, sums, largest = 0.0, {}, {}
        for at, sequences, counts in parts:
            found = function(at, sequences, counts, new[at] + self.features[at] @ theta, entropy[at])
            if found.loss.requires_grad:
                found.loss.backward()
            loss += found.loss.item()
            assert not sums or sums.keys() == found.sums.keys()
            sums = {name: sums.get(name, 0.0) + value.item() for name, value in found.sums.items()}
            largest = {name: max(largest.get(name, 0.0), value.item()) for name, value in found.largest.items()}
        grads = [torch.zeros_like(x) if x.grad is None else x.grad for x in (new, entropy, theta)]
        return Result(loss, *grads, {}), sums, largest

    def counts(self) -> Tensor:
        """[N] trained tokens of the whole samples."""
        return sample_token_counts(self.mask, self.offsets)
