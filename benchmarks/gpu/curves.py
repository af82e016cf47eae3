"""Curves of learning runs: what their steps recorded, as JSON, as a picture and as a table.

    python benchmarks/gpu/curves.py FOLDER/learning.json [--out FOLDER]      # picture and table from the JSON again

A step has its reward, its evaluation where there was one, seconds by stage, the difference of log-probabilities between
trainer and engine, entropy, gradient norm, length of responses, and the share that was cut off.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, Any]
Runs = dict[int, list[Row]]

METRICS = {
    "reward": "reward/mean",
    "logprob_gap": "train_rollout_logprob_abs_diff",
    "logprob_gap_max": "train_rollout_logprob_abs_diff_max",
    "entropy": "entropy_loss",
    "grad_norm": "grad_norm",
    "length": "response_len/mean",
    "truncated": "truncated_ratio",
    "without_signal": "zero_std/fraction",
    "tokens": "tokens",
}
SET = "eval/sums"
STAGES = ("ensure_engines", "generate", "reward", "advantage", "train", "weight_sync", "evaluate", "checkpoint")


def finished(run: Path) -> list[Row]:
    """The committed steps of a run, in order; none where it has not begun."""
    try:
        lines = (run / "metrics.jsonl").read_text().splitlines()
    except OSError:
        return []
    rows = []
    for line in lines:
        try:
            metrics = json.loads(line)
            folder = run / "steps" / f"{metrics['step']:06d}"
            manifest = json.loads((folder / "manifest.json").read_text())
        except (OSError, ValueError):  # being written
            break
        row: Row = {name: metrics.get(key, float("nan")) for name, key in METRICS.items()}
        row |= {"step": metrics["step"], "wall": manifest["wall_seconds"], "seconds": manifest["seconds"]}
        row["before"], row["eval"] = (
            score(folder / "stages" / f"{name}.json") for name in ("evaluate_before", "evaluate")
        )
        rows.append(row)
    return rows


def score(stage: Path) -> float | None:
    """Mean score of an evaluation; None where there was none."""
    if not stage.exists():
        return None
    found = json.loads(stage.read_text())["values"]["metrics"].get(SET)
    return None if found is None else float(found)


def evaluations(rows: list[Row]) -> list[tuple[int, float]]:
    """Updates that were done, and the score then."""
    before = [(row["step"], row["before"]) for row in rows if row["before"] is not None]
    return before + [(row["step"] + 1, row["eval"]) for row in rows if row["eval"] is not None]


def middle(rows: list[Row], stage: str | None = None) -> float:
    """Median seconds of a step, or of its stage, without the first two, which warm up."""
    warm = rows[2:] or rows
    spent = [row["wall"] if stage is None else row["seconds"].get(stage, 0.0) for row in warm]
    # a step that evaluates or saves is not the usual one, but its stage's seconds are the stage's
    if stage in ("evaluate", "checkpoint"):
        spent = [value for value in spent if value > 0] or [0.0]
    return statistics.median(spent)


def mean(rows: list[Row], name: str) -> float:
    return statistics.fmean(row[name] for row in rows)


def summary(runs: Runs, about: Row) -> list[list[str]]:
    """Rows of what, value, goal; ``about``: ``steps`` of a run, and whether all seeds ran ``at_once``."""
    found = []
    for seed, rows in runs.items():
        if not rows:
            continue
        first, last = rows[:5], rows[-5:]
        scores = evaluations(rows)
        found.append([f"seed {seed}: steps", str(len(rows)), str(about["steps"])])
        found.append(
            [
                f"seed {seed}: reward, mean of five steps, first to last",
                arrow(mean(first, "reward"), mean(last, "reward")),
                "rises",
            ]
        )
        if scores:
            best = max(value for _, value in scores)
            value = f"{arrow(scores[0][1], scores[-1][1])} (best {best:.3f})"
            found.append([f"seed {seed}: held-out sums, greedy, first to last", value, "rises"])
        gap = f"{mean(rows, 'logprob_gap'):.2g} (worst step {max(row['logprob_gap'] for row in rows):.2g})"
        found.append([f"seed {seed}: log-probabilities, trainer against engine, mean difference", gap, "below 0.05"])
        stages = ", ".join(f"{stage} {middle(rows, stage):.2f}" for stage in STAGES if middle(rows, stage) > 0.005)
        shared = ", all seeds on one GPU" if about.get("at_once") else ""
        found.append([f"seed {seed}: seconds of a step (median{shared})", f"{middle(rows):.2f} ({stages})", ""])
        found.append([f"seed {seed}: entropy, first to last", arrow(mean(first, "entropy"), mean(last, "entropy")), ""])
        share = arrow(mean(first, "without_signal"), mean(last, "without_signal"))
        found.append([f"seed {seed}: groups whose rewards are all equal, first to last", share, ""])
        found.append(
            [
                f"seed {seed}: tokens of a response, first to last",
                arrow(mean(first, "length"), mean(last, "length")),
                "",
            ]
        )
    return found


def arrow(first: float, last: float) -> str:
    return f"{first:.3f} -> {last:.3f}"


def table(runs: Runs, about: Row) -> str:
    """Markdown: the summary, then every tenth step."""
    lines = ["| | Seen | Goal |", "|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in summary(runs, about)]
    lines += [
        "",
        "| Seed | Updates | Reward, last 5 steps | Held-out | Entropy | Gradient norm | Gap of log-probs | Cut off |",
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    for seed, rows in runs.items():
        for done, value in evaluations(rows):
            part = [row for row in rows if done - 5 <= row["step"] < done] or rows[:1]
            reward = f"{mean(part, 'reward'):.3f}" if done else ""
            words = [f"{mean(part, name):.3g}" for name in ("entropy", "grad_norm", "logprob_gap", "truncated")]
            lines.append(f"| {seed} | {done} | {reward} | {value:.3f} | {' | '.join(words)} |")
    return "\n".join(lines) + "\n"


def write(runs: Runs, about: Row, out: Path, whole: bool) -> None:
    """``learning.json``, replaced in one go; ``whole``: also ``learning.md`` and ``learning.png``, and show it."""
    content = {"rows": summary(runs, about), "about": about, "seeds": runs}
    scratch = out / "learning.json.new"
    scratch.write_text(json.dumps(content, indent=1))
    scratch.replace(out / "learning.json")
    if whole and any(runs.values()):
        shown = table(runs, about)
        (out / "learning.md").write_text(shown)
        print("\n" + shown, flush=True)
        draw(runs, out / "learning.png")


def draw(runs: Runs, path: Path) -> None:
    """Six panels: reward, evaluation, seconds of the stages; difference of log-probs, entropy, gradient norm."""
    sys.path.append(str(ROOT / "docs"))
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
        from plots import BLUE, GREEN, GREY, ORANGE, PURPLE, STYLE
    except ImportError as error:
        print(f"no picture: {error}", flush=True)
        return
    colors = (BLUE, ORANGE, GREEN, PURPLE)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10.5, 5.8), layout="constrained", facecolor="white")
        panels = figure.subplots(2, 3).flat
        reward, held_out, seconds, gap, entropy, norm = panels
        for color, (seed, rows) in zip(colors, runs.items(), strict=False):
            steps = [row["step"] for row in rows]
            rewards = [row["reward"] for row in rows]
            smooth = [statistics.fmean(rewards[max(0, place - 4) : place + 1]) for place in range(len(rewards))]
            reward.plot(steps, rewards, color=color, lw=0.7, alpha=0.5)
            reward.plot(steps, smooth, color=color, label=f"seed {seed}")
            if scores := evaluations(rows):
                held_out.plot(*zip(*scores, strict=True), color=color, marker="o", ms=3, label=f"seed {seed}")
            gap.plot(steps, [row["logprob_gap"] for row in rows], color=color, label=f"seed {seed}")
            entropy.plot(steps, [row["entropy"] for row in rows], color=color, label=f"seed {seed}")
            norm.plot(steps, [row["grad_norm"] for row in rows], color=color, label=f"seed {seed}")
        first = next(rows for rows in runs.values() if rows)
        shown = [stage for stage in STAGES if sum(row["seconds"].get(stage, 0) for row in first[1:]) > 0.01]
        heights = [[row["seconds"].get(stage, 0.0) for row in first[1:]] for stage in shown]
        if shown:
            tones = (BLUE, ORANGE, GREEN, PURPLE, GREY, "#0e7490", "#be185d", "#854d0e")
            seconds.stackplot([row["step"] for row in first[1:]], heights, labels=shown, colors=tones, lw=0)
        titles = {
            reward: "reward (thick: mean of 5 steps)",
            held_out: "held-out sums, greedy",
            seconds: f"seconds by stage, seed {next(iter(runs))}, without step 0",
            gap: "log-probs, trainer - engine, mean |difference|",
            entropy: "entropy",
            norm: "gradient norm",
        }
        for axes, title in titles.items():
            axes.set_title(title)
            axes.set_xlabel("updates" if axes is held_out else "step")
            axes.set_ylim(bottom=0)
            axes.legend(loc="best", ncols=2 if axes is seconds else 1)
        figure.savefig(path, dpi=110)
    print(f"picture: {path}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("json", type=Path)
    parser.add_argument("--out", type=Path, help="by default beside the JSON")
    chosen = parser.parse_args()
    content = json.loads(chosen.json.read_text())
    runs = {int(seed): rows for seed, rows in content["seeds"].items()}
    write(runs, content["about"], chosen.out or chosen.json.parent, whole=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
