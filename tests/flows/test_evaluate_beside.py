"""The newest checkpoint of a run that somebody else drives, with an engine that answers at once; and what was evaluated
before, however it was."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
from fakes import FakeBackend, FakeEngine
from loop import plain_functions, run_plain, small_config
from saved_checkpoints import upload, write_checkpoint

from data.errors import UserError
from data.store import RunStore
from flows import evaluate as flow
from relax_core.cluster import beside as engines_module
from relax_core.config import RelaxConfig, with_options
from relax_core.run import beside, lock
from relax_core.run.session import run_id
from relax_core.weights.label import weight_label
from relax_core.weights.saved import SavedWeights


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither Prefect nor a standing service of the person who runs this."""
    monkeypatch.setattr(flow, "guard_temporary_server", lambda: None)
    with plain_functions():
        yield


class Engines:
    """What starts engines beside a run. ``started`` lists the weights of each."""

    def __init__(self) -> None:
        self.engine, self.started, self.alive = FakeEngine(), [], 0
        self.during: Any = lambda: None

    @contextlib.contextmanager
    def __call__(
        self, config: RelaxConfig, name: str, log_dir: Path, version: int, weights_id: str
    ) -> Iterator[tuple[list[str], dict[str, list[str]]]]:
        assert (Path(str(config.checkpoint.hf_checkpoint)) / "model.safetensors").is_file()
        self.engine.label = weight_label(version, weights_id)
        self.started.append((name, version, weights_id))
        self.alive += 1
        try:
            self.during()
            yield [self.engine.url], {}
        finally:
            self.alive -= 1


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engines]:
    started = Engines()
    monkeypatch.setattr(beside, "engines_beside", started)
    yield started
    started.engine.stop()


@pytest.fixture
def config(tmp_path: Path, tiny_model: Path, sums: Path) -> RelaxConfig:
    """A run of four steps, evaluated by none of them; checkpoints of steps 1 and 3."""
    options = {"num_rollout": 4, "eval_prompt_data": ["sums", str(sums)]}
    made = small_config(tmp_path, tiny_model, sums, **options)
    run_plain(made, FakeBackend())
    for step in (1, 3):  # in place of those of the trainer that has no model
        folder = tmp_path / "run" / "checkpoints"
        place = folder / f"iter_{step:07d}"
        kept, old = (place / "fake.json").read_text(), json.loads((place / "relax_state.json").read_text())
        shutil.rmtree(place)
        write_checkpoint(folder, step, tiny_model, old["weights_id"])
        (place / "fake.json").write_text(kept)  # which that trainer still loads
    return made


