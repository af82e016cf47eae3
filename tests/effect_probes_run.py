"""What an option changes in a run: probes that open the run, run its stages on fakes, or look at what it leaves.

Guarantee: as ``effect_probes``; engines and trainer are the fakes of ``fakes``, everything else is the real code.
"""

import asyncio
import contextlib
import dataclasses
import inspect
import io
import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
import pytest
from aiohttp import web
from effect_probes import StandIn, inbox, reward_table, rollout_table
from fakes import FakeBackend, FakeEngine, FakeMemory

from data.cursor import Cursor
from data.errors import Lost, UserError
from data.prompts import PromptDataset
from data.store import RunStore
from relax_core.config.derived import needs_critic, needs_teacher
from relax_core.config.options import OPTIONS
from relax_core.config.sections import RelaxConfig
from relax_core.rollout.evaluate import evaluate_set
from relax_core.rollout.requests import step_requests
from relax_core.run import debug_data, retention, turns
from relax_core.run.forward import check_teacher
from relax_core.run.health import monitor
from relax_core.run.lock import CLAIM
from relax_core.run.records import StageRecord, StageRecords
from relax_core.run.recovery import History
from relax_core.run.samples import rollout_samples
from relax_core.run.session import RunSession
from relax_core.tracking.notify import notify
from relax_core.tracking.progress import Progress
from relax_core.tracking.tensorboard import open_board
from relax_core.tracking.timeline import Span, write_timeline
from relax_core.training.origin import actor_origin, critic_origin, reference_origin, teacher_origin
from relax_core.weights.label import weight_label


class Session(RunSession):
    """A run whose tokenizer is a stand-in."""

    @cached_property
    def tokenizer(self) -> Any:
        return StandIn()


class Backend(FakeBackend):
    """Remembers what is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.engine.stop()
        self.engine = Engine()
        self.trainer.engine = self.engine

    def ensure(self, critic: bool = False) -> Any:
        self.asked.append("both")
        return super().ensure(critic)

    def ensure_trainer(self, critic: bool = False) -> Any:
        self.asked.append("trainer")
        return super().ensure_trainer(critic)

    def ensure_rollout(self, weights_id: str) -> Any:
        self.asked.append("engines")
        return super().ensure_rollout(weights_id)


class Engine(FakeEngine):
    """Remembers its requests."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        super().__init__()

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append({name: value for name, value in body.items() if name != "rid"})
        return await super()._generate(request)


@contextmanager
def opened(config: RelaxConfig) -> Iterator[Session]:
    """An open run."""
    made: list[Backend] = []

    def factory(config: RelaxConfig, name: str) -> Any:
        made.append(Backend())
        return made[0]

    with redirect_stdout(io.StringIO()):  # its progress
        run = Session(config, {}, factory, Progress())
        try:
            yield run
        finally:
            run.close()
            for backend in made:
                backend.engine.stop()


def files(folder: str | Path) -> list[str]:
    """The files below a folder."""
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*") if path.is_file())


def _place(config: RelaxConfig) -> Path:
    """The folder of the case's files."""
    return Path(str(config.data.prompt_data)).parent


# The open run


def run_folder(config: RelaxConfig) -> list[str]:
    """Where an opened run writes its configuration."""
    with opened(config):
        return [name for name in files(_place(config)) if name.endswith("config.yaml")]


def second_driver(config: RelaxConfig) -> str:
    """What becomes of a run that another process drives."""
    with contextlib.closing(_Sleeper()) as first:
        RunStore(str(config.run.run_dir)).write_json(CLAIM, first.claim)
        try:
            with opened(config):
                return "taken"
        except UserError:
            return "refused"


def drivers(config: RelaxConfig) -> int:
    """How often a driver that loses its engines each time is started."""
    from flows import restarts

    count = 0

    def work() -> None:
        nonlocal count
        count += 1
        raise Lost("gone")

    with pytest.MonkeyPatch.context() as patch, redirect_stderr(io.StringIO()):
        patch.setattr(restarts, "tell", lambda *told, **details: None)
        patch.setattr(restarts.time, "sleep", lambda seconds: None)
        with contextlib.suppress(UserError):
            restarts.in_process(config, work)
    return count


