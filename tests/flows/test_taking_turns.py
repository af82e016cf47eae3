"""Runs whose trainer and engines share devices: who gives up and takes what, in which order, and after a kill.

Fake engines and trainers that fail where they work without their memory, or beside what would not fit; real flow, real
files. Reference: the same run in which nobody shares anything.
"""

from pathlib import Path
from typing import Any

import pytest
from fakes import FakeBackend, FakeEngines, FakeMemory, Killed, Stopper

from relax_core.config import RelaxConfig, with_options

pytestmark = pytest.mark.usefixtures("prefect_server")

SHARED = {"colocate": True, "sglang_mem_fraction_static": 0.4}
PPO = {
    "advantage_estimator": "ppo",
    "use_rollout_logprobs": True,
    "resource": {"actor": (1, 1), "rollout": (1, 1), "critic": (1, 1), "advantages": (1, 0)},
}


def config(run_dir: Path, model: Path, prompts: Path, **changes: Any) -> RelaxConfig:
    options = {
        "run_dir": str(run_dir),
        "hf_checkpoint": str(model),
        "prompt_data": str(prompts),
        "label_key": "label",
        "num_rollout": 2,
        "rollout_batch_size": 2,
        "n_samples_per_prompt": 2,
        "rollout_max_response_len": 8,
        "rm_type": "exact_number",
        "save_interval": 2,
        "eval_interval": 2,
        "eval_prompt_data": ["sums", str(prompts)],
    }
    return with_options(RelaxConfig(), options | changes)


def judged(model: Path) -> dict[str, Any]:
    return {
        "rm_type": "judge",
        "genrm_model_path": str(model),
        "genrm_engine_config": {"mem_fraction_static": 0.4},
    }


def run_to_end(settings: RelaxConfig, backend: FakeBackend) -> None:
    from flows.train import train

    train(settings, backend=backend)
    assert not backend.engine.misplaced


GENERATED = ["engines -kv_cache"]  # begun as soon as all is generated
TRAIN = [*GENERATED, "engines -weights", "trainer +state"]
HAND_OVER = ["engines +weights"]
GENERATE = ["trainer -state", "engines +kv_cache"]


def test_a_run_takes_turns(tmp_path: Path, tiny_model: Path, sums: Path) -> None:
    memory = FakeMemory("trainer", "engines")
    backend = FakeBackend(memory)
    run_to_end(config(tmp_path / "run", tiny_model, sums, **SHARED), backend)
    # All hold all at first: room for the first weights; then evaluate and generate with them. The checkpoint behind
    # step 1 needs no turn of its own; the evaluation behind that is with the weights handed over before.
    assert memory.turns == [
        "engines -kv_cache", *GENERATE,
        *TRAIN, *HAND_OVER, *GENERATE,
        *TRAIN, *HAND_OVER, *GENERATE,
    ]  # fmt: skip


def test_the_judge_gives_way_and_comes_back_with_the_engines(tmp_path: Path, tiny_model: Path, sums: Path) -> None:
    memory = FakeMemory("trainer", "engines", "judge")
    backend = FakeBackend(memory)
    run_to_end(config(tmp_path / "run", tiny_model, sums, eval_interval=None, **SHARED, **judged(tiny_model)), backend)
    whole = "judge +kv_cache,weights"
    train = [*GENERATED, "engines -weights", "judge -kv_cache,weights", "trainer +state"]
    assert memory.turns == [
        "engines -kv_cache", "judge -kv_cache,weights", *GENERATE, whole,
        *train, *HAND_OVER, *GENERATE, whole,
        *train, *HAND_OVER,
    ]  # fmt: skip


