"""What dies under a run is started anew, and the run goes on (fake engine and trainer, flows and tasks as plain
functions).

Guarantee of ``tasks.stage``: a stage is done again when something died under it, three times at most.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeBackend, FakeEngines, FakeTrainer
from loop import run_plain, small_config

from data.errors import Lost
from data.store import RunStore
from relax_core.config import RelaxConfig
from relax_core.config.options import with_options
from relax_core.run import reconcile
from relax_core.tracking.events import read_events

STEPS, SAMPLES = 3, 4


def config(folder: Path, model: Path, prompts: Path, **options: Any) -> RelaxConfig:
    return small_config(folder, model, prompts, **{"num_rollout": STEPS, **options})


def train(settings: RelaxConfig, engines: FakeBackend) -> RunStore:
    return RunStore(run_plain(settings, engines)["run"])


class Dying(FakeBackend):
    """Its trainer dies in calls of one kind, as often as planned; ``ensure`` gives a new one, which is at version 0."""

    def __init__(self, method: str, step: int, times: int) -> None:
        super().__init__()
        self.method, self.step, self.left, self.dead = method, step, times, False
        self.trainer = self._with_fault(self.trainer)

    def _with_fault(self, trainer: FakeTrainer) -> FakeTrainer:
        real: Callable[..., Any] = getattr(trainer, self.method)

        def call(*arguments: Any) -> Any:
            if self.dead:
                raise Lost("The trainer is dead.")
            if self.left and trainer.version >= self.step:
                self.left, self.dead = self.left - 1, True
                raise Lost("The trainer died.")
            return real(*arguments)

        setattr(trainer, self.method, call)
        return trainer

    def ensure(self, critic: bool = False) -> tuple[FakeTrainer, FakeEngines]:
        if self.dead:
            self.lose_actor()
            self.trainer, self.dead = self._with_fault(self.trainer), False
        return super().ensure(critic)


@pytest.mark.parametrize("method", ["train", "push_weights", "save"])
def test_a_trainer_that_dies_is_started_anew_and_learns_again_what_is_stored(
    method: str, tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    plain = FakeBackend()
    train(config(tmp_path / "plain", tiny_model, sums), plain)
    engines = Dying(method, step=1, times=1)
    store = train(config(tmp_path / "dying", tiny_model, sums), engines)
    assert engines.trainer.weights == plain.trainer.weights
    assert engines.engine.generate_calls == plain.engine.generate_calls == STEPS * SAMPLES
    assert len(read_events(store, kind="retry")) == 1
    assert read_events(store, kind="driver_started")[1:] == []  # one driver all along


def test_a_trainer_that_dies_again_and_again_ends_the_run_with_the_reason(
    tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    engines = Dying("train", step=1, times=9)
    settings = config(tmp_path, tiny_model, sums)
    with pytest.raises(Lost, match="The trainer died"):
        train(settings, engines)
    store = RunStore(str(settings.run.run_dir))
    assert [event["attempt"] for event in read_events(store, kind="retry")] == [2, 3]
    engines.left = 0  # the next start goes on
    train(settings, engines)
    assert engines.engine.generate_calls == STEPS * SAMPLES


def test_a_trainer_that_dies_while_the_run_is_resumed_is_started_anew(
    tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    """A new driver, a new trainer, which dies as it loads the checkpoint of the first two steps."""
    plain = FakeBackend()
    train(config(tmp_path / "plain", tiny_model, sums), plain)
    train(config(tmp_path, tiny_model, sums, num_rollout=2), FakeBackend())
    engines = Dying("load", step=0, times=1)
    store = train(config(tmp_path, tiny_model, sums), engines)
    assert engines.trainer.weights == plain.trainer.weights
    assert [(event["who"], event["step"]) for event in read_events(store) if event["kind"] == "retry"] == [
        ("ensure_engines", 2)
    ]


def test_what_dies_as_it_comes_up_for_the_first_time_is_not_tried_again(
    tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    class Stillborn(FakeBackend):
        def ensure(self, critic: bool = False) -> tuple[FakeTrainer, FakeEngines]:
            super().ensure(critic)
            raise Lost("The trainer died.")

    engines = Stillborn()
    with pytest.raises(Lost):
        train(config(tmp_path, tiny_model, sums), engines)
    assert engines.ensured == 1


def test_the_last_engine_dies_and_the_generation_goes_on_with_a_new_one(
    tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    class Reviving(FakeBackend):
        def ensure(self, critic: bool = False) -> tuple[FakeTrainer, FakeEngines]:
            if self.engine.answers == 0:  # dead: a new one has no weights of ours
                self.engine.answers, self.engine.label, self.engine.weights = None, "default", "start"
            return super().ensure(critic)

    plain, engines = FakeBackend(), Reviving()
    first = train(config(tmp_path / "plain", tiny_model, sums), plain)
    engines.engine.answers = SAMPLES + 2  # it dies in the middle of step 1
    second = train(config(tmp_path / "dying", tiny_model, sums), engines)
    assert engines.engine.generate_calls == plain.engine.generate_calls
    assert engines.trainer.weights == plain.trainer.weights
    path = "steps/000001/rollout.parquet"
    assert second.read_table(path).equals(first.read_table(path))
    assert [event["step"] for event in read_events(second, kind="engine_lost")] == [1]
    assert not read_events(second, kind="retry")


def test_engines_get_new_weights_each_second_step_where_that_is_asked_for(
    tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    engines = FakeBackend()
    settings = config(tmp_path, tiny_model, sums, update_weights_interval=2, num_rollout=5, use_rollout_logprobs=True)
    store = train(settings, engines)
    versions = [
        store.read_table(f"steps/{step:06d}/rollout.parquet")["weight_versions"][0].as_py() for step in range(5)
    ]
    assert versions == [[0], [0], [2], [2], [4]]
    assert [event for event in engines.engine.events if event.startswith("push")] == ["push 0", "push 2", "push 4"]


def test_a_run_between_two_pushes_goes_on_with_the_weights_that_its_engines_should_have(
    tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    settings = config(tmp_path, tiny_model, sums, update_weights_interval=2, num_rollout=3, use_rollout_logprobs=True)
    engines = FakeBackend()
    train(settings, engines)
    engines.lose_all()
    longer = with_options(settings, {"num_rollout": 4})  # step 3 generates with version 2, the run is at version 3
    store = train(longer, engines)
    assert store.read_table("steps/000003/rollout.parquet")["weight_versions"][0].as_py() == [2]
    plain = FakeBackend()
    train(with_options(longer, {"run_dir": str(tmp_path / "plain")}), plain)
    assert engines.trainer.weights == plain.trainer.weights


def test_an_engine_that_waits_for_a_trainer_that_died_in_a_push_is_ended(
    tmp_path: Path, tiny_model: Path, sums: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconcile, "stuck", lambda urls: {urls[0]: "it does not answer"})
    engines = Dying("push_weights", step=1, times=1)
    train(config(tmp_path, tiny_model, sums), engines)
    assert engines.ended == [engines.engine.url]
