"""Which checkpoints stay: the rule by hand cases, and what is deleted of real folders."""

import json
from pathlib import Path
from typing import Any

import pytest

from data.store import RunStore
from relax_core.config.sections.checkpoint import CheckpointSection
from relax_core.run import retention
from relax_core.run.records import StageRecords
from relax_core.run.recovery import History
from relax_core.run.retention import prune, to_keep
from relax_core.training.checkpoint_index import complete_iterations


def options(**values: Any) -> CheckpointSection:
    return CheckpointSection(**values)


@pytest.mark.parametrize(
    ("values", "found", "kept"),
    [
        ({}, [9, 5, 2], [9, 5, 2]),
        ({"max_actor_ckpt_to_keep": 2}, [9, 8, 5, 2], [9, 8]),
        ({"max_actor_ckpt_to_keep": 5}, [9, 8], [9, 8]),
        # Steps are counted from 0: 2, 5 and 8 are the third, sixth and ninth.
        ({"rotate_ckpt": True, "save_interval": 3}, [9, 8, 7, 6, 5, 2], [9, 8, 5, 2]),
        ({"rotate_ckpt": True, "save_interval": 3, "max_actor_ckpt_to_keep": 1}, [9, 8, 5], [9, 8]),
        # The newest does not count, although it is a multiple itself.
        ({"rotate_ckpt": True, "save_interval": 3, "max_actor_ckpt_to_keep": 1}, [8, 7, 5, 2], [8, 5]),
        ({"rotate_ckpt": True, "save_interval": 3, "max_actor_ckpt_to_keep": 2}, [], []),
    ],
)
def test_what_is_kept(values: dict[str, Any], found: list[int], kept: list[int]) -> None:
    assert to_keep(found, options(**values)) == kept


class Run:
    """A run directory with committed steps and their checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.store = RunStore(str(folder / "run"))
        self.folder = folder / "checkpoints"

    def save(self, iteration: int, weights_id: str | None = None, commit: bool = True, **marker: Any) -> None:
        place = self.folder / f"iter_{iteration:07d}"
        place.mkdir(parents=True)
        (place / "weights").write_bytes(b"12345")
        weights_id = weights_id or f"own-{iteration}"
        content = {"weights_id": weights_id, "files": {"weights": 5}, **marker}
        (place / "relax_state.json").write_text(json.dumps(content))
        if commit:
            manifest = {"weights": {"id": f"own-{iteration}"}, "checkpoint": {"iteration": iteration}}
            self.store.write_manifest(iteration, manifest)

    def prune(self, **values: Any) -> list[int]:
        history = History(self.store, StageRecords(self.store), str(self.folder), "start")
        return prune(history, options(**values))

    @property
    def left(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_the_newest_ones_stay(run: Run) -> None:
    for iteration in (1, 3, 5, 7):
        run.save(iteration)
    assert run.prune() == []
    assert run.prune(max_actor_ckpt_to_keep=2) == [1, 3]
    assert run.left == ["iter_0000005", "iter_0000007"]
    assert [iteration for iteration, _ in complete_iterations(str(run.folder))] == [7, 5]


def test_a_critics_are_told_by_what_manifests_say_of_it(run: Run) -> None:
    """Another model's weights and checkpoint stand in the same manifests; the folder is the critic's own."""
    for iteration in (1, 3, 5):
        run.save(iteration, weights_id=f"critic-{iteration}", commit=False)
    (run.folder / "iter_0000001/relax_state.json").unlink()  # its deletion was killed
    for iteration in (1, 3, 5):
        critic = {"id": f"critic-{iteration}", "checkpoint": {"iteration": iteration}}
        run.store.write_manifest(iteration, {"weights": {"id": "w"}, "checkpoint": None, "critic": critic})
    records = StageRecords(run.store)
    history = History(run.store, records, str(run.folder), "start", "train_critic", "critic", "critic")
    assert prune(history, options(max_actor_ckpt_to_keep=1)) == [1, 3]
    assert run.prune(max_actor_ckpt_to_keep=1) == []  # none of these is the actor's


def test_only_checkpoints_of_finished_steps_of_this_run_are_counted_and_deleted(run: Run) -> None:
    """Another run's newer ones would else push out our own; the step of 9 is saved and not yet committed."""
    run.save(0)
    run.save(1)
    run.save(3, weights_id="of another history")
    run.save(5, commit=False)
    run.save(9, commit=False, weights_id="own-9")
    (run.folder / "iter_0000002").mkdir()  # begun by another run
    (run.folder / "iter_best").mkdir()
    (run.folder / "notes.txt").write_text("")
    assert run.prune(max_actor_ckpt_to_keep=1) == [0]
    assert run.left == [f"iter_{name}" for name in ("0000001", "0000002", "0000003", "0000005", "0000009", "best")] + [
        "notes.txt"
    ]


def test_one_that_is_still_being_written_stays_and_does_not_count(run: Run) -> None:
    """--async-save: the manifest of step 5 names the checkpoint of step 3, the newest complete one then."""
    run.save(1)
    run.save(3)
    (run.folder / "iter_0000005").mkdir()
    run.store.write_manifest(5, {"weights": {"id": "own-5"}, "checkpoint": {"iteration": 3}})
    assert run.prune(max_actor_ckpt_to_keep=1) == [1]
    assert run.left == ["iter_0000003", "iter_0000005"]
    run.save(7)  # of a later process: the writing of 5 was killed
    assert run.prune(max_actor_ckpt_to_keep=1) == [3, 5]


def test_an_incomplete_one_does_not_count(run: Run) -> None:
    for iteration in (1, 3, 5):
        run.save(iteration)
    (run.folder / "iter_0000005/weights").unlink()
    assert run.prune(max_actor_ckpt_to_keep=1) == [1]
    assert run.left == ["iter_0000003", "iter_0000005"]


def test_the_newest_that_the_run_can_go_on_from_stays(run: Run) -> None:
    """Since step 4 the optimiser's state is left out: all that the run can go on from is the checkpoint of step 3."""
    run.save(1)
    run.save(3)
    run.save(5, optimizer=False)
    run.save(7, optimizer=False)
    assert run.prune(max_actor_ckpt_to_keep=1) == [1, 5]
    assert run.left == ["iter_0000003", "iter_0000007"]


def test_a_deletion_that_was_cut_short_is_finished_by_the_next(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for iteration in (1, 3, 5):
        run.save(iteration)
    real = retention.FileStore.delete

    def cut_short(self: Any, path: str) -> None:
        if not path.endswith("relax_state.json"):
            raise KeyboardInterrupt
        real(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(retention.FileStore, "delete", cut_short)
        with pytest.raises(KeyboardInterrupt):
            run.prune(max_actor_ckpt_to_keep=1)
    assert run.left == ["iter_0000001", "iter_0000003", "iter_0000005"]
    assert [iteration for iteration, _ in complete_iterations(str(run.folder))] == [5, 3]
    assert run.prune(max_actor_ckpt_to_keep=1) == [1, 3]
    assert run.left == ["iter_0000005"]