@pytest.fixture
def driver(config: RelaxConfig) -> Iterator[dict[str, Any]]:
    """Another process drives the run."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    created = psutil.Process(process.pid).create_time()
    claim = {"host": socket.gethostname(), "machine": lock._machine(), "pid": process.pid, "created": created}
    claim["epoch"] = 9
    RunStore(str(config.run.run_dir)).write_json(lock.CLAIM, claim)
    yield claim
    process.kill()
    process.wait()


def files(folder: Path) -> dict[str, bytes]:
    return {
        name: path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not (name := str(path.relative_to(folder))).startswith("evaluations/")
    }


def test_a_driven_run_is_evaluated_and_not_touched(
    config: RelaxConfig, driver: dict[str, Any], engines: Engines, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(str(config.run.run_dir))
    before = files(run)
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    engines.during = lambda: seen.append(os.getpriority(os.PRIO_PROCESS, 0))
    seen: list[int] = []
    result = flow.evaluate(with_options(config, {"takeover": True}), backend=FakeBackend())
    told = capsys.readouterr().out
    assert f"Process {driver['pid']} drives the run {run} already. Its newest checkpoint is evaluated beside" in told
    assert files(run) == before
    assert psutil.pid_exists(driver["pid"])
    weights_id = RunStore(str(run)).read_manifest(3)["weights"]["id"]
    [(name, version, of)] = engines.started
    assert name.startswith("run-")
    assert name.endswith("-evaluation")
    assert (version, of, engines.alive) == (4, weights_id, 0)
    assert seen == [niceness]  # only the engine gives way: a flow's heart would miss beats
    assert (result["version"], result["skipped"]) == (4, False)
    table = pq.read_table(result["tables"]["sums"])
    assert table.num_rows == 8
    assert result["tables"]["sums"] == f"{run}/evaluations/000004/sums.parquet"
    metrics = json.loads((run / "evaluations/000004/metrics.json").read_text())
    assert metrics["eval/sums"] == result["metrics"]["eval/sums"]
    # the converted checkpoint is gone
    assert {path.name for path in (run / "evaluations").iterdir()} == {
        "000004",
        "evaluator.json",
        "evaluator-beat.json",
    }


def test_what_was_evaluated_is_skipped_until_something_that_decides_it_changes(
    config: RelaxConfig, engines: Engines, tmp_path: Path
) -> None:
    first = flow.evaluate_newest(config)
    second = flow.evaluate_newest(config)
    assert (second["skipped"], second["metrics"], second["tables"]) == (True, first["metrics"], first["tables"])
    assert "evaluated before" in second["reason"]
    assert len(engines.started) == 1
    assert flow.evaluate_newest(config, again=True)["metrics"] == first["metrics"]
    other = tmp_path / "other.jsonl"
    other.write_text('{"input": "1 + 1 =", "label": "2"}\n')
    for changed in ({"eval_temperature": 0.5}, {"eval_prompt_data": ["more", str(other)]}):
        assert not flow.evaluate_newest(with_options(config, changed))["skipped"]
        assert flow.evaluate_newest(with_options(config, changed))["skipped"]
    assert len(engines.started) == 4
    other.write_text('{"input": "1 + 2 =", "label": "3"}\n')
    assert not flow.evaluate_newest(with_options(config, {"eval_prompt_data": ["more", str(other)]}))["skipped"]
    Path(first["tables"]["sums"]).unlink()
    assert not flow.evaluate_newest(config)["skipped"]


def test_what_the_run_has_evaluated_itself_counts(
    tmp_path: Path, tiny_model: Path, sums: Path, engines: Engines, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"num_rollout": 2, "eval_prompt_data": ["sums", str(sums)], "eval_interval": 2}
    config = small_config(tmp_path, tiny_model, sums, **options)
    run_plain(config, FakeBackend())
    backend = FakeBackend()
    result = flow.evaluate(config, backend=backend)
    assert (result["skipped"], result["version"], backend.ensured) == (True, 2, 0)
    assert result["tables"]["sums"] == f"{config.run.run_dir}/steps/000001/eval/sums.parquet"
    assert "--again evaluates them anew" in capsys.readouterr().out
    assert flow.evaluate_newest(config)["metrics"] == result["metrics"]
    assert engines.started == []


def test_an_evaluation_by_the_runs_own_engines_counts_too(config: RelaxConfig, engines: Engines) -> None:
    backend = FakeBackend()
    assert not flow.evaluate(config, backend=backend)["skipped"]
    assert flow.evaluate(config, backend=backend)["skipped"]
    assert flow.evaluate_newest(config)["skipped"]
    assert backend.ensured == 1
    assert flow.evaluate(config, backend=backend, again=True)["skipped"] is False
    assert backend.ensured == 2


def test_where_there_is_nothing_yet_it_says_so(
    config: RelaxConfig, engines: Engines, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = with_options(config, {"run_dir": str(tmp_path / "nowhere")})
    result = flow.evaluate_newest(nowhere)
    assert (result["version"], result["skipped"]) == (None, True)
    assert result["reason"] == f"There is no run in {tmp_path}/nowhere yet."
    assert not (tmp_path / "nowhere").exists()
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    assert "has no complete checkpoint yet" in flow.evaluate_newest(config)["reason"]
    assert engines.started == []
    with pytest.raises(UserError, match="--eval-prompt-data: is required"):
        flow.evaluate_newest(with_options(config, {"eval_prompt_data": None, "eval_datasets": None}))


def test_one_at_a_time_evaluates_a_run(config: RelaxConfig, driver: dict[str, Any], engines: Engines) -> None:
    store = RunStore(str(config.run.run_dir))
    store.write_json("evaluations/evaluator.json", driver)
    result = flow.evaluate_newest(config)
    assert (result["version"], result["skipped"]) == (None, True)
    assert result["reason"] == f"Process {driver['pid']} evaluates the run {store.url} already."
    with pytest.raises(UserError, match=f"Process {driver['pid']} evaluates the run"):  # a person is told as an error
        flow.evaluate(config, backend=FakeBackend())
    store.write_json("evaluations/evaluator.json", {**driver, "created": 1.0})  # it was killed
    seen = []
    engines.during = lambda: seen.append(flow.evaluate_newest(config)["reason"])
    assert not flow.evaluate_newest(config)["skipped"]
    assert seen == [f"This process evaluates the run {store.url} already."]


def test_what_a_killed_evaluation_left_is_gone(config: RelaxConfig, engines: Engines) -> None:
    folder = Path(str(config.run.run_dir)) / "evaluations"
    left = folder / ".model"
    for one in (left, folder / "..model.converting"):
        one.mkdir(parents=True)
        (one / "model.safetensors").write_bytes(b"half of another")

    def fail() -> None:
        raise KeyboardInterrupt

    engines.during = fail
    with pytest.raises(KeyboardInterrupt):
        flow.evaluate_newest(config)
    assert not left.exists()
    assert engines.alive == 0
    engines.during = lambda: None
    assert not flow.evaluate_newest(config)["skipped"]
    left.mkdir()
    assert flow.evaluate_newest(config)["skipped"]
    assert {one.name for one in folder.iterdir()} == {"000004", "evaluator.json", "evaluator-beat.json"}


def test_a_checkpoint_that_the_run_deletes_meanwhile_gives_way_to_the_next(
    config: RelaxConfig, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, real = Path(str(config.run.run_dir)) / "checkpoints", SavedWeights._read

    def read(self: SavedWeights, name: str) -> Any:
        if self.iteration == 3 and "layers.1" in name:
            shutil.rmtree(folder / "iter_0000003", ignore_errors=True)
        return real(self, name)

    monkeypatch.setattr(SavedWeights, "_read", read)
    assert flow.evaluate_newest(config)["version"] == 2
    assert [version for _, version, _ in engines.started] == [2]


def test_a_run_on_s3(
    config: RelaxConfig, engines: Engines, s3_endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(Path(str(config.run.run_dir)), "s3://runs/evaluated")
    monkeypatch.setenv("RELAX_HOME", str(tmp_path / "home"))
    there = with_options(config, {"run_dir": "s3://runs/evaluated"})
    place = tmp_path / "home/evaluations" / run_id("s3://runs/evaluated")
    (place / "..model.converting").mkdir(parents=True)  # of an evaluation that was killed
    engines.during = lambda: models.extend(path.name for path in place.glob(".*/*.safetensors"))
    models: list[str] = []
    first = flow.evaluate_newest(there)
    assert first["tables"] == {"sums": "s3://runs/evaluated/evaluations/000004/sums.parquet"}
    assert models == ["model.safetensors"]
    assert list(place.iterdir()) == []
    assert flow.evaluate_newest(there)["skipped"]
    assert first["metrics"] == flow.evaluate_newest(config)["metrics"]


@pytest.mark.sglang
def test_a_real_engine_has_the_converted_weights_and_ends(
    config: RelaxConfig, driver: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy answers are those of the model that the checkpoint was made of."""
    run, real, seen = Path(str(config.run.run_dir)), beside.evaluate_set, []

    def watched(*args: Any, **options: Any) -> Any:
        seen.extend(one for one in psutil.Process().children(recursive=True) if "sglang" in " ".join(one.cmdline()))
        return real(*args, **options)

    monkeypatch.setattr(beside, "evaluate_set", watched)
    monkeypatch.setattr(engines_module, "GIVES_WAY", "UNUSED")  # beside other tests it would take minutes
    before = files(run)
    greedily = with_options(config, {"eval_temperature": 0.0})
    result = flow.evaluate_newest(greedily)
    assert flow.evaluate_newest(greedily)["skipped"]
    assert files(run) == before
    assert seen
    _, alive = psutil.wait_procs(seen, timeout=10)
    assert alive == []
    table = pq.read_table(result["tables"]["sums"])
    assert table["weight_versions"].to_pylist() == [[4]] * 8
    tokens = table["tokens"].to_pylist()
    assert greedy(config, tokens, table["response_length"].to_pylist()) == tokens


def greedy(config: RelaxConfig, rows: list[list[int]], lengths: list[int]) -> list[list[int]]:
    """The same prompts with the answers of transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(config.checkpoint.hf_checkpoint))
    found = []
    for row, length in zip(rows, lengths, strict=True):
        prompt = torch.tensor([row[: len(row) - length]])
        made = model.generate(prompt, max_new_tokens=length, do_sample=False, attention_mask=torch.ones_like(prompt))
        found.append(made[0].tolist())
    return found
