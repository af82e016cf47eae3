"""Steps that overlap: the same steps, stages and files, with bounded staleness (fake engine and trainer, real flow).

The fake engine takes time for each token, and the fake trainer waits for a step behind it, so that both are under way
at once. Most tests run flows and tasks as plain functions (``tests/loop.py``).
"""

import contextlib
import contextvars
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import FakeBackend, FakeTrainer, Killed, Stopper
from loop import Writes, run_plain

from data.store import RunStore
from flows.groups import Groups
from relax_core.config import RelaxConfig
from relax_core.config.options import with_options
from relax_core.run.records import StageRecords
from relax_core.run.session import run_id
from relax_core.tracking.events import read_events

STEPS, GROUPS, SAMPLES = 4, 2, 2


def config(folder: Path, model: Path, prompts: Path, **options: Any) -> RelaxConfig:
    values = {
        "run_dir": str(folder / "run"),
        "hf_checkpoint": str(model),
        "prompt_data": str(prompts),
        "label_key": "label",
        "num_rollout": STEPS,
        "rollout_batch_size": GROUPS,
        "n_samples_per_prompt": SAMPLES,
        "rollout_max_response_len": 20,
        "rm_type": "random",
        "fully_async": True,
        "save_interval": 2,
        "resource": {"actor": [1, 1], "rollout": [1, 1]},
        **options,
    }
    return with_options(RelaxConfig(), values)


class WaitingTrainer(FakeTrainer):
    """Ends its updates when a later step has begun to generate, as long as there is one that may.

    Args:
        ahead: which step that is, behind the one that trains.
    """

    ahead = 0
    seconds = 0.0

    def train(self, base: int, *args: Any) -> dict[str, Any]:
        time.sleep(self.seconds)
        until, awaited = time.monotonic() + 60, f"{base + self.ahead:06d}"
        while (
            self.ahead and base + self.ahead < STEPS and not any(rid.startswith(awaited) for rid in self.engine.asked)
        ):
            assert time.monotonic() < until, f"step {awaited} did not begin to generate while step {base} trained"
            time.sleep(0.01)
        return super().train(base, *args)


def backend(pace: float = 0.02, longest: int = 20) -> FakeBackend:
    made = FakeBackend()
    made.trainer = WaitingTrainer(made.engine, events=made.events)
    made.engine.pace, made.engine.longest = pace, longest
    return made


def train_with_prefect(settings: RelaxConfig, engines: FakeBackend) -> dict[str, Any]:
    from flows.train import train

    return train(settings, backend=engines)


def versions(store: RunStore, step: int) -> set[int]:
    rows = store.read_table(f"steps/{step:06d}/rollout.parquet")["token_versions"].to_pylist()
    return {version for row in rows for version in row}


def ids(store: RunStore) -> list[str]:
    return [
        sample
        for step in range(STEPS)
        for sample in store.read_table(f"steps/{step:06d}/rollout.parquet")["sample_id"].to_pylist()
    ]


