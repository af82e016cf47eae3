"""Draw what the algorithms do to a token, from the functions that training calls.

    python docs/plots.py           write docs/pictures/algorithms/*.svg
    python docs/plots.py --check   exit with 1 when a picture is missing or is not what the code gives

Guarantee: every curve is computed by a function of ``relax_core/algorithms``; every registered estimator has a picture;
the same code and version of matplotlib give the same bytes. Needs the extra ``plot``.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch

mpl.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run as a script, the project may not be installed

from relax_core.algorithms.advantages import (  # noqa: E402
    AdvantageInputs,
    AdvantageOptions,
    discounted_returns,
    generalized_advantages,
)
from relax_core.algorithms.corrections import discard, off_policy_sequences, reject, truncate  # noqa: E402
from relax_core.algorithms.kl import KL_KINDS, approx_kl  # noqa: E402
from relax_core.algorithms.loss_parts import LossOptions  # noqa: E402
from relax_core.algorithms.losses import gspo_loss, policy_loss, value_loss  # noqa: E402
from relax_core.algorithms.registry import EstimatorSpec, estimators, get_estimator  # noqa: E402
from relax_core.algorithms.rewards import normalize_rewards  # noqa: E402
from relax_core.algorithms.sequences import Sequences  # noqa: E402
from relax_core.algorithms.whitening import whiten  # noqa: E402

FOLDER = ROOT / "docs" / "pictures" / "algorithms"

BLUE, ORANGE, GREEN, PURPLE, GREY = "#1d4ed8", "#c2410c", "#15803d", "#7e22ce", "#94a3b8"
STYLE: Any = {
    "svg.hashsalt": "relax",
    "svg.fonttype": "none",  # text stays text: small, and sharp everywhere
    "font.sans-serif": ["DejaVu Sans", "Arial"],
    "path.simplify": False,  # what it leaves out hangs on rounding
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#475569",
    "axes.grid": True,
    "grid.color": "#e2e8f0",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.8,
}

CLIPPED = LossOptions(eps_clip=0.2, eps_clip_high=0.28)
OPTIONS = {"gspo": LossOptions(eps_clip=3e-4, eps_clip_high=4e-4)}
"""Where an estimator's usual values are others than ``CLIPPED``."""

DUAL_CLIP = 3.0
OLD_PROBABILITY = 0.2
"""Of the token drawn; it moves the loss of estimators without a ratio and no gradient."""

LOW_VAR_CORNER = -2.61086864
"""Where k3 is 10, the bound of ``low_var_kl``."""

Panel = Callable[[Axes], None]
Curve = tuple[np.ndarray, np.ndarray]


# -- curves ------------------------------------------------------------------------------------------------------------


def loss_and_push(spec: EstimatorSpec, ratios: np.ndarray, advantage: float, **options: Any) -> Curve:
    """Loss of a token, and how hard it pushes the log-probability upwards (its gradient, negated), at each ratio.

    Args:
        options: in place of the estimator's usual ones; those that its loss does not take are left out.
    """
    old = torch.full((len(ratios),), float(np.log(OLD_PROBABILITY)), dtype=torch.float64)
    new = (old + torch.from_numpy(np.log(ratios))).requires_grad_()
    usual = OPTIONS.get(spec.name, CLIPPED)
    taken: dict[str, Any] = {name: options.get(name, getattr(usual, name)) for name in spec.loss_options}
    if spec.sequence_loss:  # each point is a response of one token
        taken["sequences"] = Sequences(torch.arange(len(ratios) + 1))
    gains = torch.full_like(old, advantage)
    loss = spec.load_policy_loss()(new, old, gains, mask=torch.ones(len(ratios)), **taken).loss
    (gradient,) = torch.autograd.grad(loss.sum(), new)
    return loss.detach().numpy(), -gradient.numpy()


def around(spec: EstimatorSpec) -> np.ndarray:
    """Ratios worth a look."""
    if spec.name == "gspo":
        return with_corners(np.linspace(0.999, 1.001, 21), [0.9997, 1.0004])
    return with_corners(np.exp2(np.linspace(-2, 2, 49)), [0.8, 1.28, DUAL_CLIP])


def with_corners(places: np.ndarray, corners: list[float]) -> np.ndarray:
    """The places, and one on either side of each corner, so that a jump is upright."""
    return np.sort([*places, *(corner + side for corner in corners for side in (-1e-9, 1e-9))])


