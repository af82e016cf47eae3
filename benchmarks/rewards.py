"""Verdicts and speed of the rewards for mathematical answers.

    python benchmarks/rewards.py [--samples 4096] [--data FILE] [--limit 10] [--part verdicts|speed|table]

Three parts. *verdicts*: the rows of tests/data/rewards that ``math`` decides, graded by it, by math-verify alone (label
and response as its documentation says) and by comparing the text in the last box; each wrong row of ours is shown.
*speed*: responses to word problems whose label is a number, right and wrong ones in equal parts, graded by ``gsm8k``
and ``math`` and by math-verify, one after the other in one process; the rows on which they disagree, counted by the
reason. *table*: as many samples through the whole reward stage, the last time by ``mix`` of four parts. ``--data``
takes JSON lines whose ``answer`` ends with ``#### NUMBER``; without it labels are made. Everything else is made from
``--seed``.
"""

import argparse
import json
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from relax_core.rewards import registry
from relax_core.rewards.answers.boxed import last_box
from relax_core.rewards.types import UNDECIDED, RewardInput

PANEL = Path(__file__).resolve().parents[1] / "tests/data/rewards/math.jsonl"
MIX = {"math": 1, "format": 0, "overlong": {"weight": 1, "max": 20480, "buffer": 4096}, "repetition": 0}
SENTENCES = (
    "First we read the question and write down what is known.",
    "There are {a} of them, and each costs {b} dollars, so we multiply {a} by {b}.",
    "That gives {a} + {b} = {c} in the end, and we go on with {c}.",
    "Half of {a} is not needed here.",
    "Let $x$ be what we look for, so that $x = {a} \\cdot {b} - {c}$.",
)


def plain_number(text: str, rng: random.Random) -> str:
    """One of the ways in which models write a number."""
    digits = text.replace(",", "")
    ways = [digits, digits, digits, f"{digits}.", f"{digits}.00" if "." not in digits else digits, f"${digits}"]
    if digits.lstrip("-").isdigit():
        ways.append(f"{int(digits):,}")
    return rng.choice(ways)


def wrong_number(text: str, rng: random.Random) -> str:
    """Another number, near by."""
    value = float(text.replace(",", ""))
    changed = rng.choice([value + 1, value - 1, value * 10 or 5.0, -value or 2.0, value + 0.5])
    return f"{changed:.0f}" if changed == int(changed) else f"{changed:.1f}"


class Problem(NamedTuple):
    """A label, responses that mark and that box their answer, and whether that is right."""

    label: str
    marked: str
    boxed: str
    right: bool


def problems(path: Path | None, count: int, seed: int) -> Iterator[Problem]:
    """Problems with responses."""
    rng = random.Random(seed)
    if path is None:
        labels = [
            str(rng.choice([rng.randrange(200), rng.randrange(100_000), rng.randrange(-50, 0)])) for _ in range(count)
        ]
    else:
        rows = [json.loads(line)["answer"].rsplit("####", 1)[1].strip() for line in path.read_text().splitlines()]
        labels = [rows[i % len(rows)] for i in range(count)]
    for i, label in enumerate(labels):
        numbers = {name: rng.randrange(1, 500) for name in "abc"}
        text = " ".join(rng.choice(SENTENCES).format(**numbers) for _ in range(rng.randrange(3, 12)))
        right = i % 2 == 0
        answer = plain_number(label if right else wrong_number(label, rng), rng)
        yield Problem(label, f"{text}\n#### {answer}", f"{text} The answer is $\\boxed{{{answer}}}$.", right)


def builtin(name: str) -> Callable[[Any, str], bool]:
    """A built-in reward, the quick function first."""
    spec = registry.get(name)

    def grade(label: Any, response: str) -> bool:
        sample = RewardInput("s", "", response, label)
        score = spec.quick(sample) if spec.quick else UNDECIDED
        return bool((spec.function(sample) if score is UNDECIDED else score) == 1)

    return grade


def math_verify(label: Any, response: str) -> bool:
    """math-verify as its documentation uses it: the label in dollars, the response as it is."""
    from math_verify import parse, verify

    return verify(parse(f"${label}$"), parse(response))


def boxed_text(label: Any, response: str) -> bool:
    """The text in the last box equals the label, spaces aside."""
    answer = last_box(response)
    return answer is not None and "".join(answer.split()) == "".join(str(label).split())


class Killable:
    """A function in a process that is ended when a call takes too long."""

    def __init__(self, function: Callable[[Any, str], bool], seconds: float) -> None:
        self.function, self.seconds = function, seconds
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.here, there = context.Pipe()
        self.process = context.Process(target=_serve, args=(there, self.function), daemon=True)
        self.process.start()
        self.here.send((1, "1"))  # it imports what it needs
        self.here.recv()

    def __call__(self, label: Any, response: str) -> bool | str:
        self.here.send((label, response))
        if self.here.poll(self.seconds):
            return self.here.recv()
        self.process.kill()
        self._start()
        return "hangs"


def _serve(connection: Connection, function: Callable[[Any, str], bool]) -> None:
    while True:
        try:
            connection.send(function(*connection.recv()))
        except EOFError:
            return
        except Exception as error:  # what a library raises is a verdict of its own
            connection.send(type(error).__name__)


