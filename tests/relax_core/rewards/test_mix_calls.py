"""A weighted sum as it is scored: each part is a call of its own."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from data.errors import UserError
from relax_core.rewards import parts, registry
from relax_core.rewards.calls import Call, Scorer
from relax_core.rewards.messages import Failed, Lost, Result, Task, Tell
from relax_core.rewards.outcome import Outcome
from relax_core.rewards.pool import RewardPool
from relax_core.rewards.types import UNDECIDED, RewardInput, RewardSpec

PANEL = Path(__file__).resolve().parents[2] / "data/rewards/mix.jsonl"
OPTIONS = dict.fromkeys(("reward_mix", *parts.OF_PARTS))


class FakePool:
    """Gives the results that it is told, and keeps what it was asked."""

    def __init__(self, *results: Result) -> None:
        self.results, self.tasks, self.seconds = list(results), [], []  # type: ignore[var-annotated]

    def run(self, tasks: Sequence[Task], seconds: Sequence[float], until_failed: bool, tell: Tell) -> list[Result]:
        self.tasks += tasks
        self.seconds += seconds
        return [self.results.pop(0) for _ in tasks]


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Adds a reward to the registry."""
    known = registry.builtin_rewards()

    def add(name: str, function: Any, **fields: Any) -> None:
        known[name] = RewardSpec(name, function, asyncio.iscoroutinefunction(function), "", "", **fields)

    monkeypatch.setattr(registry, "builtin_rewards", lambda: known)
    parts._read.cache_clear()
    yield add
    parts._read.cache_clear()


def sample(number: int = 0, response: str = "#### 42", label: Any = "42", **metadata: Any) -> RewardInput:
    return RewardInput(f"s-{number}", "p", response, label, metadata, response_length=4)


def scored(mix: Any, samples: Sequence[RewardInput], pool: Any = None, **scorer: Any) -> list[Outcome]:
    spec = registry.get("mix").configured({**OPTIONS, "reward_mix": mix})
    calls = [Call(spec, (each,)) for each in samples]
    found = Scorer(pool=None if pool is None else lambda: pool, **scorer)(calls)
    return [outcome for (outcome,) in found]


def known(outcome: Outcome) -> tuple[Any, ...]:
    return outcome.score, outcome.kind, outcome.components, outcome.error


@pytest.mark.parametrize("line", PANEL.read_text().splitlines(), ids=lambda line: json.loads(line)["reason"])
def test_a_row_of_the_panel_has_the_same_score_as_by_the_function(line: str) -> None:
    row = json.loads(line)
    given = RewardInput("row", row["prompt"], row["response"], row["label"], row["metadata"], row["response_length"])
    if row["score"] == "error":
        with pytest.raises(UserError, match="row"):
            scored(None, [given], FakePool())
        return
    [outcome] = scored(None, [given], FakePool())  # nothing here needs a process
    assert outcome.score == (None if row["score"] is None else pytest.approx(row["score"], abs=1e-6))
    assert outcome.kind == ("no_score" if row["score"] is None else "scored")
    value = registry.get("mix").function(given)
    numbers = {name: entry for name, entry in value.items() if entry is not None and name != "score"}
    assert outcome.components == numbers


def test_a_part_that_hangs_costs_its_own_limit_and_has_its_late_score() -> None:
    """A determinant of 36 symbols keeps sympy busy for minutes; format is 1 for both, math 1 for the second."""
    rows = r"\\".join("&".join(f"a_{{{i}{j}}}" for j in range(6)) for i in range(6))
    endless = rf"<think>t</think>\boxed{{\begin{{vmatrix}}{rows}\end{{vmatrix}}}}"
    samples = [sample(0, endless, "0"), sample(1, r"<think>t</think>\boxed{\max(3, 4)}", "4")]
    with RewardPool(1, 3.0) as pool:
        found = scored({"math": 1, "format": 0.5}, samples, pool, seconds=3.0)
    late = "its part math: it took longer than 3 s"
    assert known(found[0]) == (0.5, "failed", {"math": 0.0, "format": 1.0}, late)
    assert known(found[1]) == (1.5, "scored", {"math": 1.0, "format": 1.0}, None)


