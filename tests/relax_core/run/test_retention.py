"""Which checkpoints stay: the rule by hand cases, and what is deleted of real folders."""

import contextlib
import json
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data.files import FileStore
from data.store import RunStore
from relax_core.config.sections.checkpoint import CheckpointSection
from relax_core.run import retention
from relax_core.run.records import StageRecords
from relax_core.run.recovery import History
from relax_core.run.retention import prune, to_keep
from relax_core.training.checkpoint_index import complete_iterations, complete_markers, iterations


def options(**values: Any) -> CheckpointSection:
    return CheckpointSection(**values)


@pytest.mark.parametrize(
    ("values", "found", "kept"),
    [
        ({}, [9, 5, 2], [9, 5, 2]),
        ({"max_actor_ckpt_to_keep": 2}, [9, 8, 5, 2], [9, 8]),
        ({"max_actor_ckpt_to_keep": 5}, [9, 8], [9, 8]),
        # Multiples of 3 are 0, 3, 6 and 9.
        ({"rotate_ckpt": True, "save_interval": 3}, [8, 7, 6, 5, 3, 0], [8, 6, 3, 0]),
        # One of them at most, and the newest beside it.
        ({"rotate_ckpt": True, "save_interval": 3, "max_actor_ckpt_to_keep": 1}, [8, 6, 3], [8, 6]),
        # The newest is one itself.
        ({"rotate_ckpt": True, "save_interval": 3, "max_actor_ckpt_to_keep": 1}, [9, 8, 6, 3], [9]),
        ({"rotate_ckpt": True, "save_interval": 3, "max_actor_ckpt_to_keep": 2}, [9, 8, 6, 3], [9, 6]),
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

    def prune(self, version: int | None = None, **values: Any) -> list[int]:
        history = History(self.store, StageRecords(self.store), str(self.folder), "start")
        return prune(history, options(**values), version)

    @property
    def left(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())


def test_the_checkpoint_stays_that_engines_between_two_pushes_would_be_given_their_weights_from(tmp_path: Path) -> None:
    """With --update-weights-interval 3 engines have version 6 in steps 6, 7 and 8. Started anew in step 8, that is
    after iteration 7, they need it again, and only iterations up to 5 come before it."""
    run = Run(tmp_path)
    for iteration in (4, 5, 6, 7):
        run.save(iteration)
    assert run.prune(6, max_actor_ckpt_to_keep=1) == [4, 6]
    run.save(8)
    assert run.prune(9, max_actor_ckpt_to_keep=1) == [5, 7]  # pushed: version 9 is iteration 8


class Crash(BaseException):
    """A kill, or a storage that has failed."""


class Storage:
    """Counts what is written and deleted, file by file, and fails at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        write, delete = FileStore.write_bytes, FileStore.delete

        def counted_write(store: FileStore, path: str, *arguments: Any) -> None:
            self.tick()
            write(store, path, *arguments)

        def counted_delete(store: FileStore, path: str) -> None:
            for file in store.sizes(path):  # a folder is not deleted at once
                self.tick()
                delete(store, file)
            delete(store, path)

        monkeypatch.setattr(FileStore, "write_bytes", counted_write)
        monkeypatch.setattr(FileStore, "delete", counted_delete)

    def tick(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Crash


class Driver:
    """Runs steps as the flow does: save, commit, prune. In the background a checkpoint is complete when the next one
    begins, or when the run ends; until then its files are there and its marker is not."""

    def __init__(self, url: str, section: CheckpointSection, optimizer_until: int) -> None:
        self.store, self.section, self.optimizer_until = RunStore(url), section, optimizer_until
        self.history = History(self.store, StageRecords(self.store), f"{url}/checkpoints", "start")
        self.files = FileStore(self.history.checkpoints)
        self.begun: int | None = None
        self.safe = -1
        """The newest checkpoint that is known to be complete, of a committed step, and able to be gone on from."""

    def run(self, steps: int) -> None:
        covered = self.history.newest_finished()
        first = covered + 1
        while self.store.read_manifest(first) is not None:  # trained again on stored batches
            first += 1
        for step in range(first, steps):
            saved = None
            interval = self.section.save_interval or 1
            last = step + 1 == steps
            if self.section.rotate_ckpt or (step + 1) % interval == 0 or last:
                saved = self.save(step, last)
            weights = {"id": f"own-{step}"}
            self.store.write_manifest(step, {"weights": weights, "checkpoint": saved})
            self.note()
            if saved is not None:
                prune(self.history, self.section)

    def save(self, step: int, last: bool) -> dict[str, Any] | None:
        if (step, f"own-{step}") not in complete_iterations(self.history.checkpoints, warn=False):
            self.finish()
            folder = f"iter_{step:07d}"
            self.files.delete(f"{folder}/relax_state.json")
            for name in ("a", "b"):
                self.files.write_bytes(f"{folder}/{name}", b"12345")
            self.begun = step
            if not self.section.async_save or last:
                self.finish()
        complete = [i for i, name in complete_iterations(self.history.checkpoints, False) if name == f"own-{i}"]
        return {"iteration": complete[0]} if complete else None

    def finish(self) -> None:
        if self.begun is not None:
            step, self.begun = self.begun, None
            marker = {"weights_id": f"own-{step}", "files": {"a": 5, "b": 5}, "optimizer": step < self.optimizer_until}
            self.files.write_bytes(f"iter_{step:07d}/relax_state.json", json.dumps(marker).encode())
            self.note()

    def note(self) -> None:
        self.safe = max(self.safe, self.history.newest_finished())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rotate=st.booleans(),
    background=st.booleans(),
    interval=st.integers(1, 3),
    most=st.none() | st.integers(1, 3),
    crashes=st.lists(st.integers(0, 60), max_size=3),
    optimizer_until=st.sampled_from([99, 99, 3]),
)
def test_whatever_fails_when_the_newest_good_checkpoint_stays_and_the_end_is_the_same(
    rotate: bool, background: bool, interval: int, most: int | None, crashes: list[int], optimizer_until: int
) -> None:
    section = options(rotate_ckpt=rotate, async_save=background, save_interval=interval, max_actor_ckpt_to_keep=most)
    steps, safe = 7, -1
    with pytest.MonkeyPatch.context() as patch:
        storage = Storage(patch)
        url = f"memory://retention-{uuid.uuid4().hex}"
        for left in [*crashes, None]:
            driver = Driver(url, section, optimizer_until)
            assert driver.history.newest_finished() >= safe
            storage.left = left
            with contextlib.suppress(Crash):
                driver.run(steps)
            storage.left = None
            safe = max(safe, driver.safe)
            assert Driver(url, section, optimizer_until).history.newest_finished() >= safe
        prune(driver.history, section)  # as the next step would: a crash may have cut the very last one short
        whole = Driver(f"{url}-whole", section, optimizer_until)
        whole.run(steps)
    assert safe >= (steps - 1 if optimizer_until == 99 else -1)
    folders = [{f"iter_{i:07d}" for i in iterations(one.files)} for one in (driver, whole)]
    complete = [{i for i, _ in complete_markers(one.files, warn=False)} for one in (driver, whole)]
    for one in (driver, whole):  # the list of all files in memory is searched with each access
        one.store.fs.rm(one.store.root, recursive=True)
    if not crashes:
        assert folders[0] == folders[1]
    elif most is not None or rotate:
        # After a crash fewer may be complete: one that was being written is not written again.
        kept = to_keep(sorted(complete[0], reverse=True), section)
        assert complete[0] - set(kept) <= {i for i in complete[0] if i < optimizer_until}
        assert {int(name[5:]) for name in folders[0]} == complete[0]  # no remainder


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
