"""Advantages, reward normalisation, policy losses and log-probabilities against plain implementations, in one run.

    python benchmarks/algorithms.py [--samples 131072] [--tokens 512] [--loss-tokens 1048576] [--repeats 5]

* Advantages: the whole stage of each estimator (``compute_advantages``, with the whitening that it demands, KL and
  critic where it has them). A *pass* copies the columns that the stage reads or writes, once, into memory that is
  there: what no implementation can undercut by much. Shown as passes for responses of equal length, for lengths drawn
  anew (1 to 2 x ``--tokens`` - 1), and for those with a tenth of the tokens masked in stretches of 32. The plain one
  is a Python loop over the tokens of ``--plain-samples`` samples; its time is scaled to all of them.
* Rewards: ``--samples`` in groups of 8, against a dictionary of lists.
* Losses: forward and backward over ``--loss-tokens`` tokens, a tenth of them masked, against the formula in plain torch
  (GSPO: a loop over samples).
* Log-probabilities: ``token_log_probs`` whole and in chunks against ``log_softmax`` of all logits, each in a process of
  its own, with the peak of memory above the start.

Times are CPU seconds of one thread, the best of ``--repeats``. Every row says how far the results of both are apart:
the largest absolute difference, of losses and log-probabilities also of their gradients. At the peak 11 x 4 bytes a
token are in memory, 3 GB at the defaults; with fewer ``--samples`` both go down in proportion.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, get_args

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from relax_core.algorithms.advantages import AdvantageInputs, AdvantageOptions, Advantages, compute_advantages
from relax_core.algorithms.logprobs import token_log_probs
from relax_core.algorithms.loss_parts import LossOptions
from relax_core.algorithms.registry import EstimatorSpec, estimators
from relax_core.algorithms.rewards import normalize_rewards
from relax_core.algorithms.sequences import Sequences
from relax_core.algorithms.whitening import Whitening, whiten

GAMMA, LAMBDA, KL_COEF, OPD_COEF = 0.99, 0.95, 0.1, 1.0
OPTIONS = LossOptions(eps_clip=0.2, eps_clip_high=0.28, eps_clip_c=3.0)


def best(function: Callable[[], Any], repeats: int) -> float:
    """Seconds of the fastest call."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


# -- advantages --------------------------------------------------------------------------------------------------------


def offsets_of(samples: int, tokens: int, ragged: bool, rng: np.random.Generator) -> np.ndarray:
    """Bounds of the samples; ragged ones have ``tokens`` on average, as many in all."""
    lengths = rng.integers(1, 2 * tokens, samples) if ragged else np.full(samples, tokens)
    bounds = np.append(0, np.cumsum(lengths))
    return (bounds * (samples * tokens / bounds[-1])).astype(np.int64)


def demanded(spec: EstimatorSpec, option: str) -> bool:
    """Whether the estimator works only with this option on."""
    return any(demand.option == option and demand.allowed == (True,) for demand in spec.all_demands)


def inputs_of(spec: EstimatorSpec, columns: dict[str, np.ndarray], offsets: np.ndarray) -> AdvantageInputs:
    """What the estimator reads of the columns."""
    shaped = "kl_coef" in spec.advantage_options
    return AdvantageInputs(
        rewards=columns["rewards"][: len(offsets) - 1],
        offsets=offsets,
        loss_mask=columns["mask"][: offsets[-1]],
        options=AdvantageOptions(GAMMA, LAMBDA, KL_COEF if shaped else 0.0),
        values=columns["values"][: offsets[-1]] if spec.needs_critic else None,
        old_log_probs=columns["old"][: offsets[-1]],
        ref_log_probs=columns["ref"][: offsets[-1]] if shaped else None,
    )