def health_checks(config: RelaxConfig) -> Any:
    """How engines are watched."""
    found = monitor(config, list, lambda url, why: None)
    return found and (found.interval, found.timeout, found.first_wait)


class _Sleeper:
    """A process that drives a run, as far as its claim says."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        created = psutil.Process(self._process.pid).create_time()
        self.claim = {"host": socket.gethostname(), "pid": self._process.pid, "created": created, "epoch": 1}

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def length(config: RelaxConfig) -> tuple[int, int | None]:
    """Steps of the run and of an epoch."""
    with opened(config) as run:
        return run.total_steps, run.steps_per_epoch


def schedule(config: RelaxConfig) -> dict[str, list[int]]:
    """The steps after or before which something is due."""
    with opened(config) as run:
        steps = range(run.total_steps)
        tests = (run.checkpoint_due, run.export_due, run.evaluation_due, run.evaluates_before)
        return {due.__name__: [step for step in steps if due(step)] for due in tests}


def versions(config: RelaxConfig) -> list[Any]:
    """Whether steps overlap, and the version that each begins to generate with."""
    with opened(config) as run:
        return [run.overlaps, *(run.base_version(step) for step in range(run.total_steps))]


def turns_taken(config: RelaxConfig) -> list[str]:
    """Who gives up what on a GPU before engines generate."""
    with opened(config) as run:
        backend: Any = run.backend
        memory = backend.memory = backend.trainer.memory = FakeMemory("trainer", "engines")
        backend.device = "cuda"
        run.ensure()
        turns.generate(run)
        return memory.turns


def what_is_started(config: RelaxConfig) -> Any:
    """What a run asks its backend for, and which recorded samples it misses."""
    with opened(config) as run:
        run.ensure()
        backend: Any = run.backend
        try:
            debug_data.check_recorded(run)
        except UserError as error:
            return backend.asked, str(error)
        return backend.asked, ""


def _content(prompts: PromptDataset) -> Any:
    return prompts.texts, prompts.tokens.values.tolist(), prompts.labels, prompts.metadata


def prompts(config: RelaxConfig) -> Any:
    """The prompts that are trained on."""
    with opened(config) as run:
        return _content(run.prompts)


def evaluation_prompts(config: RelaxConfig) -> Any:
    """The prompts of each evaluation set."""
    with opened(config) as run:
        return {one.name: _content(prompts) for one, prompts in run.evaluation_sets}


def requests(config: RelaxConfig) -> Any:
    """What the first step asks for."""
    with opened(config) as run:
        asked, cursor = step_requests(run.prompts, Cursor(), 0, config)
        return [(one.sample_id, one.prompt.text, one.seed, one.index) for one in asked], cursor


def origins(config: RelaxConfig) -> Any:
    """Where the weights of actor, reference, teacher and critic are."""
    teacher = teacher_origin(config) if needs_teacher(config) else None
    critic = critic_origin(config) if needs_critic(config) else None
    return actor_origin(config), reference_origin(config), teacher, critic


def teacher_server(config: RelaxConfig) -> str:
    """What is said of a server that is no teacher."""
    with opened(config) as run, pytest.raises(UserError) as told:
        check_teacher(run)
    return str(told.value)


# Stages


def generated(config: RelaxConfig) -> Any:
    """The rollout of the first step, and what the engine was asked."""
    import flows.environment  # noqa: F401  (before Prefect)
    from tasks.generate import generate

    with opened(config) as run:
        run.ensure()
        backend: Any = run.backend
        backend.engine.label = weight_label(0, run.history.weights_id(0))
        record = generate.work(run, 0, "key")
        bodies = sorted(json.dumps(body) for body in backend.engine.bodies)
        return run.store.read_table(record.table).to_pylist(), bodies


class SlowGroups(Engine):
    """Two of the first six groups take long, unless they are stopped: then their samples have three tokens."""

    pace, longest = 0.001, 8

    async def _take_time(self, rid: str, length: int) -> tuple[int, bool]:
        if not rid.startswith(("000000-0001", "000000-0003")) or self._of_sample(rid) > 1:
            return length, False
        aborted = self._running[rid] = asyncio.Event()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(aborted.wait(), 1.0)
        del self._running[rid]
        return (3, True) if aborted.is_set() else (length, False)


def selected(config: RelaxConfig) -> Any:
    """The first step's rollout and what it leaves, and the rollout of the second step."""
    import flows.environment  # noqa: F401  (before Prefect)
    from tasks.generate import generate

    with opened(config) as run:
        run.ensure()
        backend: Any = run.backend
        backend.engine.stop()
        backend.engine = backend.trainer.engine = SlowGroups()
        run.ensure()
        run.records.write(0, StageRecord("train", "0123456789abcdef"))
        found = []
        for step in range(2):
            run.pushed = step
            backend.engine.label = weight_label(step, run.history.weights_id(step))
            record = generate.work(run, step, "key")
            run.end_stream(step)
            run.records.write(step, record)
            found += [run.store.read_table(table).to_pylist() for _, table in sorted(record.tables.items())]
        return found


