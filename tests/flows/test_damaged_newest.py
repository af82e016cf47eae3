"""A newest step that is incomplete or damaged in any of its files: set aside with a warning, the run goes on from what
is whole, and ends as if nothing had happened. Earlier steps are left as they are.

The run has three steps and checkpoints of steps 1 and 2; the engines are lost with the driver.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeBackend
from loop import Asked, run_plain

from data.errors import UserError
from data.store import RunStore
from relax_core.config import RelaxConfig
from relax_core.tracking.events import read_events
from relax_core.tracking.jsonl import read_metrics

STEPS, AFTER = 3, 4


def config(run_dir: Path, model: Path, prompts: Path, steps: int) -> RelaxConfig:
    return RelaxConfig.model_validate(
        {
            "run": {"run_dir": str(run_dir)},
            "checkpoint": {"hf_checkpoint": str(model), "save_interval": 2},
            "data": {"prompt_data": str(prompts), "label_key": "label", "rollout_shuffle": True},
            "rollout": {
                "num_rollout": steps,
                "rollout_batch_size": 3,
                "n_samples_per_prompt": 2,
                "rollout_max_response_len": 8,
            },
            "reward": {"rm_type": "random"},
        }
    )


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, sums: Path) -> tuple[Path, FakeBackend]:
    """A run of three steps; its checkpoints are those of steps 1 and 2."""
    folder = tmp_path_factory.mktemp("three") / "run"
    backend = FakeBackend()
    run_plain(config(folder, tiny_model, sums, STEPS), backend)
    return folder, backend


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path, sums: Path) -> tuple[RunStore, FakeBackend]:
    """The undamaged run of four steps."""
    folder = tmp_path_factory.mktemp("four") / "run"
    backend = FakeBackend()
    run_plain(config(folder, tiny_model, sums, AFTER), backend)
    return RunStore(str(folder)), backend


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def garbage(path: Path) -> None:
    path.write_bytes(b"\x00\xff{]")


def gone(path: Path) -> None:
    path.unlink()


HARM: dict[str, Callable[[Path], None]] = {"cut": cut, "garbage": garbage, "gone": gone}

NEWEST = [
    "manifest.json",
    "rollout.parquet",
    "reward.parquet",
    "batch.parquet",
    "train.json",
    "reward_seconds.parquet",
    "stages/generate.json",
    "stages/reward.json",
    "stages/advantage.json",
    "stages/train.json",
]


def is_set_aside(store: RunStore, name: str) -> None:
    """The timeline, or the log, says what is not whole."""
    told = [event["cause"] for event in read_events(store, kind="set_aside")]
    assert any(name.rpartition("/")[2].partition(".")[0] in text for text in told), (name, told)


CASES = [(name, harm, False) for name in NEWEST for harm in HARM] + [(name, "cut", True) for name in NEWEST]


@pytest.mark.parametrize(("name", "harm", "covered"), CASES)
def test_a_newest_step_that_is_not_whole_is_made_again(
    name: str, harm: str, covered: bool, three: Any, four: Any, tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    """With a checkpoint of step 2, whose manifest is whole, its tables are needed no more; without, the trainer goes
    back to that of step 1 and the step's stored batch, and what is not whole is made anew: the same."""
    run = tmp_path / "run"
    shutil.copytree(three[0], run)
    store = RunStore(str(run))
    HARM[harm](run / "steps/000002" / name)
    if not covered:
        (run / "checkpoints/iter_0000002/relax_state.json").unlink()
    earlier = {path: path.read_bytes() for path in sorted(run.glob("steps/00000[01]/**/*")) if path.is_file()}
    backend = FakeBackend()
    with Asked() as asked:
        run_plain(config(run, tiny_model, sums, AFTER), backend)
    assert backend.trainer.weights == four[1].trainer.weights
    for step in range(AFTER):
        for table in ("rollout.parquet", "reward.parquet", "batch.parquet"):
            path = store.step_path(step, table)
            lost = (step, table) == (2, name) and covered  # of a step that a checkpoint covers: nobody needs it
            assert lost or store.read_bytes(path) == four[0].read_bytes(path), path
    assert {path: path.read_bytes() for path in earlier} == earlier
    assert [line["step"] for line in read_metrics(store)] == list(range(AFTER))
    generated_anew = name in ("rollout.parquet", "stages/generate.json") and _is_made_again(name, covered)
    assert len(asked.seeds) == (12 if generated_anew else 6)
    if not covered:
        is_set_aside(store, name)


def _is_made_again(name: str, covered: bool) -> bool:
    """Whether step 2 was generated again: its table is gone; a lost record alone has a manifest that says the same."""
    return name == "rollout.parquet" and not covered


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("name", ["metrics.jsonl", "events.jsonl", "events.parquet", "driver.json", "driver-beat.json"])
def test_a_file_of_the_run_that_nothing_is_decided_by_costs_nothing(
    name: str, harm: str, three: Any, four: Any, tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(three[0], run)
    HARM[harm](run / name)
    backend = FakeBackend()
    run_plain(config(run, tiny_model, sums, AFTER), backend)
    assert backend.trainer.applied[-1] == four[1].trainer.applied[-1]
    steps = [line["step"] for line in read_metrics(RunStore(str(run)))]
    assert steps == sorted(set(steps))
    assert steps[-1] == 3
    assert RunStore(str(run)).read_table("events.parquet").num_rows > 0


def test_a_configuration_that_is_cut_off_is_told_and_nothing_is_overwritten(
    three: Any, tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    """Whether the steps fit the options cannot be known: going on blindly could mix two runs."""
    run = tmp_path / "run"
    shutil.copytree(three[0], run)
    cut(run / "config.yaml")
    before = (run / "config.yaml").read_bytes()
    with pytest.raises(UserError, match=r"config\.yaml"):
        run_plain(config(run, tiny_model, sums, AFTER), FakeBackend())
    assert (run / "config.yaml").read_bytes() == before


@pytest.mark.parametrize("harm", HARM)
def test_a_checkpoint_that_is_not_whole_is_passed_over(
    harm: str, three: Any, four: Any, tmp_path: Path, tiny_model: Path, sums: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """That of step 2 has no whole marker: the trainer loads that of step 1 and learns step 2 again; nothing is
    generated but step 3."""
    run = tmp_path / "run"
    shutil.copytree(three[0], run)
    HARM[harm](run / "checkpoints/iter_0000002/relax_state.json")
    backend = FakeBackend()
    with Asked() as asked:
        run_plain(config(run, tiny_model, sums, AFTER), backend)
    assert [version for version, _ in backend.trainer.applied] == [3, 4]
    assert backend.trainer.weights == four[1].trainer.weights
    assert len(asked.seeds) == 6
    assert "iter_0000002 is incomplete" in caplog.text