def test_isolated_parts_go_to_processes_with_their_own_limits_and_the_others_do_not(own: Any) -> None:
    own("slow", lambda sample: 1.0, isolated=True, seconds=7.0, late=-1.0)
    own("known", lambda sample: 1.0, isolated=True, quick=lambda sample: 3.0)
    own("unknown", lambda sample: 1.0, isolated=True, quick=lambda sample: UNDECIDED)
    pool = FakePool(Lost("timeout", "it took longer than 7 s"), [Outcome(4.0, components={"b": 1.0}, seconds=2.0)])
    [found] = scored({"gsm8k": 1, "slow": 10, "known": 1, "unknown": 1}, [sample()], pool, seconds=20.0)
    assert [task.function.name for task in pool.tasks] == ["slow", "unknown"]
    assert pool.seconds == [7.0, 20.0]
    values = {"gsm8k": 1.0, "slow": -1.0, "known": 3.0, "unknown": 4.0, "unknown/b": 1.0}
    assert known(found) == (-2.0, "failed", values, "its part slow: it took longer than 7 s")  # 1 - 10 + 3 + 4
    assert found.seconds is not None
    assert found.seconds >= 2.0


def test_a_part_that_is_lost_leaves_the_sum_without_a_score_and_the_others_with_theirs(own: Any) -> None:
    own("slow", lambda sample: 1.0, isolated=True)
    lost = Lost("crash", "the reward's process ended with signal 9")
    reason = "its part slow: the reward's process ended with signal 9"
    mix = {"gsm8k": 1, "slow": 1}
    for policy in ("fail", "no_score"):
        [found] = scored(mix, [sample()], FakePool(lost), policy=policy)
        assert known(found) == (None, "failed", {"gsm8k": 1.0}, reason)
    [found] = scored(mix, [sample()], FakePool(lost), policy="zero")
    assert known(found) == (1.0, "failed", {"gsm8k": 1.0, "slow": 0.0}, reason)


def test_the_policy_for_errors_is_the_parts_own(own: Any) -> None:
    async def refuses(sample: RewardInput) -> float:
        raise UserError("The judge refuses.")

    own("refuses", refuses)
    own("slow", lambda sample: 1.0, isolated=True)
    wrong = {"gsm8k": 1, "slow": 1, "refuses": 1, "format": 1}
    failed = Failed("The reward slow failed.", "", "")
    given = [sample(0, label="no number")]
    reasons = "its part gsm8k: {}; its part slow: The reward slow failed.; its part refuses: The judge refuses."
    with pytest.raises(UserError) as caught:
        scored(wrong, given, FakePool(failed))
    problem = caught.value.problem
    assert "s-0 is not a number" in problem
    [found] = scored(wrong, given, FakePool(failed), policy="no_score")
    assert known(found) == (None, "failed", {"format": 0.0}, reasons.format(problem))
    [found] = scored(wrong, given, FakePool(failed), policy="zero")
    values = {"gsm8k": 0.0, "slow": 0.0, "refuses": 0.0, "format": 0.0}
    assert known(found) == (0.0, "failed", values, reasons.format(problem))
    with pytest.raises(UserError, match="The reward slow failed"):
        scored({"slow": 1, "refuses": 1}, given, FakePool(failed))


def test_a_part_without_a_score_is_named(own: Any) -> None:
    async def silent(sample: RewardInput) -> None:
        return None

    own("silent", silent)
    [found] = scored({"gsm8k": 1, "silent": 0}, [sample()])
    assert known(found) == (None, "no_score", {"gsm8k": 1.0}, "no score from silent")