def touched(spec: EstimatorSpec, inputs: AdvantageInputs, result: Advantages, more: list[Any]) -> list[np.ndarray]:
    """Columns that the stage reads or writes; the mask is read by all but those that only spread rewards."""
    read = [inputs.values] if spec.needs_critic else []
    read += [inputs.old_log_probs, inputs.ref_log_probs] if inputs.options.kl_coef else []
    reads_mask = bool(spec.advantage_options or demanded(spec, "normalize_advantages") or more)
    written = {id(column): column for column in vars(result).values() if column is not None}
    return [*read, *more, *([inputs.loss_mask] * reads_mask), *written.values()]


def plain_advantages(
    spec: EstimatorSpec, inputs: AdvantageInputs, teacher: np.ndarray | None, normalize: bool
) -> list[float]:
    """The stage as Python loops over tokens."""
    mask, bounds = inputs.loss_mask.tolist(), inputs.offsets.tolist()
    columns = (inputs.old_log_probs, inputs.ref_log_probs, inputs.values)
    old, reference, values = (None if column is None else column.tolist() for column in columns)
    gamma, decay = GAMMA, GAMMA * LAMBDA
    result = [0.0] * len(mask)
    for i, reward in enumerate(inputs.rewards.tolist()):
        if not spec.advantage_options:
            masked = spec.name == "reinforce_plus_plus_baseline"
            for t in range(bounds[i], bounds[i + 1]):
                result[t] = reward if mask[t] or not masked else 0.0
            continue
        following, next_value, due = 0.0, 0.0, reward
        for t in range(bounds[i + 1] - 1, bounds[i] - 1, -1):
            if not mask[t]:
                continue
            shaped, due = due - KL_COEF * (old[t] - reference[t]), 0.0  # type: ignore[index]
            if values is None:
                following = shaped + gamma * following
            else:
                following = shaped + gamma * next_value - values[t] + decay * following
                next_value = values[t]
            result[t] = following
    if teacher is not None:
        gaps = zip(old or [], teacher.tolist(), mask, strict=True)
        result = [a - OPD_COEF * (s - q) if m else a for a, (s, q, m) in zip(result, gaps, strict=True)]
    return plain_whitening(result, mask, spec.whitening) if normalize else result


def plain_whitening(values: list[float], mask: list[int], form: str) -> list[float]:
    """Both forms of --normalize-advantages as Python loops."""
    kept = [value for value, m in zip(values, mask, strict=True) if m]
    mean = sum(kept) / len(kept)
    squares = sum((value - mean) ** 2 for value in kept)
    variance = squares / (len(kept) - 1) + 1e-8 if form == "whiten" else max(squares / len(kept), 1e-8)
    return [(value - mean) / variance**0.5 if m else 0.0 for value, m in zip(values, mask, strict=True)]


def one_pass(columns: list[np.ndarray], scratch: np.ndarray) -> None:
    """Copies each column into memory that is there."""
    for column in columns:
        np.copyto(scratch.view(column.dtype)[: len(column)], column)