def test_generation_runs_while_another_step_trains_and_no_token_is_too_old(
    tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    engines = backend()
    engines.trainer.ahead = 1
    result = run_plain(config(tmp_path, tiny_model, sums, max_staleness=1), engines)
    store = RunStore(result["run"])
    assert [version for version, _ in engines.trainer.applied] == [1, 2, 3, 4]
    for step in range(STEPS):
        # 1.3: by the time that step j begins, version j - 1 is with the engines; j + 1 is never, since j is not trained
        assert versions(store, step) <= {max(0, step - 1), step}
    assert len(ids(store)) == len(set(ids(store))) == STEPS * GROUPS * SAMPLES
    waits = read_events(store, kind="staleness_wait")
    assert {event["step"] for event in waits} <= {2, 3}


def test_weights_change_in_the_middle_of_a_generation_and_its_responses_go_on(
    tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    """The responses of step 1 begin by version 0, and would never end: the sync of step 0's update interrupts them."""
    engines = backend()
    engines.trainer.ahead = 1
    engines.engine.until_aborted = ("000001",)
    store = RunStore(run_plain(config(tmp_path, tiny_model, sums, max_staleness=1), engines)["run"])
    rows = store.read_table("steps/000001/rollout.parquet").to_pylist()
    assert all(row["token_versions"] == sorted(row["token_versions"]) for row in rows)
    assert {tuple(row["weight_versions"]) for row in rows} == {(0, 1)}
    assert not any(row["abort_count"] for row in rows)
    for row in rows:  # nothing was lost or doubled over the interruption
        assert len(row["token_versions"]) == row["response_length"] == len(row["rollout_log_probs"]) == 20
        assert row["status"] == "completed"


def test_staleness_0_gives_the_weights_of_the_synchronous_run(tmp_path: Path, tiny_model: Path, sums: Path) -> None:
    overlapping, plain = backend(), backend()
    first = run_plain(config(tmp_path / "a", tiny_model, sums, max_staleness=0), overlapping)
    run_plain(config(tmp_path / "b", tiny_model, sums, fully_async=False, true_on_policy_mode=True), plain)
    assert overlapping.trainer.applied == plain.trainer.applied
    store = RunStore(first["run"])
    assert all(versions(store, step) == {step} for step in range(STEPS))


def test_a_group_of_steps_that_cannot_be_made_ends_the_run(
    tmp_path: Path, tiny_model: Path, sums: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made by the thread that begins steps, which nobody waits for."""

    def context(groups: Groups, step: int) -> contextvars.Context:
        if step == 2:
            raise ConnectionError("no server")
        return contextvars.copy_context()

    monkeypatch.setattr(Groups, "context", context)
    with pytest.raises(ConnectionError, match="no server"):
        run_plain(config(tmp_path, tiny_model, sums), backend())


@pytest.mark.parametrize("lost", [False, True], ids=["engines live", "engines lost"])
@pytest.mark.parametrize("stage", ["generate", "reward", "advantage", "train", "weight_sync", "checkpoint", "commit"])
def test_after_a_failure_in_any_stage_the_run_goes_on_and_nothing_finished_is_made_again(
    stage: str, lost: bool, tmp_path: Path, tiny_model: Path, sums: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from relax_core.tracking.progress import Progress

    real, plan = Progress.stage, [(1, stage)]

    @contextlib.contextmanager
    def fails(self: Progress, step: int, name: str) -> Any:
        with real(self, step, name):
            yield
        if plan and plan[0] == (step, name):
            plan.clear()
            raise Killed

    monkeypatch.setattr(Progress, "stage", fails)
    engines, settings = backend(), config(tmp_path, tiny_model, sums, max_staleness=2)
    with pytest.raises(Killed):
        run_plain(settings, engines)
    store = RunStore(str(settings.run.run_dir))
    records = StageRecords(store)
    kept = {step: record for step in range(STEPS) if (record := records.last(step, "generate"))}
    if lost:
        engines.lose_all()
    run_plain(settings, engines)
    for step, record in kept.items():
        assert records.last(step, "generate") == record
    assert len(ids(store)) == len(set(ids(store))) == STEPS * GROUPS * SAMPLES
    applied = [version for version, _ in engines.trainer.applied]
    assert sorted(set(applied)) == [1, 2, 3, 4]
    if not lost:
        assert applied == [1, 2, 3, 4]  # no update twice
    for step in range(STEPS):
        assert min(versions(store, step)) >= step - 2


def test_an_error_of_a_later_step_is_told_and_threads_end(tmp_path: Path, tiny_model: Path, sums: Path) -> None:
    engines = backend()
    engines.engine.answers = 6  # step 0 takes 4, step 1 fails in the middle
    engines.trainer.seconds = 2.0
    from data.errors import UserError

    with pytest.raises(UserError):
        run_plain(config(tmp_path, tiny_model, sums, max_staleness=1), engines)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("step-")]


@pytest.mark.usefixtures("prefect_server")
def test_steps_that_overlap_are_subflows_of_one_flow(tmp_path: Path, tiny_model: Path, sums: Path) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags

    engines = backend()
    engines.trainer.ahead = 1
    settings = config(tmp_path, tiny_model, sums, max_staleness=1)
    result = train_with_prefect(settings, engines)
    with get_client(sync_client=True) as client:
        tags = FlowRunFilterTags(all_=[run_id(result["run"])])
        runs = client.read_flow_runs(flow_run_filter=FlowRunFilter(tags=tags))
        until = time.monotonic() + 60  # the server notes tasks behind the run
        while len(tasks := client.read_task_runs(flow_run_filter=FlowRunFilter(tags=tags))) < STEPS * 6:
            assert time.monotonic() < until, [task.name for task in tasks]
            time.sleep(0.5)
    parents = [one for one in runs if one.parent_task_run_id is None]
    steps = {one.name: one for one in runs if one.parent_task_run_id is not None}
    assert [one.state_name for one in parents] == ["Completed"]
    assert sorted(steps) == [f"{run_id(result['run'])}/step-{step:06d}" for step in range(STEPS)]
    assert {one.state_name for one in steps.values()} == {"Completed"}
    # Prefect would ask its server about a limit for each tag of a task
    stages = [task for task in tasks if task.flow_run_id in {one.id for one in steps.values()}]
    assert {task.name for task in stages} >= {"generate", "train", "commit"}
    assert not any(task.tags for task in stages)


def test_slices_go_to_the_trainer_while_their_step_generates(tmp_path: Path, tiny_model: Path, sums: Path) -> None:
    """The longest response of each step does not end before the trainer has had a slice."""
    engines = backend()
    waiting = ("000001-0000-000", "000002-0000-000", "000003-0000-000")
    engines.engine.until_aborted = waiting  # they hold their steps open
    real = engines.trainer.accumulate

    def accumulate(*arguments: Any) -> Any:
        done = real(*arguments)
        engines.engine.abort_all()
        return done

    engines.trainer.accumulate = accumulate
    options = {"max_staleness": 0, "num_iters_per_train_update": 2, "rollout_batch_size": 4}
    store = RunStore(run_plain(config(tmp_path, tiny_model, sums, **options), engines)["run"])
    assert [version for version, _ in engines.trainer.applied] == [1, 2, 3, 4]
    for step in range(1, STEPS):
        told = [(event["kind"], event["who"]) for event in read_events(store, step=step)]
        assert told.index(("slice_accumulated", "trainer")) < told.index(("stage_finished", "generate"))
        slices = store.read_table(f"steps/{step:06d}/batch.parquet")["slice"].to_pylist()
        assert sorted(slices) == [0] * 4 + [1] * 4
        assert slices[0] == 1  # the group that was held open is in the last slice


@pytest.mark.parametrize("stop", range(0, 120, 10))
def test_stopped_before_any_write_an_overlapping_run_loses_and_doubles_nothing(
    stop: int, tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    """A run of 4 steps makes about 110 writes; which of them is the n-th is decided by the threads. Engines are lost
    in every second case."""
    engines, settings = backend(pace=0.002), config(tmp_path, tiny_model, sums, max_staleness=2)
    with contextlib.suppress(Killed), Writes(stop, lambda path: "driver-beat" not in path):
        run_plain(settings, engines)
    if stop % 20:
        engines.lose_all()
    records = StageRecords(RunStore(str(settings.run.run_dir)))
    kept = {step: record for step in range(STEPS) if (record := records.last(step, "generate"))}
    store = RunStore(run_plain(settings, engines)["run"])
    for step, record in kept.items():
        assert records.last(step, "generate") == record
    assert len(ids(store)) == len(set(ids(store))) == STEPS * GROUPS * SAMPLES
    applied = [version for version, _ in engines.trainer.applied]
    assert sorted(set(applied)) == [1, 2, 3, 4]
    assert len(set(engines.trainer.applied)) == len(applied) or stop % 20  # an update again is the same update
    assert [(store.read_manifest(step) or {})["weights"]["version"] for step in range(STEPS)] == [1, 2, 3, 4]
    assert all(min(versions(store, step)) >= step - 2 for step in range(STEPS))


def stopped(settings: RelaxConfig, engines: FakeBackend, stage: str, leave: bool = False) -> None:
    """A driver that is killed at a stage of step 1."""
    with pytest.MonkeyPatch.context() as patch:
        Stopper(patch, 1, stage, leave)
        with pytest.raises(Killed):
            run_plain(settings, engines)


def test_samples_that_are_made_anew_are_not_made_by_the_weights_that_they_shall_lead_to(
    tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    """The update of step 1, to version 2, is recorded when another --max-staleness has its samples made anew."""
    engines, settings = backend(), config(tmp_path, tiny_model, sums, max_staleness=0, true_on_policy_mode=True)
    stopped(settings, engines, "weight_sync", leave=True)
    store = RunStore(run_plain(with_options(settings, {"max_staleness": 1}), engines)["run"])
    assert versions(store, 1) <= {0, 1}


def test_a_run_goes_on_after_a_kill_in_the_middle_of_making_an_update_anew(
    tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    """Its update is recorded, and by another reward its batch has been written anew, of which there is no record."""
    engines, settings = backend(), config(tmp_path, tiny_model, sums)
    stopped(settings, engines, "weight_sync")
    other = with_options(settings, {"rm_type": "exact_number"})
    stopped(other, engines, "advantage", leave=True)
    engines.lose_all()
    run_plain(other, engines)
    assert sorted({version for version, _ in engines.trainer.applied}) == [1, 2, 3, 4]


def test_no_step_begins_once_the_others_are_to_end() -> None:
    from flows.overlap import _Steps
    from relax_core.run.order import StepOrder

    begun: list[int] = []

    def one_step(run: Any, step: int, order: StepOrder) -> dict[str, Any]:
        begun.append(step)
        return {}

    run: Any = SimpleNamespace(total_steps=1)
    steps = _Steps(run, StepOrder(0, 1), one_step, Groups(run, 0))
    steps.stop()
    steps.start(0)
    steps.stop()  # waits for its thread, if there is one
    assert begun == []