def evaluated(config: RelaxConfig) -> Any:
    """The samples and metrics of each evaluation set, and what the engine was asked."""
    engine = Engine()
    engine.label = "0"
    try:
        with opened(config) as run:
            results = [
                evaluate_set(one, prompts, [engine.url], config, step=-1, tokenizer=run.tokenizer)
                for one, prompts in run.evaluation_sets
            ]
    finally:
        engine.stop()
    found = [(table.to_pylist(), metrics) for table, metrics in results]
    return found, sorted(json.dumps(body) for body in engine.bodies)


def saved(config: RelaxConfig) -> list[str]:
    """The files and folders that the checkpoint of the first step leaves."""
    import flows.environment  # noqa: F401  (before Prefect)
    from tasks.checkpoint import checkpoint

    with opened(config) as run:
        run.ensure()
        update = StageRecord("train", "w1")
        for record in (update, StageRecord("train_critic", "c1")):
            run.records.write(0, record)
        # without Prefect's engine, which needs a server
        inspect.getclosurevars(checkpoint).nonlocals["run_task"].fn(run, 0, (update,))
    return sorted(str(path) for path in _place(config).rglob("*") if path.name in ("fake.json", "export"))


def kept(config: RelaxConfig) -> list[str]:
    """The checkpoints that are left of those of eight steps."""
    place = Path(str(config.run.run_dir))
    store = RunStore(str(place))
    for step in range(8):
        folder = place / "checkpoints" / f"iter_{step:07d}"
        folder.mkdir(parents=True)
        (folder / "relax_state.json").write_text(json.dumps({"weights_id": f"w{step}", "files": {}}))
        store.write_manifest(step, {"weights": {"id": f"w{step}"}, "checkpoint": {"iteration": step}})
    retention.prune(History(store, StageRecords(store), str(place / "checkpoints"), "w"), config.checkpoint)
    return files(place / "checkpoints")


# Files and messages


def copies(config: RelaxConfig) -> list[str]:
    """The files that debugging leaves of a step."""
    with opened(config) as run:
        tables = {"rollout": rollout_table(), "reward": reward_table()}
        records = {
            name: StageRecord(name, "key", {name: run.store.write_table(f"{name}.parquet", table)})
            for name, table in tables.items()
        }
        from relax_core.algorithms.batch import training_batch

        reference = run.store.write_table(
            "batch.parquet", training_batch(tables["rollout"], tables["reward"], config)[0]
        )
        batch = StageRecord("advantage", "key", {"batch": reference})
        debug_data.save_debug_data(run, 0, records["rollout"], records["reward"], batch)
    return [name for name in files(_place(config)) if name.startswith("dump")]


def recorded(config: RelaxConfig) -> int:
    """How many recorded samples are read."""
    samples = rollout_samples(rollout_table(), reward_table())
    debug_data.write_samples(debug_data.recorded_path(config, 0), {"rollout_id": 0, "samples": samples})
    return debug_data.read_recorded(config, 0).rollout.num_rows


