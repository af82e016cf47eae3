"""What each of two ranks checks for test_invariances: all objectives, shared by samples and by tokens, against one."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from policy_cases import Case, Result, offsets_of
from ranks import join_ranks

from relax_core.algorithms.assemble import PolicyObjective, SupervisedObjective, ValueObjective
from relax_core.algorithms.corrections import probe_correction, rejection_function, user_correction
from relax_core.algorithms.loss_parts import LossOptions
from relax_core.algorithms.registry import estimator_names, get_estimator
from relax_core.algorithms.sequences import Sequences
from relax_core.algorithms.whitening import whiten

TOLERANCE = 1e-6
LENGTHS = [9, 1, 0, 12, 4, 7]
ALL_TERMS = LossOptions(
    eps_clip_high=0.28, eps_clip_c=3.0, entropy_coef=0.1, kl_loss_coef=0.2, kl_loss_type="k3", use_unbiased_kl=True,
    use_opsm=True, opsm_delta=0.0, use_tis=True, tis_clip=1.5, tis_clip_low=0.6,
)  # fmt: skip
Part = tuple[torch.Tensor, Sequences, torch.Tensor | None]


def shared_by_samples(case: Case, rank: int) -> list[Part]:
    """Every other sample, in two micro-batches."""
    own = list(range(rank, len(case.lengths), 2))
    cuts = (own[:1], own[1:])
    return [(case.places(cut), Sequences(offsets_of([case.lengths[i] for i in cut])), None) for cut in cuts]


def shared_by_tokens(case: Case, rank: int) -> list[Part]:
    """Of every sample the first and the last quarter on rank 0 and the middle on rank 1 (zigzag), in two micro-batches.

    A rank has no token of some samples.
    """
    parts = []
    for samples in ([0, 1, 2, 3], [4, 5]):
        at, lengths = [torch.zeros(0, dtype=torch.int64)], []
        for i in samples:
            places = case.places([i])
            quarter = -(-len(places) // 4)
            middle = torch.zeros(len(places), dtype=torch.bool)
            middle[quarter : len(places) - quarter] = True
            at.append(places[middle == bool(rank)])
            lengths.append(len(at[-1]))
        sequences = Sequences(offsets_of(lengths), dist.group.WORLD)
        parts.append((torch.cat(at), sequences, case.counts()[samples]))
    return parts


def compare(case: Case, parts: list[Part], function: Any, finish: Any, want: Result) -> None:
    """The ranks' results together against those of one process."""
    found, sums, largest = case.run_parts(parts, function)
    names, most = sorted(sums), sorted(largest)
    total = torch.tensor([found.loss, *(sums[name] for name in names)], dtype=torch.float64)
    dist.all_reduce(total)
    peaks = torch.tensor([largest[name] for name in most], dtype=torch.float64)
    dist.all_reduce(peaks, op=dist.ReduceOp.MAX)
    loss, *values = total.tolist()
    metrics = finish(dict(zip(names, values, strict=True)), dict(zip(most, peaks.tolist(), strict=True)))
    assert metrics.keys() == want.metrics.keys()
    close(torch.tensor(loss), want.loss, "loss")
    for name, value in metrics.items():
        close(torch.tensor(value), want.metrics[name], name)
    for name in ("by_log_prob", "by_entropy"):  # each rank has the gradient of its own tokens
        gradient = getattr(found, name)
        dist.all_reduce(gradient)
        close(gradient, getattr(want, name), name)
    dist.all_reduce(found.gradient)
    assert (found.gradient - want.gradient).norm() <= TOLERANCE * max(1.0, float(want.gradient.norm()))


def close(got: torch.Tensor, want: Any, what: Any) -> None:
    torch.testing.assert_close(
        got.double(), torch.as_tensor(want, dtype=torch.float64), rtol=TOLERANCE, atol=TOLERANCE,
        msg=lambda text: f"{what}: {text}",
    )  # fmt: skip


def policies(case: Case, layout: Any) -> None:
    args = SimpleNamespace(tis_clip=1.5, tis_clip_low=0.6)
    rejection, whole = user_correction(rejection_function, args), [range(len(case.lengths))]
    for estimator in estimator_names():
        for options in (LossOptions(), ALL_TERMS, dataclasses.replace(ALL_TERMS, calculate_per_token_loss=True)):
            for correction in (None, rejection) if options.use_tis else (None,):
                more: dict[str, Any] = {"correction": correction}
                if correction is not None:
                    more["probe"] = probe_correction(correction, case.step_tokens(options))
                    assert case.size.tokens / 2 < more["probe"].kept_tokens < case.size.tokens
                objective = PolicyObjective(get_estimator(estimator), options, case.size, **more)

                def function(*part: Any, objective: Any = objective, options: LossOptions = options) -> Any:
                    return objective(case.tokens(*part, options))

                want = case.policy(whole, estimator, options, **more)
                compare(case, layout(case, dist.get_rank()), function, objective.finish, want)


def others(case: Case, layout: Any) -> None:
    whole, rank = [range(len(case.lengths))], dist.get_rank()
    for per_token in (False, True):
        critic, supervised = ValueObjective(LossOptions(value_clip=0.2)), SupervisedObjective()
        parts, part = layout(case, rank), case.value_part(critic, per_token)
        compare(case, parts, part, critic.finish, case.value(whole, 0.2, per_token))
        part = case.supervised_part(supervised, per_token)
        compare(case, parts, part, supervised.finish, case.supervised(whole, per_token))


def whitening(case: Case) -> None:
    def add(own: np.ndarray) -> np.ndarray:
        total = torch.from_numpy(own.copy())
        dist.all_reduce(total)
        return total.numpy()

    values, mask = case.columns["advantage"].float().numpy(), case.mask.numpy().astype(np.uint8)
    own = case.places(range(dist.get_rank(), len(case.lengths), 2)).numpy()
    for form in ("whiten", "token_global"):
        got = whiten(values[own], mask[own], form, add)
        np.testing.assert_allclose(got, whiten(values, mask, form)[own], rtol=TOLERANCE, atol=TOLERANCE)


def parity() -> str:
    """In float32, within 1e-6."""
    join_ranks()
    case = Case(LENGTHS, 3)
    for layout in (shared_by_samples, shared_by_tokens):
        policies(case, layout)
        others(case, layout)
    whitening(case)
    return "equal"
