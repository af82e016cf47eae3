"""What each of two context-parallel ranks checks for test_sequences: every estimator's loss against one process."""

import torch
import torch.distributed as dist

from relax_core.algorithms.assemble import PolicyObjective
from relax_core.algorithms.corrections import rejection_function, user_correction
from relax_core.algorithms.loss_parts import LossOptions, Tokens
from relax_core.algorithms.reduce import StepSize, sample_token_counts, step_weights
from relax_core.algorithms.registry import estimator_names, get_estimator
from relax_core.algorithms.sequences import Sequences

LENGTHS = [5, 1, 0, 8, 3]
OPTIONS = LossOptions(entropy_coef=0.1, kl_loss_coef=0.2, kl_loss_type="k3", use_opsm=True, opsm_delta=0.0)


def columns():
    generator = torch.Generator().manual_seed(3)
    total = sum(LENGTHS)
    named = {
        name: -torch.rand(total, generator=generator, dtype=torch.float64)
        for name in ("entropy", "old_log_probs", "ref_log_probs", "rollout_log_probs", "train_log_probs")
    }
    named["advantages"] = torch.randn(total, generator=generator, dtype=torch.float64)
    features = torch.randn(total, 4, generator=generator, dtype=torch.float64)
    mask = torch.rand(total, generator=generator) > 0.25
    return named, features, mask


def offsets_of(lengths):
    return torch.tensor([0, *torch.tensor(lengths, dtype=torch.int64).cumsum(0).tolist()])


def run(estimator, options, at, lengths, group, counts, correction):
    """Loss, gradient and metrics of the tokens ``at``; the model is one vector behind a softplus."""
    named, features, mask = columns()
    theta = torch.linspace(-1, 1, 4, dtype=torch.float64).requires_grad_()
    sequences = Sequences(offsets_of(lengths), group)
    size = StepSize(len(LENGTHS), int(mask.sum()))
    weights = step_weights(
        mask[at], sequences.offsets, size, per_token=options.calculate_per_token_loss, token_counts=counts
    )
    tokens = Tokens(
        log_probs=-torch.nn.functional.softplus(features[at] @ theta), mask=mask[at], weights=weights,
        sequences=sequences, **{name: column[at] for name, column in named.items()},
    )  # fmt: skip
    objective = PolicyObjective(get_estimator(estimator), options, size, correction=correction)
    parts = objective(tokens)
    parts.loss.backward()
    return parts, theta.grad


def parity() -> str:
    """The first tokens of each sample on rank 0 (none of some), the others on rank 1."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    rank, bounds = dist.get_rank(), offsets_of(LENGTHS)
    cuts = [2, 0, 0, 5, 3]
    own = [(b + cut, e) if rank else (b, b + cut) for b, e, cut in zip(bounds, bounds[1:], cuts, strict=False)]
    at = torch.cat([torch.arange(int(b), int(e)) for b, e in own])
    lengths = [int(e - b) for b, e in own]
    counts = sample_token_counts(columns()[2], bounds)
    args = type("Args", (), {"tis_clip": 1.2, "tis_clip_low": 0.8})
    cases = [(OPTIONS, None)]
    for per_token in (False, True):
        off_policy = LossOptions(**{**vars(OPTIONS), "use_tis": True, "calculate_per_token_loss": per_token})
        cases += [(off_policy, None), (off_policy, user_correction(rejection_function, args))]
    for estimator in estimator_names():
        for options, correction in cases:
            whole = torch.arange(sum(LENGTHS))
            want, want_gradient = run(estimator, options, whole, LENGTHS, None, None, correction)
            got, gradient = run(estimator, options, at, lengths, dist.group.WORLD, counts, correction)
            names = sorted(want.sums)
            assert names == sorted(got.sums)
            total = torch.cat((got.loss.detach().reshape(1), gradient, torch.stack([got.sums[n] for n in names])))
            dist.all_reduce(total)
            expected = torch.cat(
                (want.loss.detach().reshape(1), want_gradient, torch.stack([want.sums[n] for n in names]))
            )
            torch.testing.assert_close(total, expected, rtol=1e-6, atol=1e-7)
            for name, value in want.largest.items():
                most = got.largest[name].clone()
                dist.all_reduce(most, op=dist.ReduceOp.MAX)
                torch.testing.assert_close(most, value)
    return "equal"