def advantages(options: argparse.Namespace, rng: np.random.Generator) -> None:
    """The table of the advantage stage."""
    samples, total = options.samples, options.samples * options.tokens
    columns: dict[str, np.ndarray] = {
        "rewards": rng.integers(0, 2, samples).astype(np.float64),
        **{name: -rng.random(total, dtype=np.float32) for name in ("old", "ref", "values", "teacher")},
    }
    every = np.ones(total, np.uint8)
    stretches = np.repeat((rng.random(-(-total // 32)) > 0.1).astype(np.uint8), 32)[:total]
    layouts = [
        (offsets_of(samples, options.tokens, ragged, rng), mask)
        for ragged, mask in ((False, every), (True, every), (True, stretches))
    ]
    scratch = np.empty(total, np.float32)
    print(f"Advantages: {samples} samples, {total} tokens. Columns of a pass; its nanoseconds a token; passes of the")
    print("stage by layout; time of the loop / time of the stage; largest difference of their results")
    print(f"{'':30}{'columns':>8}{'pass ns':>9}{'equal':>8}{'ragged':>8}{'masked':>8}{'loop':>9}{'difference':>12}")
    first = estimators()[0]
    for spec, distilled in [(spec, False) for spec in estimators()] + [(first, True)]:
        normalize = demanded(spec, "normalize_advantages")
        stage = partial(compute_advantages, spec, opd_kl_coef=OPD_COEF, normalize=normalize)
        rows = []
        for offsets, mask in layouts:
            inputs = inputs_of(spec, columns | {"mask": mask}, offsets)
            teacher = columns["teacher"] if distilled else None
            more = [inputs.old_log_probs, teacher] if distilled else []
            moved = touched(spec, inputs, stage(inputs, teacher_log_probs=teacher), more)
            ours = floor = float("inf")
            for _ in range(options.repeats):  # in turns, so that other work on the machine meets both
                floor = min(floor, best(partial(one_pass, moved, scratch), 1))
                ours = min(ours, best(partial(stage, inputs, teacher_log_probs=teacher), 1))

            few = offsets[: options.plain_samples + 1]
            part = inputs_of(spec, columns | {"mask": mask}, few)
            theirs = None if teacher is None else teacher[: few[-1]]
            start = time.process_time()
            expected = plain_advantages(spec, part, theirs, normalize)
            plain = (time.process_time() - start) * total / few[-1]
            distance = np.abs(stage(part, teacher_log_probs=theirs).advantages - np.array(expected)).max()
            size = sum(column.itemsize for column in moved) / 4
            rows.append((size, floor / total * 1e9, ours / floor, plain / ours, float(distance)))
        sizes, nanoseconds, passes, slower, distances = zip(*rows, strict=True)
        name = f"{spec.name}, distillation" if distilled else spec.name
        cells = f"{sizes[0]:8.2f}{min(nanoseconds):9.2f}" + "".join(f"{number:8.1f}" for number in passes)
        print(f"{name:30}{cells}{min(slower):9.0f}{max(distances):12.1e}", flush=True)

    values, mask = columns["old"], stretches
    part_of_all = slice(0, options.plain_samples * options.tokens)
    for form in get_args(Whitening):
        ours = best(partial(whiten, values, mask, form), options.repeats)
        floor = best(partial(one_pass, [values, values, mask], scratch), options.repeats)
        start = time.process_time()
        expected = plain_whitening(values[part_of_all].tolist(), mask[part_of_all].tolist(), form)
        plain = (time.process_time() - start) * options.samples / options.plain_samples
        distance = float(np.abs(whiten(values[part_of_all], mask[part_of_all], form) - np.array(expected)).max())
        cells = f"{2.25:8.2f}{floor / total * 1e9:9.2f}{'':16}{ours / floor:8.1f}"
        print(f"{f'whitening alone, {form}':30}{cells}{plain / ours:9.0f}{distance:12.1e}", flush=True)


# -- rewards -----------------------------------------------------------------------------------------------------------


def plain_rewards(rewards: list[float], groups: list[int], kind: str) -> list[float]:
    """Normalisation with a dictionary of the groups' rewards."""
    members: dict[int, list[float]] = {}
    for group, reward in zip(groups, rewards, strict=True):
        members.setdefault(group, []).append(reward)
    result = []
    for group, reward in zip(groups, rewards, strict=True):
        own = members[group]
        mean = sum(own) / len(own)
        if kind == "group_leave_one_out":
            result.append(reward - (sum(own) - reward) / (len(own) - 1))
        elif kind == "group_mean":
            result.append(reward - mean)
        else:
            deviation = (sum((other - mean) ** 2 for other in own) / (len(own) - 1)) ** 0.5
            result.append((reward - mean) / (deviation + 1e-6))
    return result


def rewards(options: argparse.Namespace, rng: np.random.Generator) -> None:
    """The table of reward normalisation; groups are interleaved."""
    groups = rng.permutation(np.arange(options.samples) // 8)
    scores = rng.integers(0, 2, options.samples).astype(np.float64)
    print(f"\nRewards: {options.samples} in groups of 8")
    print(f"{'':30}{'ms':>9}{'loop ms':>9}{'ratio':>9}{'difference':>12}")
    for kind in ("group_mean_std", "group_mean", "group_leave_one_out"):
        ours = best(lambda: normalize_rewards(scores, groups, kind=kind), options.repeats)  # noqa: B023
        as_lists = scores.tolist(), groups.tolist()
        plain = best(lambda: plain_rewards(*as_lists, kind), 1)  # noqa: B023
        distance = np.abs(normalize_rewards(scores, groups, kind=kind) - np.array(plain_rewards(*as_lists, kind))).max()
        print(f"{kind:30}{ours * 1e3:9.1f}{plain * 1e3:9.1f}{plain / ours:9.1f}{distance:12.1e}")


# -- losses ------------------------------------------------------------------------------------------------------------


def plain_loss(
    name: str, new: torch.Tensor, old: torch.Tensor, gain: torch.Tensor, mask: torch.Tensor, lengths: list[int]
) -> torch.Tensor:
    """The formula of each policy loss in plain torch, [T]."""
    if name == "reinforce_loss":
        return -gain * new * mask
    if name == "gspo_loss":
        means = [
            ((n - o) * m).sum() / m.sum().clamp(min=1)
            for n, o, m in zip(new.split(lengths), old.split(lengths), mask.split(lengths), strict=True)
        ]
        ratio = torch.cat([mean.expand(length) for mean, length in zip(means, lengths, strict=True)]).exp()
    else:
        ratio = (new - old).exp()
    if name == "sapo_loss":
        tau = torch.where(gain > 0, OPTIONS.sapo_tau_pos, OPTIONS.sapo_tau_neg)
        return -4 / tau * torch.sigmoid(tau * (ratio - 1)) * gain * mask
    low, high = 1 - OPTIONS.eps_clip, 1 + float(OPTIONS.eps_clip_high or 0)
    if name == "cispo_loss":
        weight = torch.where(gain >= 0, ratio.clamp(max=high), ratio.clamp(min=low)).detach()
        return -weight * gain * new * mask
    loss = torch.maximum(-ratio * gain, -ratio.clamp(low, high) * gain)
    return torch.where(gain < 0, torch.minimum(loss, -float(OPTIONS.eps_clip_c or 0) * gain), loss) * mask


def losses(options: argparse.Namespace) -> None:
    """The table of the policy losses, one row for each that an estimator uses."""
    torch.manual_seed(0)
    total = options.loss_tokens
    lengths = [512] * (total // 512) + [total % 512] * bool(total % 512)
    offsets = torch.tensor([0, *np.cumsum(lengths)])
    old = -torch.rand(total) * 3
    new = (old + torch.randn(total) * 0.3).requires_grad_()
    gain, mask = torch.randn(total), torch.rand(total) > 0.1
    print(f"\nPolicy losses, forward and backward: {total} tokens in {len(lengths)} samples")
    print(f"{'':30}{'ms':>9}{'plain ms':>9}{'ratio':>9}{'difference':>12}{'of gradient':>12}")
    specs = {spec.policy_loss: spec for spec in estimators()}
    for path, spec in specs.items():
        loss_of, name = spec.load_policy_loss(), path.rpartition(":")[2]
        keywords = {option: getattr(OPTIONS, option) for option in spec.loss_options}
        if spec.sequence_loss:
            keywords["sequences"] = Sequences(offsets)

        ours = partial(loss_of, new, old, gain, mask=mask, **keywords)
        plain = partial(plain_loss, name, new, old, gain, mask, lengths)
        seconds, results = [], []
        for way in (ours, plain):
            times = []
            for _ in range(options.repeats):
                new.grad = None
                start = time.process_time()
                found = way()
                loss = found if isinstance(found, torch.Tensor) else found.loss
                loss.sum().backward()
                times.append(time.process_time() - start)
            assert new.grad is not None
            seconds.append(min(times))
            results.append((loss.detach(), new.grad.clone()))
        (a, da), (b, db) = results
        distances = f"{float((a - b).abs().max()):12.1e}{float((da - db).abs().max()):12.1e}"
        print(f"{name:30}{seconds[0] * 1e3:9.1f}{seconds[1] * 1e3:9.1f}{seconds[0] / seconds[1]:9.2f}{distances}")


# -- log-probabilities -------------------------------------------------------------------------------------------------

WAYS: dict[str, Callable[..., torch.Tensor]] = {
    "log_softmax of all logits": lambda h, w, y: torch.log_softmax((h @ w.t()).float(), -1).gather(1, y[:, None])[:, 0],
    "token_log_probs, whole": lambda h, w, y: token_log_probs(h, w, y)[0],
    "token_log_probs, chunks of 128": lambda h, w, y: token_log_probs(h, w, y, chunk_size=128)[0],
}


def tensors(rows: int, hidden: int, vocabulary: int) -> Iterator[torch.Tensor]:
    """Hidden states, output weights, targets and an upstream gradient."""
    torch.manual_seed(0)
    yield torch.randn(rows, hidden, requires_grad=True)
    yield (torch.randn(vocabulary, hidden) * 0.05).requires_grad_()
    yield torch.randint(0, vocabulary, (rows,))
    yield torch.randn(rows)


def resident(which: str) -> int:
    """Bytes of this process in memory: now (VmRSS) or at most (VmHWM)."""
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith(which)).split()[1]) * 1024


def measure(way: str, sizes: tuple[int, int, int], repeats: int) -> dict[str, float]:
    """Seconds of forward and backward, and bytes at the peak above the start; in a process of its own."""
    hidden, weight, targets, upstream = tensors(*sizes)
    start = resident("VmRSS")

    def once() -> None:
        hidden.grad = weight.grad = None
        WAYS[way](hidden, weight, targets).backward(upstream)

    once()
    peak = resident("VmHWM") - start
    return {"seconds": best(once, repeats), "bytes": peak}


def log_probs(options: argparse.Namespace) -> None:
    """The table of log-probabilities."""
    sizes = (options.rows, options.hidden, options.vocabulary)
    print(f"\nLog-probabilities, forward and backward: {sizes[0]} rows, hidden {sizes[1]}, vocabulary {sizes[2]}")
    print(f"{'':30}{'ms':>9}{'ratio':>9}{'peak MB':>9}{'ratio':>9}{'difference':>12}{'of gradient':>12}")
    found: dict[str, dict[str, float]] = {}
    for way in WAYS:
        command = [sys.executable, str(Path(__file__)), *sys.argv[1:], "--way", way]
        found[way] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    plain = found[next(iter(WAYS))]
    expected: list[torch.Tensor] = []
    for way, row in found.items():
        hidden, weight, targets, upstream = tensors(min(sizes[0], 300), *sizes[1:])  # not a multiple of the chunk
        values = WAYS[way](hidden, weight, targets)
        values.backward(upstream)
        assert hidden.grad is not None
        assert weight.grad is not None
        got = [values.detach(), hidden.grad, weight.grad]
        expected = expected or got
        distances = [float((a - b).abs().max()) for a, b in zip(got, expected, strict=True)]
        cells = "".join(
            f"{row[key] * scale:9.0f}{row[key] / plain[key]:9.2f}" for key, scale in (("seconds", 1e3), ("bytes", 1e-6))
        )
        print(f"{way:30}{cells}{distances[0]:12.1e}{max(distances[1:]):12.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"samples": 131072, "tokens": 512, "plain-samples": 128, "loss-tokens": 1 << 20, "repeats": 5, "seed": 0}
    sizes |= {"rows": 1000, "hidden": 576, "vocabulary": 49152}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.way:
        print(json.dumps(measure(options.way, (options.rows, options.hidden, options.vocabulary), options.repeats)))
        return
    rng = np.random.default_rng(options.seed)
    advantages(options, rng)
    rewards(options, rng)
    losses(options)
    log_probs(options)


if __name__ == "__main__":
    main()