def in_group(right: int, size: int, kind: str, std: bool = True) -> Curve:
    """Advantages of the right and of the wrong answers of a group."""
    scores = np.array([1.0] * right + [0.0] * (size - right))
    found = normalize_rewards(scores, ["g"] * size, kind=kind, std=std)
    return found[:right], found[right:]


# -- panels ------------------------------------------------------------------------------------------------------------


def loss_panel(spec: EstimatorSpec) -> Panel:
    title = "loss, less that at ratio 1, in 1e-4" if spec.name == "gspo" else "loss of a token"
    return _of_ratio(spec, 0, title)


def push_panel(spec: EstimatorSpec) -> Panel:
    return _of_ratio(spec, 1, "push on its log-probability (-gradient)")


def _of_ratio(spec: EstimatorSpec, which: int, title: str) -> Panel:
    def draw(axes: Axes) -> None:
        ratios, plot = around(spec), axes.plot

        def curve(of: EstimatorSpec, gain: float, **options: Any) -> np.ndarray:
            found = loss_and_push(of, ratios, gain, **options)[which]
            if which or spec.name != "gspo":
                return found
            return (found + gain) * 1e4  # all ratios are so close to 1 that nothing else would be seen

        surrogate = get_estimator("gspo" if spec.sequence_loss else "grpo")
        unclipped = [curve(surrogate, gain, eps_clip=1.0, eps_clip_high=1e9, eps_clip_c=None) for gain in (1.0, -1.0)]
        own = [curve(spec, gain) for gain in (1.0, -1.0)]
        if which or "eps_clip_c" in spec.loss_options:  # other losses differ from it by more than the clip
            for values, label in zip(unclipped, ("ratio × A, no clip", None), strict=True):
                plot(ratios, values, color=GREY, lw=1, ls=":", label=label)
        if which and spec.name in ("sapo", "cispo"):
            for gain, label in ((1.0, "grpo's clip"), (-1.0, None)):
                plot(ratios, curve(surrogate, gain), color=GREY, lw=1, ls="--", label=label)
        for values, color, name in zip(own, (BLUE, ORANGE), ("A = 1", "A = -1"), strict=True):
            plot(ratios, values, color=color, label=name)
        if "eps_clip_c" in spec.loss_options and ratios[-1] > DUAL_CLIP:
            bounded = curve(spec, -1.0, eps_clip_c=DUAL_CLIP)
            plot(ratios, bounded, color=ORANGE, ls="--", lw=1.2, label=f"A = -1, --eps-clip-c {DUAL_CLIP:g}")
        axes.set_title(title)
        if spec.sequence_loss:
            axes.set_xlabel("ratio of the response")
            axes.set_xticks([0.999, 0.9995, 1.0, 1.0005, 1.001], ["0.999", "0.9995", "1", "1.0005", "1.001"])
            axes.set_ylim(top=axes.get_ylim()[1] * 1.7)  # room for the legend
        else:
            axes.set_xlabel("ratio, new / old probability")
            _doubling(axes)
        axes.legend(loc="best")

    return draw