def test_coroutines_of_all_samples_run_together_and_each_part_is_called_once(own: Any) -> None:
    calls: Counter[str] = Counter()
    running: set[str] = set()
    most = 0

    async def judge(sample: RewardInput) -> dict[str, Any]:
        nonlocal most
        calls[f"judge {sample.sample_id}"] += 1
        running.add(sample.sample_id)
        most = max(most, len(running))
        while len(running) < 4 and most < 4:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        running.discard(sample.sample_id)
        return {"score": 1.0, "verdict": float(sample.sample_id[2:]), "judge_output": f"Fine, {sample.sample_id}."}

    def quick(sample: RewardInput) -> float:
        calls[f"quick {sample.sample_id}"] += 1
        return 1.0

    own("asked", judge, key="score")
    own("quick", quick)
    samples = [sample(number) for number in range(8)]
    found = scored({"quick": 1, "asked": {"weight": 2, "key": "verdict"}}, samples, concurrency=4)
    assert [outcome.score for outcome in found] == [1.0 + 2 * number for number in range(8)]
    assert most == 4
    assert set(calls.values()) == {1}
    assert len(calls) == 16
    assert found[3].components == {"asked/score": 1.0, "asked": 3.0, "quick": 1.0}
    assert found[3].texts == {"judge_output": "Fine, s-3."}


def test_a_part_that_waits_too_long_is_lost_alone(own: Any) -> None:
    async def waits(sample: RewardInput) -> float:
        await asyncio.sleep(0 if sample.sample_id == "s-1" else 1000)
        return 1.0

    own("waits", waits)
    found = scored({"gsm8k": 1, "waits": 1}, [sample(0), sample(1)], seconds=0.2)
    late = "its part waits: it took longer than 0.2 s"
    assert known(found[0]) == (None, "failed", {"gsm8k": 1.0}, late)
    assert known(found[1]) == (2.0, "scored", {"gsm8k": 1.0, "waits": 1.0}, None)


def test_a_wrong_key_of_a_part_and_a_wrong_sum_follow_the_policy(own: Any) -> None:
    rows = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    given = sample(reward_mix={"gsm8k": 1, "ifbench": {"key": "nothing"}}, **rows)
    with pytest.raises(UserError, match="The part ifbench of the reward mix returned a dict without the key 'nothing'"):
        scored(None, [given])
    [found] = scored(None, [given], policy="no_score")
    assert (found.score, found.kind, found.components) == (None, "failed", {"gsm8k": 1.0})
    huge = sample(reward_mix={"gsm8k": 1e300})
    [found, other] = scored(None, [huge, sample(1, reward_mix={"gsm8k": 1})], policy="zero")
    assert (found.score, found.kind, other.score) == (0.0, "failed", 1.0)


def test_sums_stand_among_other_calls_in_their_places(own: Any) -> None:
    async def later(sample: RewardInput) -> float:
        return 5.0

    own("later", later)
    mix = registry.get("boxed_mix").configured({**OPTIONS, "reward_mix": {"later": 1, "gsm8k_flexible": 1}})
    named = {name: registry.get(name) for name in ("gsm8k", "later")}
    first = replace(sample(), response=r"\boxed{42} of 50")
    calls = [
        Call(named["later"], (first,)),
        Call(mix, (first,)),
        Call(named["gsm8k"], (sample(1),)),
        Call(mix, (first,)),
    ]
    assert [outcome.score for (outcome,) in Scorer()(calls)] == [5.0, 6.0, 1.0, 6.0]


def test_programs_may_be_a_part(own: Any) -> None:
    pool = FakePool([Outcome(1.0, components={"passed": 2.0})])
    spec = registry.get("mix").configured(
        {**OPTIONS, "reward_mix": {"code": 1, "format": 1}, "code_sandbox": "full", "reward_timeout": 9.0}
    )
    [[found]] = Scorer(pool=lambda: pool)([Call(spec, (sample(),))])  # type: ignore[arg-type, return-value]
    assert json.loads(pool.tasks[0].function.settings) == {"code_sandbox": "full", "reward_timeout": 9.0}
    assert found.components == {"code": 1.0, "code/passed": 2.0, "format": 0.0}
