"""Work that asks a judge whose engines die."""

from types import SimpleNamespace
from typing import Any

import pytest

from data.errors import UserError
from relax_core.rewards.calls import Call, Scorer
from relax_core.rewards.messages import Failed, Result, Task, Tell
from relax_core.rewards.outcome import Outcome
from relax_core.rewards.scored import ScoredCalls
from relax_core.rewards.types import RewardInput, RewardSpec
from relax_core.run.asking import TRIES, asking


class Run:
    """Its judge has another address after each death."""

    def __init__(self) -> None:
        self.deaths = 0

    def services(self) -> dict[str, list[str]]:
        return {"genrm": [f"http://{self.deaths}"]}


def test_work_is_done_again_when_an_engine_was_replaced_and_only_then() -> None:
    run: Any = Run()
    seen: list[str] = []

    def dying(services: Any, deaths: int) -> str:
        seen.append(services["genrm"][0])
        if run.deaths < deaths:
            run.deaths += 1
            raise UserError("The judge gave no answer.")
        return "done"

    assert asking(run, lambda services: dying(services, 2)) == "done"
    assert seen == ["http://0", "http://1", "http://2"]

    with pytest.raises(UserError, match="gave no answer"):
        asking(run, lambda services: dying(services, 99))
    assert len(seen) == 3 + TRIES

    def wrong(services: Any) -> None:
        seen.append("wrong")
        raise UserError("The label is wrong.")

    with pytest.raises(UserError, match="label is wrong"):
        asking(run, wrong)
    assert seen.count("wrong") == 1


def sample(number: int) -> RewardInput:
    return RewardInput(f"s-{number}", "p", "r")


def test_what_had_its_outcome_is_not_called_again() -> None:
    """Coroutines one at a time: the third one fails, so the first two are known. Of the two calls in processes, which
    are made first, one fails the first time."""
    asked: list[str] = []
    living = False

    async def judge(sample: RewardInput) -> float:
        asked.append(sample.sample_id)
        if sample.sample_id == "s-2" and not living:
            raise UserError("The judge gave no answer.")
        return 1.0

    class FakePool:
        def __init__(self) -> None:
            self.tasks: list[str] = []
            self.fails = True

        def run(self, tasks: list[Task], seconds: Any, until_failed: bool, tell: Tell) -> list[Result]:
            asked = [task.samples[0].sample_id for task in tasks]
            self.tasks += asked
            fails, self.fails = self.fails, False
            results: list[Result] = [
                Failed("No.", "", "") if fails and name == "s-6" else [Outcome(2.0)] for name in asked
            ]
            for place, result in enumerate(results):
                tell(place, result)
            return results

    judged = RewardSpec("judge", judge, True, "", "")
    slow = RewardSpec("slow", lambda sample: 2.0, False, "", "", isolated=True)
    quick = RewardSpec("quick", lambda sample: 3.0, False, "", "")
    kept, pool = ScoredCalls(), FakePool()
    scorer: Any = Scorer(concurrency=1, pool=lambda: pool, kept=kept)  # type: ignore[arg-type, return-value]

    def calls() -> list[Call]:
        specs = [judged, judged, judged, judged, quick, slow, slow]
        return [Call(spec, (sample(number),)) for number, spec in enumerate(specs)]

    with pytest.raises(UserError, match="No"):
        scorer(calls())
    assert (pool.tasks, asked) == (["s-5", "s-6"], [])
    with pytest.raises(UserError, match="gave no answer"):
        scorer(calls())
    assert pool.tasks == ["s-5", "s-6", "s-6"]
    assert asked[:3] == ["s-0", "s-1", "s-2"]
    living = True
    scores = [outcome.score for (outcome,) in scorer(calls())]
    assert scores == [1.0, 1.0, 1.0, 1.0, 3.0, 2.0, 2.0]
    assert len(pool.tasks) == 3
    assert [asked.count(f"s-{number}") for number in range(3)] == [1, 1, 2]


def test_a_failed_outcome_is_not_kept_and_content_tells_calls_apart() -> None:
    spec = SimpleNamespace(name="judge")
    kept = ScoredCalls()
    first = Call(spec, (sample(0),))  # type: ignore[arg-type]
    assert kept.find(first) is None
    kept.keep(first, [Outcome(kind="failed")])
    assert kept.find(Call(spec, (sample(0),))) is None  # type: ignore[arg-type]
    kept.keep(first, [Outcome(1.0)])
    assert kept.find(Call(spec, (sample(0),))) == [Outcome(1.0)]  # type: ignore[arg-type]
    assert kept.find(Call(spec, (sample(0),), key="verdict")) is None  # type: ignore[arg-type]
    assert kept.find(Call(spec, (sample(1),))) is None  # type: ignore[arg-type]
    other = ScoredCalls()
    other.take(kept)
    assert other.find(Call(spec, (sample(0),))) == [Outcome(1.0)]  # type: ignore[arg-type]