def test_actor_and_critic_take_turns_too(tmp_path: Path, tiny_model: Path, sums: Path) -> None:
    memory = FakeMemory("trainer", "critic", "engines")
    backend = FakeBackend(memory)
    settings = config(tmp_path / "run", tiny_model, sums, num_rollout=1, eval_interval=None, **SHARED, **PPO)
    run_to_end(settings, backend)
    assert memory.turns == [
        "engines -kv_cache", "critic -state", *GENERATE,
        *GENERATED, "engines -weights", "critic +state",  # its values, then its update
        "critic -state", "trainer +state",
        "engines +weights",
        "trainer -state", "critic +state",  # its checkpoint, after the actor's
    ]  # fmt: skip


@pytest.mark.parametrize("leave", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("stage", ["generate", "reward", "train", "weight_sync", "checkpoint", "evaluate"])
def test_a_run_that_was_killed_in_any_turn_goes_on(
    tmp_path: Path,
    tiny_model: Path,
    sums: Path,
    plain: FakeBackend,
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
    leave: bool,
) -> None:
    memory = FakeMemory("trainer", "engines", "judge")
    backend, settings = FakeBackend(memory), config(tmp_path / "run", tiny_model, sums, **SHARED, **judged(tiny_model))
    Stopper(monkeypatch, 1, stage, leave)
    with pytest.raises(Killed):
        run_to_end(settings, backend)
    run_to_end(settings, backend)
    assert backend.trainer.applied == plain.trainer.applied


def test_weights_that_were_given_up_are_sent_again(
    tmp_path: Path, tiny_model: Path, sums: Path, plain: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while training, and then the rollout is lost: it is generated anew, with the weights of the step."""
    memory = FakeMemory("trainer", "engines", "judge")
    backend, settings = FakeBackend(memory), config(tmp_path / "run", tiny_model, sums, **SHARED, **judged(tiny_model))
    Stopper(monkeypatch, 1, "train")
    with pytest.raises(Killed):
        run_to_end(settings, backend)
    backend.engine.label, backend.engine.weights = "released", "nothing"
    memory.give("engines", {"weights", "kv_cache"})
    (tmp_path / "run/steps/000001/rollout.parquet").unlink()
    run_to_end(settings, backend)
    assert backend.trainer.applied == plain.trainer.applied


class DyingJudge(FakeBackend):
    """The judge is found dead at one look and started again, for which all others make room; so do other engines of
    its own: it comes back without its memory."""

    def __init__(self, memory: FakeMemory, look: int) -> None:
        super().__init__(memory)
        self.look = look

    def ensure_genrm(self) -> FakeEngines:
        judge = super().ensure_genrm()
        if self.judges == self.look:
            self.trainer.offload()
            for engines in (FakeEngines(self.engine, self.memory), judge):
                engines.release(["weights", "kv_cache"])
        return judge


# The looks of a step: its beginning, the evaluation of the first weights, the scores, the sync, the other evaluation.
@pytest.mark.parametrize("look", [1, 2, 3, 4, 5])
def test_a_judge_that_was_started_anew_leaves_nobody_without_memory(
    tmp_path: Path, tiny_model: Path, sums: Path, look: int
) -> None:
    backend = DyingJudge(FakeMemory("trainer", "engines", "judge"), look)
    settings = config(
        tmp_path / "run", tiny_model, sums, num_rollout=1, eval_interval=1, **SHARED, **judged(tiny_model)
    )
    run_to_end(settings, backend)
    assert backend.judges == 5


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, prefect_server: None, tiny_model: Path, sums: Path) -> FakeBackend:
    """The run on a CPU, without turns."""
    backend = FakeBackend()
    run_to_end(config(tmp_path_factory.mktemp("plain") / "run", tiny_model, sums, **judged(tiny_model)), backend)
    return backend


def test_a_cpu_runs_the_same_command_line(tmp_path: Path, tiny_model: Path, sums: Path, plain: FakeBackend) -> None:
    backend = FakeBackend()
    run_to_end(config(tmp_path / "run", tiny_model, sums, **SHARED, **judged(tiny_model)), backend)
    assert backend.trainer.applied == plain.trainer.applied