def _doubling(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks([0.25, 0.5, 1, 2, 4], ["1/4", "1/2", "1", "2", "4"])
    axes.minorticks_off()


def _by_right_answers(lines: list[tuple[str, str, Callable[[int], Curve]]], title: str) -> Panel:
    """Advantage of right and wrong answers in a group of 8, by the number of right ones."""

    def draw(axes: Axes) -> None:
        counts = np.arange(1, 8)
        for name, style, of in lines:
            rows = [of(int(count)) for count in counts]
            axes.plot(counts, [right[0] for right, _ in rows], color=BLUE, ls=style, marker="o", ms=3)
            axes.plot(counts, [wrong[0] for _, wrong in rows], color=ORANGE, ls=style, marker="o", ms=3)
            axes.plot([], [], color="#334155", ls=style, label=name)
        axes.set_title(title)
        axes.set_xlabel("right answers among 8 (blue: of a right one)")
        axes.legend(loc="best")

    return draw


def group_panel(axes: Axes) -> None:
    """GRPO's advantage, and Dr.GRPO's."""
    _by_right_answers(
        [
            ("grpo", "-", lambda right: in_group(right, 8, "group_mean_std")),
            ("no standard deviation", "--", lambda right: in_group(right, 8, "group_mean_std", std=False)),
        ],
        "advantage of an answer",
    )(axes)


def leave_one_out_panel(axes: Axes) -> None:
    """RLOO's advantage, and the one with the whole group's mean."""
    _by_right_answers(
        [
            ("rloo", "-", lambda right: in_group(right, 8, "group_leave_one_out")),
            ("less the whole group's mean", "--", lambda right: in_group(right, 8, "group_mean")),
        ],
        "advantage of an answer",
    )(axes)


def batch_panel(axes: Axes) -> None:
    """REINFORCE++'s baseline over a batch with one group of each number of right answers, beside GRPO's."""
    groups = [in_group(right, 8, "group_mean") for right in range(9)]
    flat = np.concatenate([part for group in groups for part in group]).astype(np.float32)
    standard = whiten(flat, np.ones(len(flat), np.uint8), "token_global").reshape(9, 8)

    def in_batch(right: int) -> Curve:
        return standard[right, :right], standard[right, right:]

    _by_right_answers(
        [
            ("one scale for the batch", "-", in_batch),
            ("grpo: one for each group", "--", lambda right: in_group(right, 8, "group_mean_std")),
        ],
        "advantage of an answer",
    )(axes)


def outlier_panel(axes: Axes) -> None:
    """One token of a long response moves: its gradient with a ratio of its own, and with the response's."""
    tokens = 500
    corners = [CLIPPED.eps_clip_high or 0.0, float(np.expm1(tokens * np.log1p(OPTIONS["gspo"].eps_clip_high or 0.0)))]
    ratios = with_corners(np.exp2(np.linspace(-1, 1, 33)), [1 + corner for corner in corners])
    pushes: dict[str, list[float]] = {"grpo": [], "gspo": []}
    for ratio in ratios:
        old = torch.full((tokens,), -1.5, dtype=torch.float64)
        moved = torch.zeros_like(old)
        moved[0] = float(np.log(ratio))
        for name in pushes:
            new = (old + moved).requires_grad_()
            gains, mask = torch.ones_like(old), torch.ones(tokens)
            usual = OPTIONS.get(name, CLIPPED)
            clip: dict[str, Any] = {"eps_clip": usual.eps_clip, "eps_clip_high": usual.eps_clip_high, "mask": mask}
            if name == "gspo":
                loss = gspo_loss(new, old, gains, sequences=Sequences(torch.tensor([0, tokens])), **clip).loss
            else:
                loss = policy_loss(new, old, gains, **clip).loss
            (gradient,) = torch.autograd.grad(loss.sum(), new)
            pushes[name].append(-float(gradient[0]))
    axes.plot(ratios, pushes["gspo"], color=BLUE, label="gspo")
    axes.plot(ratios, pushes["grpo"], color=GREEN, ls="--", label="grpo")
    axes.set_xscale("log", base=2)
    axes.set_xticks([0.5, 1, 2], ["1/2", "1", "2"])
    axes.minorticks_off()
    axes.set_title("push on one outlier of 500 tokens")
    axes.set_xlabel("the outlier's own ratio; A = 1, others at 1")
    axes.legend(loc="best")


def temperature_panel(axes: Axes) -> None:
    """SAPO's gate under several temperatures, beside the clip."""
    spec = get_estimator("sapo")
    ratios = around(spec)
    for tau, color in ((0.5, GREEN), (1.0, BLUE), (2.0, PURPLE)):
        push = loss_and_push(spec, ratios, 1.0, sapo_tau_pos=tau)[1]
        axes.plot(ratios, push, color=color, label=f"--sapo-tau-pos {tau:g}")
    clipped = loss_and_push(get_estimator("grpo"), ratios, 1.0)[1]
    axes.plot(ratios, clipped, color=GREY, ls="--", lw=1.2, label="grpo's clip")
    axes.set_title("push for A = 1")
    axes.set_xlabel("ratio, new / old probability")
    _doubling(axes)
    axes.legend(loc="best")


def value_panel(axes: Axes) -> None:
    """The critic's loss around an old value of 0, for two targets."""
    values = with_corners(np.linspace(-0.6, 1.4, 40), [-0.2, 0.2])
    for target, color in ((1.0, GREEN), (0.1, PURPLE)):
        new = torch.from_numpy(values).requires_grad_()
        goal = torch.full_like(new, target)
        loss = value_loss(new, torch.zeros_like(new), goal, value_clip=0.2).loss
        (gradient,) = torch.autograd.grad(loss.sum(), new)
        axes.plot(values, loss.detach().numpy(), color=color, label=f"loss, return {target:g}")
        axes.plot(values, -gradient.numpy(), color=color, ls="--", lw=1.2, label=f"push, return {target:g}")
    axes.axvspan(-0.2, 0.2, color="#f1f5f9", zorder=0)
    axes.set_title("critic: old value 0, --value-clip 0.2")
    axes.set_xlabel("value")
    axes.legend(loc="best")


def credit_panel(axes: Axes) -> None:
    """How far back a surprise at the end reaches: GAE of a response of 60 tokens."""
    tokens, value = 60, 0.5
    for lambd, color in ((1.0, GREEN), (0.95, BLUE), (0.8, PURPLE)):
        inputs = AdvantageInputs(
            np.array([1.0]),
            np.array([0, tokens]),
            np.ones(tokens, np.uint8),
            AdvantageOptions(gamma=1.0, lambd=lambd),
            values=np.full(tokens, value, np.float32),
        )
        found = generalized_advantages(inputs).advantages
        axes.plot(np.arange(tokens), found, color=color, label=f"--lambd {lambd:g}")
    axes.set_ylim(bottom=0)
    axes.set_title("advantage: reward 1, critic says 0.5")
    axes.set_xlabel("token of the response")
    axes.legend(loc="best")


def returns_panel(axes: Axes) -> None:
    """REINFORCE++'s returns along a response, before they are standardised."""
    tokens = 60
    for gamma, coefficient, color, style in (
        (1.0, 0.0, GREEN, "-"),
        (0.98, 0.0, BLUE, "-"),
        (1.0, 0.1, GREEN, "--"),
        (0.98, 0.1, BLUE, "--"),
    ):
        inputs = AdvantageInputs(
            np.array([1.0]),
            np.array([0, tokens]),
            np.ones(tokens, np.uint8),
            AdvantageOptions(gamma=gamma, kl_coef=coefficient),
            old_log_probs=np.full(tokens, -1.0, np.float32),
            ref_log_probs=np.full(tokens, -1.1, np.float32),
        )
        label = f"--gamma {gamma:g}" + (f" --kl-coef {coefficient:g}" if coefficient else "")
        axes.plot(np.arange(tokens), discounted_returns(inputs).returns, color=color, ls=style, label=label)
    axes.set_ylim(bottom=-0.5)  # room for the legend
    axes.set_title("return: reward 1, KL of 0.1 a token")
    axes.set_xlabel("token of the response")
    axes.legend(loc="best")


EXTRA: dict[str, tuple[Panel, ...]] = {
    "grpo": (group_panel,),
    "gspo": (outlier_panel,),
    "sapo": (temperature_panel,),
    "rloo": (leave_one_out_panel,),
    "ppo": (value_panel, credit_panel),
    "reinforce_plus_plus": (returns_panel,),
    "reinforce_plus_plus_baseline": (batch_panel,),
}
"""What an estimator has beside its loss and gradient."""


def weights_panel(axes: Axes) -> None:
    """What the importance corrections make of a token's loss."""
    raw = with_corners(np.exp2(np.linspace(-2, 2, 49)), [0.5, 2.0])
    train = torch.from_numpy(np.log(raw))
    one, mask = torch.ones_like(train), torch.ones(len(raw), dtype=torch.bool)
    ways: tuple[tuple[str, Any, float, str, str], ...] = (
        ("--use-tis", truncate, 0.0, BLUE, "-"),
        ("--use-tis --tis-clip-low 0.5", truncate, 0.5, BLUE, "--"),
        ("icepop, 0.5 to 2", discard, 0.5, ORANGE, "-"),
        ("rejection, 0.5 to 2", reject, 0.5, GREEN, "-."),
    )
    for name, correct, low, color, style in ways:
        weight = correct(one, train, torch.zeros_like(train), mask, low=low, high=2.0).loss
        axes.plot(raw, weight.numpy(), color=color, ls=style, label=name)
    axes.set_ylim(top=2.9)  # room for the legend
    axes.set_title("weight of a token's loss")
    axes.set_xlabel("trainer / engine probability")
    _doubling(axes)
    axes.legend(loc="best")


def sequences_panel(axes: Axes) -> None:
    """Which responses off-policy sequence masking leaves out."""
    moved = np.sort([*np.linspace(-3e-4, 3e-4, 7), 1e-4 - 1e-12, 1e-4 + 1e-12])
    old = torch.from_numpy(moved)
    for gain, color, name in ((1.0, BLUE, "A = 1"), (-1.0, ORANGE, "A = -1")):
        gains, mask = torch.full_like(old, gain), torch.ones_like(old)
        sequences = Sequences(torch.arange(len(moved) + 1))
        dropped = off_policy_sequences(torch.zeros_like(old), old, gains, mask, sequences, delta=1e-4)
        shown = (~dropped).double().numpy() + (0.01 if gain > 0 else -0.01)  # so that both lines are seen
        axes.plot(moved * 1e4, shown, color=color, label=name)
    axes.set_ylim(-0.1, 1.2)
    axes.set_title("--use-opsm --opsm-delta 1e-4: weight")
    axes.set_xlabel("mean of old - new log-probability, in 1e-4")
    axes.legend(loc="center left")


def _kl_panel(which: int, title: str) -> Panel:
    def draw(axes: Axes) -> None:
        gaps = with_corners(np.linspace(-3, 3, 61), [LOW_VAR_CORNER])
        colors = dict(zip(KL_KINDS, (BLUE, GREEN, ORANGE, PURPLE), strict=True))
        for kind in KL_KINDS:
            new = torch.from_numpy(gaps).requires_grad_()
            value = approx_kl(new, torch.zeros_like(new), kind)
            (gradient,) = torch.autograd.grad(value.sum(), new)
            shown = (value.detach(), gradient)[which].numpy()
            style = "--" if kind == "low_var_kl" else "-"
            axes.plot(gaps, shown, color=colors[kind], ls=style, label=kind)
        axes.set_ylim(-4, 12) if which == 0 else axes.set_ylim(-10, 4)
        axes.set_title(title)
        axes.set_xlabel("log-probability: policy - reference")
        axes.legend(loc="best")

    return draw


# -- pictures ----------------------------------------------------------------------------------------------------------


def picture_names() -> list[str]:
    """Names of the files, without the ending: one of each estimator, and those of the other pages."""
    return [*(spec.name for spec in estimators()), "corrections", "kl"]


def panels_of(name: str) -> tuple[Panel, ...]:
    """What the picture of this name shows."""
    if name == "corrections":
        return weights_panel, sequences_panel
    if name == "kl":
        return _kl_panel(0, "estimate of a token"), _kl_panel(1, "its gradient")
    spec = get_estimator(name)
    return loss_panel(spec), push_panel(spec), *EXTRA.get(name, ())


def picture(name: str) -> Figure:
    """One row of panels; four make two rows."""
    panels = panels_of(name)
    columns = 2 if len(panels) == 4 else len(panels)
    rows = -(-len(panels) // columns)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.5 * columns, 2.9 * rows), layout="constrained", facecolor="white")
        for panel, axes in zip(panels, figure.subplots(rows, columns, squeeze=False).flat, strict=True):
            panel(axes)
    return figure


def svg(name: str) -> bytes:
    """The picture's file. Hundredths of a point are enough, and hide what processors round otherwise."""
    buffer = io.StringIO()
    with mpl.rc_context(STYLE):
        picture(name).savefig(buffer, format="svg", metadata={"Date": None})
    text = re.sub(r"(?<![>\w.])-?\d+\.\d{3,}", lambda match: f"{float(match[0]):.2f}", buffer.getvalue())
    return "\n".join(line.rstrip() for line in text.splitlines()).encode() + b"\n"


def outdated(folder: Path) -> Iterator[tuple[Path, bytes, str]]:
    """Pictures that are not what the code gives: where they belong, their bytes, and what is wrong."""
    for name in picture_names():
        path, content = folder / f"{name}.svg", svg(name)
        if not path.exists():
            yield path, content, "is missing"
        elif path.read_bytes() != content:
            yield path, content, "is out of date"


def main(arguments: list[str] | None = None) -> int:
    """Write or check the pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare, and fail on a difference")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the pictures are")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True, exist_ok=True)
    found = 0
    for path, content, what in outdated(options.folder):
        found += 1
        if options.check:
            print(f"{path.name} {what}: run python docs/plots.py.")
        else:
            path.write_bytes(content)
            print(f"{path.name} written, {len(content) / 1000:.0f} kB")
    if not found:
        print("up to date")
    return int(options.check and found > 0)


if __name__ == "__main__":
    raise SystemExit(main())
