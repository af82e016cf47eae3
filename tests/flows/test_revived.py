"""Engines and a trainer that die together, and engines that are started anew beside another step (fakes, plain loop).

Guarantee of ``relax_core.run.reconcile``: an engine that generates has the weights that the engines were given last,
whoever died, and nobody waits for weights that nobody sends.
"""

from pathlib import Path
from typing import Any

import pytest
from fakes import FakeBackend, FakeEngines, FakeTrainer, Killed, Stopper
from loop import run_plain, small_config

from data.errors import Lost
from data.store import RunStore
from relax_core.config import RelaxConfig
from relax_core.config.options import with_options
from relax_core.run.records import StageRecords
from relax_core.run.recovery import History

STEPS, SAMPLES = 4, 4


def config(folder: Path, model: Path, prompts: Path, **options: Any) -> RelaxConfig:
    devices = {"actor": (1, 1), "rollout": (1, 1)}
    return small_config(folder, model, prompts, **{"num_rollout": STEPS, "resource": devices, **options})


class Reviving(FakeBackend):
    """Its engine dies where it has no ``answers`` left, and its trainer with it if that is wished; ``ensure`` gives new
    ones, without weights of the run."""

    trainer_too = False

    def ensure(self, critic: bool = False) -> tuple[FakeTrainer, FakeEngines]:
        if self.engine.answers == 0:
            self.engine.answers, self.engine.label, self.engine.weights = None, "default", "start"
            if self.trainer_too:
                self.lose_actor()
        return super().ensure(critic)


MODES: list[dict[str, Any]] = [
    {},
    {"update_weights_interval": 3, "use_rollout_logprobs": True},
    {"fully_async": True, "max_staleness": 0},
    {"fully_async": True, "max_staleness": 1, "update_weights_interval": 3, "use_rollout_logprobs": True},
]


@pytest.mark.parametrize("trainer_too", [False, True], ids=["engine", "engine and trainer"])
@pytest.mark.parametrize("mode", MODES, ids=["plain", "interval", "overlapping", "overlapping interval"])
def test_a_generation_goes_on_when_all_that_has_its_weights_is_lost(
    mode: dict[str, Any], trainer_too: bool, tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    """With an interval of 3, step 1 generates with version 0 when the trainer is at 1: it must go back for it."""
    engines = Reviving()
    engines.trainer_too = trainer_too
    engines.engine.answers = SAMPLES + 2  # it dies in the middle of step 1
    settings = config(tmp_path, tiny_model, sums, **mode)
    store = RunStore(run_plain(settings, engines)["run"])
    interval, staleness = mode.get("update_weights_interval", 1), mode.get("max_staleness", 0)
    for step in range(STEPS):
        rows = store.read_table(f"steps/{step:06d}/rollout.parquet")["token_versions"].to_pylist()
        made_by = {version for row in rows for version in row}
        assert all((step - staleness) // interval * interval <= version <= step for version in made_by)
    assert engines.engine.generate_calls == STEPS * SAMPLES  # what was finished is not asked for again
    assert len({version for version, _ in engines.trainer.applied}) == len(set(engines.trainer.applied)) == STEPS


def test_a_generation_that_is_done_again_begins_with_engines_that_have_its_weights(
    tmp_path: Path, tiny_model: Path, sums: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine dies in step 1, and while a new one is looked for, that fails as well."""
    from relax_core.run import generating

    engines, real, failures = Reviving(), generating.revive, [Lost("The node is gone.")]

    def fails_once(run: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(run)

    monkeypatch.setattr(generating, "revive", fails_once)
    engines.engine.answers = SAMPLES + 2
    store = RunStore(run_plain(config(tmp_path, tiny_model, sums), engines)["run"])
    rows = store.read_table("steps/000001/rollout.parquet")["weight_versions"].to_pylist()
    assert {tuple(row) for row in rows} == {(1,)}
    assert engines.engine.generate_calls == STEPS * SAMPLES


def test_an_evaluation_goes_on_when_its_engine_is_lost(tmp_path: Path, tiny_model: Path, sums: Path) -> None:
    engines = Reviving()
    engines.trainer_too = True
    engines.engine.answers = SAMPLES + 2  # in the evaluation behind step 0
    options = {"eval_prompt_data": ["sums", f"{sums}@[0:3]"], "eval_interval": 1, "skip_eval_before_train": True}
    store = RunStore(run_plain(config(tmp_path, tiny_model, sums, **options), engines)["run"])
    rows = store.read_table("steps/000000/eval/sums.parquet")["weight_versions"].to_pylist()
    assert {tuple(row) for row in rows} == {(1,)}


def test_a_step_behind_one_that_is_learned_anew_waits_for_its_weights(
    tmp_path: Path, tiny_model: Path, sums: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 1 has trained when the driver is killed; the next start has another reward, so that it trains again, and
    step 2 may only begin with weights that came out of that (--max-staleness 0)."""
    engines, labels = FakeBackend(), dict[str, set[str]]()
    settings = config(tmp_path, tiny_model, sums, fully_async=True, max_staleness=0)
    with monkeypatch.context() as patch:
        Stopper(patch, 1, "commit")
        with pytest.raises(Killed):
            run_plain(settings, engines)
    real = engines.engine.length

    def length(rid: str, *arguments: Any) -> int:
        labels.setdefault(rid[:6], set()).add(engines.engine.label)
        return real(rid, *arguments)

    monkeypatch.setattr(engines.engine, "length", length)
    store = RunStore(run_plain(with_options(settings, {"rm_type": "math"}), engines)["run"])
    made = History(store, StageRecords(store), "", "").weights_id(2)
    assert labels["000002"] == {f"2.{made}"}