def verdicts(limit: int) -> None:
    """Part one."""
    rows = [json.loads(line) for line in PANEL.read_text().splitlines()]
    rows = [row for row in rows if row["score"] in (0, 1)]
    library, ours = Killable(math_verify, 10), builtin("math")
    wrong: Counter[str] = Counter()
    kinds: Counter[tuple[str, str]] = Counter()
    undecided = 0
    for row in rows:
        label, response, right = row["label"], row["response"], row["score"] == 1
        quick = registry.get("math").quick
        undecided += quick is not None and quick(RewardInput("s", "", response, label)) is UNDECIDED
        answers = {
            "math": ours(label, response),
            "math-verify": library(label, response),
            "text in the box": boxed_text(label, response),
        }
        for name, answer in answers.items():
            if answer != right:
                kind = "right ones refused" if right else "wrong ones accepted"
                if isinstance(answer, str):
                    kind = "no answer in time, or an error"
                wrong[name] += 1
                kinds[name, kind] += 1
                if name == "math" or (name == "math-verify" and limit > 0):
                    limit -= name != "math"
                    print(f"  {name}: label {label!r}, response {response[:60]!r}: {answer}, {row['reason']}")
    columns = ("wrong ones accepted", "right ones refused", "no answer in time, or an error")
    print(f"\n| {len(rows)} rows | wrong | {' | '.join(columns)} |\n|---|---|---|---|---|")
    for name in ("math", "math-verify", "text in the box"):
        print(f"| {name} | {wrong[name]} | {' | '.join(str(kinds[name, column]) for column in columns)} |")
    print(f"\nmath left {undecided} of {len(rows)} rows to sympy")


def speed(path: Path | None, count: int, seed: int, limit: int) -> None:
    """Part two."""
    rows = list(problems(path, count, seed))
    math_verify(1, "1")
    print(f"\n{len(rows)} responses, half of them right; rates by processor time")
    for name, kind in (("gsm8k", "marked"), ("math", "boxed")):
        rates, found = {}, {}
        for what, grade in ((name, builtin(name)), ("math-verify", math_verify)):
            start = time.process_time()
            found[what] = [grade(row.label, getattr(row, kind)) for row in rows]
            rates[what] = len(rows) / (time.process_time() - start)
        truth = [row.right for row in rows]
        wrong = {what: sum(a != b for a, b in zip(answers, truth, strict=True)) for what, answers in found.items()}
        print(
            f"{name}: {rates[name]:,.0f} a second, {wrong[name]} wrong; math-verify: {rates['math-verify']:,.0f} a "
            f"second, {wrong['math-verify']} wrong; ratio {rates[name] / rates['math-verify']:.0f}"
        )
        differing = [i for i in range(len(rows)) if found[name][i] != found["math-verify"][i]]
        right = sum(found[name][i] == truth[i] for i in differing)
        print(f"  they differ on {len(differing)}, where {name} is right on {right}")
        for i in differing[:limit]:
            response = getattr(rows[i], kind)
            print(f"  label {rows[i].label!r}, response ...{response[-24:]!r}: {name} {found[name][i]}")


def table(path: Path | None, count: int, seed: int) -> None:
    """Part three."""
    import numpy as np
    import pyarrow as pa

    from data.ragged import Ragged
    from data.schema import ROLLOUT
    from data.schema import table as schema_table
    from relax_core.config.sections import RelaxConfig
    from relax_core.rewards.score import score_table

    rows = list(problems(path, count, seed))
    ones = Ragged.from_list([[1]] * count, np.uint8)
    for name, kind in (("gsm8k", "marked"), ("math", "boxed"), ("mix", "boxed")):
        rollout = schema_table(
            ROLLOUT,
            {
                "sample_id": [f"000000-{i // 8:04d}-{i % 8:03d}" for i in range(count)],
                "group_id": [f"000000-{i // 8:04d}" for i in range(count)],
                "prompt_id": ["00000000"] * count,
                **{key: [0] * count for key in ("group_index", "index", "step", "seed", "abort_count")},
                "prompt": ["q"] * count,
                "tokens": Ragged.from_list([[1, 2]] * count, np.int32),
                **{key: [1] * count for key in ("prompt_length", "response_length")},
                "response": [getattr(row, kind) for row in rows],
                "label": pa.array([json.dumps(row.label) for row in rows], pa.string()),
                "metadata": ["{}"] * count,
                "loss_mask": ones,
                "rollout_log_probs": ones.astype(np.float32),
                "weight_versions": ones.astype(np.int32),
                "status": ["completed"] * count,
                "finish_reason": ["stop"] * count,
                "remove_sample": [False] * count,
            },
        )
        start = time.perf_counter()
        scores = score_table(rollout, RelaxConfig.model_validate({"reward": {"rm_type": name, "reward_mix": MIX}}))
        seconds = time.perf_counter() - start
        right = sum(score == float(row.right) for score, row in zip(scores["reward"].to_pylist(), rows, strict=True))
        print(f"reward stage, {name}: {count} samples in {seconds:.2f} s, {count - right} wrong")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=10, help="most rows that are shown of each kind")
    parser.add_argument("--part", choices=("verdicts", "speed", "table"))
    options = parser.parse_args()
    if options.part in (None, "verdicts"):
        verdicts(options.limit)
    if options.part in (None, "speed"):
        speed(options.data, options.samples, options.seed, options.limit)
    if options.part in (None, "table"):
        table(options.data, options.samples, options.seed)


if __name__ == "__main__":
    main()