def timeline(config: RelaxConfig) -> list[str]:
    """The timelines of a step."""
    write_timeline(config, 0, [Span("generate", 0.0, 1.0)])
    return [name for name in files(_place(config)) if "timeline" in name]


def board(config: RelaxConfig) -> list[str]:
    """The folders in which TensorBoard finds something."""
    events = open_board(config, "named-after-the-run", 0)
    if events is not None:
        events.add(0, {"loss": 1.0})
        events.close()
    return [str(Path(name).parent) for name in files(Path.cwd()) if "tfevents" in name]


def messages(config: RelaxConfig) -> list[tuple[str, Any]]:
    """What people are told."""
    server = inbox()
    server.calls.clear()
    notify(config, "title", "text")
    return list(server.calls)


# Ray, the command line


def ray_head(config: RelaxConfig) -> str:
    """Which Ray head is asked for, seen where none is."""
    from relax_core.cluster import backend, head

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head.ray, "is_initialized", lambda: False)  # another test may be connected
        with pytest.raises(UserError) as caught:
            backend.RayBackend(config, "probe").ensure_trainer()
    return str(caught.value)


def actors_variables(config: RelaxConfig) -> dict[str, str]:
    """Variables of every actor."""
    from relax_core.cluster.backend import RayBackend

    return RayBackend(config, "probe")._variables


def ranks_variables(config: RelaxConfig) -> dict[str, str]:
    """Variables of the trainer's ranks."""
    from relax_core.training.actor import trainer_environment

    return trainer_environment(config)


def mistake(config: RelaxConfig) -> str:
    """How the command line ends at a mistake."""
    from flows.cli.main import main

    before = signal.getsignal(signal.SIGTERM)
    flags = [OPTIONS[name].flag for name, value in config.run if value is True]
    try:
        with redirect_stderr(io.StringIO()):
            return f"exit code {main(['train', '--no-such-option', *flags])}"
    except UserError as error:
        return type(error).__name__
    finally:
        signal.signal(signal.SIGTERM, before)


# Training without Megatron


def division(config: RelaxConfig) -> Any:
    """How two ranks divide a batch into optimiser steps and micro-batches."""
    from relax_core.training.work import divide, own_micro_batches

    batch = _training_batch()
    places: list[Any] = [Rank(0, 2), Rank(1, 2)]
    work = [divide(config, place, batch) for place in places]
    return work, [own_micro_batches(config, place, batch, range(len(batch)), scoring=True) for place in places]


@dataclasses.dataclass(frozen=True)
class Rank:
    """A place in data parallelism."""

    dp_rank: int
    dp_size: int


def _training_batch() -> Any:
    """Eight samples."""
    from training_batches import make_batch

    from relax_core.training.batch import TrainingBatch

    folder = Path("batch").absolute()
    store = RunStore(str(folder))
    table = store.read_table(make_batch(store, "batch"))
    shutil.rmtree(folder)
    return TrainingBatch.from_table(table)


def loss(config: RelaxConfig) -> Any:
    """Loss, gradient and metrics of one optimiser step with given log-probs, or logits."""
    import torch

    from relax_core.training.custom_loss import StepCustomLoss
    from relax_core.training.hooks import loss_functions
    from relax_core.training.loss import Scores
    from relax_core.training.step_loss import make_step_loss

    batch = _training_batch()
    size = batch.num_response_tokens
    generator = torch.Generator().manual_seed(0)
    old, reference, moved, gap = (torch.randn(size, generator=generator) for _ in range(4))
    scores = Scores(old, reference, batch.rollout_log_probs + gap)
    make = make_step_loss(config, batch, scores, loss_functions(config), lambda value: [value])
    step = make((0, len(batch)), True)
    log_probs, entropy = old + moved, torch.rand(size, generator=generator)
    read = torch.randn(size, 512, generator=generator) if isinstance(step, StepCustomLoss) else log_probs
    read.requires_grad_()
    given = (read,) if isinstance(step, StepCustomLoss) else (read, entropy)
    value, *sums = step(*given, batch.micro_batch(range(len(batch)), torch.device("cpu")))
    value.backward()
    assert read.grad is not None
    return value.item(), [each.tolist() for each in sums], read.grad.tolist()
