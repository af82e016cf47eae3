"""Debugging data as files: where they go, what they hold, and what is refused."""

import os
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from data.errors import UserError
from data.schema import BATCH, table
from data.store import RunStore
from relax_core.config import RelaxConfig, with_options
from relax_core.run import debug_data
from relax_core.run.debug_data import (
    check_recorded,
    place,
    read_recorded,
    recorded_hash,
    save_debug_data,
    save_debug_evaluation,
    saved_place,
    write_samples,
)
from relax_core.run.records import StageRecord

SAMPLE: dict[str, Any] = {
    "group_index": 0,
    "index": 0,
    "prompt": "What?",
    "tokens": [1, 2, 3],
    "response": "5",
    "response_length": 1,
    "reward": 1.0,
    "rollout_log_probs": [-0.5],
    "status": "completed",
}


def config(**options: Any) -> RelaxConfig:
    return with_options(RelaxConfig(), options)


def test_places() -> None:
    assert place("a/{rollout_id}.pt", 7) == "a/7.pt"
    assert place("a/{rollout_id:04d}_{rank}.pt", 7) == "a/0007_0.pt"
    assert place("a/{rollout_id:04d}.pt", 7, "eval_") == "a/eval_0007.pt"
    assert place("a/{{x}}.pt", 7) == "a/{x}.pt"


@pytest.fixture
def run(tmp_path: Path) -> Any:
    """What ``save_debug_data`` needs of a run, with the tables of one step."""
    store = RunStore(str(tmp_path / "run"))
    path = tmp_path / "recorded.pt"
    write_samples(str(path), {"samples": [SAMPLE]})
    recorded = read_recorded(config(load_debug_rollout_data=str(path)), 4)
    columns = {name: recorded.rollout[name] for name in BATCH.names if name in recorded.rollout.column_names}
    batch = table(BATCH, {**columns, "advantages": [[0.5]], "returns": [[0.5]], "reward": [1.0]})
    tables = {"rollout": recorded.rollout, "reward": recorded.reward, "batch": batch}
    records = [
        StageRecord(name, "key", {name: store.write_table(f"{name}.parquet", content)})
        for name, content in tables.items()
    ]
    tokenizer = SimpleNamespace(save_pretrained=lambda folder: (Path(folder) / "vocab.json").write_text("{}"))
    return SimpleNamespace(store=store, config=RelaxConfig(), tokenizer=tokenizer, records=records, tables=tables)


@pytest.mark.parametrize("folder", ["{tmp}/dumps", "memory://debug-data"])
def test_the_samples_of_a_step(folder: str, run: Any, tmp_path: Path) -> None:
    import fsspec

    folder = folder.format(tmp=tmp_path)
    paths = {
        "save_debug_rollout_data": f"{folder}/r{{rollout_id}}.pt",
        "save_debug_train_data": f"{folder}/t{{rollout_id}}-{{rank}}.pt",
    }
    run.config = config(**paths)
    save_debug_data(run, 4, *run.records)
    with fsspec.open(f"{folder}/r4.pt") as file:
        written = torch.load(file, weights_only=True)
    assert written["rollout_id"] == 4
    assert {name: written["samples"][0][name] for name in SAMPLE} == SAMPLE
    with fsspec.open(f"{folder}/t4-0.pt") as file:
        written = torch.load(file, weights_only=True)
    assert (written["rollout_id"], written["rank"]) == (4, 0)
    assert written["samples"][0]["advantages"] == [0.5]
    assert written["samples"][0]["tokens"] == [1, 2, 3]


def test_a_copy_is_a_table_unless_its_path_ends_as_those_for_torch(run: Any, tmp_path: Path) -> None:
    assert [saved_place(f"a/{{rollout_id}}{end}", 7) for end in ("", ".parquet", ".pt", ".pth", ".pkl")] == [
        "a/7.parquet",
        "a/7.parquet",
        "a/7.pt",
        "a/7.pth",
        "a/7.pkl.parquet",
    ]
    template = str(tmp_path / "r{rollout_id}")
    run.config = config(save_debug_rollout_data=template, save_debug_train_data=str(tmp_path / "t{rollout_id}"))
    save_debug_data(run, 4, *run.records)
    assert RunStore(str(tmp_path)).read_table("t4.parquet").equals(run.tables["batch"])
    recorded = read_recorded(config(load_debug_rollout_data=template), 4)  # the same path reads it
    assert recorded.rollout.equals(run.tables["rollout"])
    os.rename(tmp_path / "r4.parquet", tmp_path / "r4.pt")  # the content says what it is
    again = read_recorded(config(load_debug_rollout_data=str(tmp_path / "r{rollout_id}.pt")), 4)
    assert again.rollout.equals(run.tables["rollout"])


def test_another_table_is_told(run: Any, tmp_path: Path) -> None:
    columns = ["sample_id", "reward"]
    RunStore(str(tmp_path)).write_table("scores.parquet", run.tables["reward"].select(columns))
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "run/rollout.parquet").read_bytes()[:-100])
    for name in ("scores", "cut"):
        with pytest.raises(UserError, match=rf"--load-debug-rollout-data: .*/{name}\.parquet is no table of recorded"):
            read_recorded(config(load_debug_rollout_data=str(tmp_path / f"{name}.parquet")), 0)


def test_details_hold_the_tokenizer_too(run: Any, tmp_path: Path) -> None:
    run.config = config(dump_details=str(tmp_path / "details"))
    save_debug_data(run, 4, *run.records)
    assert (tmp_path / "details/tokenizer/vocab.json").read_text() == "{}"


def test_nothing_is_written_unasked(run: Any, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    save_debug_data(run, 4, *run.records)
    save_debug_evaluation(run, 4, {}, "eval_")
    assert sorted(tmp_path.rglob("*")) == before


def test_samples_of_an_evaluation(run: Any, tmp_path: Path) -> None:
    run.config = config(save_debug_rollout_data=str(tmp_path / "{rollout_id}.pt"))
    rollout, reward = run.tables["rollout"], run.tables["reward"]
    for name in reward.column_names:
        if name not in rollout.column_names:
            rollout = rollout.append_column(name, reward[name])
    save_debug_evaluation(run, 4, {"sums": rollout}, "eval_")
    [sample] = torch.load(tmp_path / "eval_4.pt", weights_only=True)["samples"]
    assert (sample["eval_set"], sample["reward"], sample["tokens"]) == ("sums", 1.0, [1, 2, 3])


def test_a_path_that_ends_in_parquet_is_a_table_with_the_scores_and_is_read_again(run: Any, tmp_path: Path) -> None:
    paths = {name: str(tmp_path / f"{name}-{{rollout_id}}.parquet") for name in ("samples", "batch")}
    run.config = config(save_debug_rollout_data=paths["samples"], save_debug_train_data=paths["batch"])
    save_debug_data(run, 4, *run.records)
    recorded = read_recorded(config(load_debug_rollout_data=paths["samples"]), 4)
    assert recorded.rollout.equals(run.tables["rollout"])
    assert recorded.reward is not None
    assert recorded.reward.equals(run.tables["reward"])
    assert RunStore(str(tmp_path)).read_table("batch-4.parquet").equals(run.tables["batch"])
    whole = RunStore(str(tmp_path)).read_table("samples-4.parquet")
    save_debug_evaluation(run, 4, {"one": whole}, "eval_")
    assert RunStore(str(tmp_path)).read_table("samples-eval_4.parquet").equals(whole)


def test_numbers_and_arrays_of_numpy_are_read_and_objects_in_them_are_not(tmp_path: Path) -> None:
    path, settings = tmp_path / "a.pt", config(load_debug_rollout_data=str(tmp_path / "a.pt"))
    values = {"reward": np.float64(0.5), "rollout_log_probs": np.array([-0.25], np.float32)}
    write_samples(str(path), {"samples": [{**SAMPLE, **values, "metadata": {"n": np.int64(3)}}]})
    recorded = read_recorded(settings, 0)
    assert recorded.reward is not None
    assert recorded.reward["reward"].to_pylist() == [0.5]
    assert recorded.rollout["rollout_log_probs"].to_pylist() == [[-0.25]]
    assert recorded.rollout["metadata"].to_pylist() == ['{"n": 3}']
    torch.save({"samples": [{**SAMPLE, "x": np.array([_Runs(str(tmp_path / "ran"))], object)}]}, path)
    with pytest.raises(UserError, match="is no file of plain values"):
        read_recorded(settings, 0)
    assert not (tmp_path / "ran").exists()


class _Runs:
    """What makes a folder when it is unpickled without care."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (self.folder,)


def test_tensors_are_read_as_lists(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    write_samples(str(path), {"samples": [{**SAMPLE, "tokens": torch.tensor([1, 2, 3])}]})
    recorded = read_recorded(config(load_debug_rollout_data=str(path)), 0)
    assert recorded.rollout["tokens"].to_pylist() == [[1, 2, 3]]
    assert recorded.reward["reward"].to_pylist() == [1.0]


def test_a_rollout_table_is_read_as_it_is_and_has_no_scores(run: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "run/rollout.parquet")
    recorded = read_recorded(config(load_debug_rollout_data=path), 0)
    assert recorded.rollout.equals(run.tables["rollout"])
    assert recorded.reward is None


def test_a_share_of_a_rollout_table_and_of_samples_is_the_same(run: Any, tmp_path: Path) -> None:
    samples = [{**SAMPLE, "group_index": group, "index": 2 * group + k} for group in range(6) for k in range(2)]
    write_samples(str(tmp_path / "s.pt"), {"samples": samples})
    whole = read_recorded(config(load_debug_rollout_data=str(tmp_path / "s.pt")), 0).rollout
    RunStore(str(tmp_path)).write_table("s.parquet", whole)
    shares = [
        read_recorded(
            config(load_debug_rollout_data=str(tmp_path / name), load_debug_rollout_data_subsample=0.5), 0
        ).rollout
        for name in ("s.pt", "s.parquet")
    ]
    assert shares[0]["index"].to_pylist() == [0, 1, 8, 9, 10, 11]
    assert shares[1]["index"].to_pylist() == [0, 1, 8, 9, 10, 11]


class Bomb:
    """Runs code when it is unpickled."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> Any:
        return self.reduced


BOMBS = {
    "shell": Bomb(os.system, "touch boom"),
    "method": Bomb(Path("boom").touch),
    "eval": Bomb(eval, "open('boom', 'w')"),
    "import": Bomb(getattr, Bomb(__import__, "pathlib"), "Path"),
    "nested": {"tokens": [1, (2, Bomb(os.system, "touch boom"))]},
    "in an array": np.array([Bomb(os.system, "touch boom")], object),
    "key": {Bomb(os.mkdir, "boom"): 1},
}


@pytest.mark.parametrize("how", ["torch", "torch before 1.6", "pickle"])
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_file_that_would_run_code_is_refused_and_none_of_it_runs(
    bomb: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = {"rollout_id": 0, "samples": [{**SAMPLE, "metadata": BOMBS[bomb]}]}
    monkeypatch.chdir(tmp_path)
    if how == "pickle":
        Path("a.pt").write_bytes(pickle.dumps(content))
    else:
        torch.save(content, "a.pt", _use_new_zipfile_serialization=how == "torch")
    with pytest.raises(UserError, match="is no file of plain values") as raised:
        read_recorded(config(load_debug_rollout_data="a.pt"), 0)
    assert os.listdir() == ["a.pt"]
    assert "--load-debug-rollout-data: a.pt" in raised.value.problem
    assert "write its samples anew" in raised.value.fix


def test_a_table_that_names_python_code_runs_none(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an extension type that old versions of pyarrow unpickled."""
    monkeypatch.chdir(tmp_path)
    table = run.tables["rollout"]
    payload = pickle.dumps(Bomb(os.system, "touch boom"))
    field = table.schema.field("seed").with_metadata(
        {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": payload}
    )
    place = table.schema.get_field_index("seed")
    RunStore(".").write_table("a.parquet", table.set_column(place, field, table["seed"]))
    assert read_recorded(config(load_debug_rollout_data="a.parquet"), 0).rollout["seed"].equals(table["seed"])
    assert not Path("boom").exists()


@pytest.mark.parametrize("content", [b"", b"text", pickle.dumps({"samples": []})])
def test_a_file_of_something_else_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(UserError, match="--load-debug-rollout-data"):
        read_recorded(config(load_debug_rollout_data=str(tmp_path / "a.pt")), 0)


@pytest.mark.parametrize("content", [{}, {"samples": []}, {"samples": [1]}, [1]])
def test_a_file_without_samples_is_refused(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(UserError, match="holds no list of samples"):
        read_recorded(config(load_debug_rollout_data=str(tmp_path / "a.pt")), 0)


def test_the_identity_is_that_of_the_content(tmp_path: Path) -> None:
    options = config(load_debug_rollout_data=str(tmp_path / "{rollout_id}.pt"))
    for step in range(2):
        (tmp_path / f"{step}.pt").write_bytes(bytes([step]))
    assert recorded_hash(options, 0) != recorded_hash(options, 1)
    (tmp_path / "1.pt").write_bytes(bytes([0]))
    assert recorded_hash(options, 0) == recorded_hash(options, 1)


def test_missing_files_are_told_before_anything_starts(tmp_path: Path) -> None:
    write_samples(str(tmp_path / "0.pt"), {"samples": [SAMPLE]})
    options = config(load_debug_rollout_data=str(tmp_path / "{rollout_id}.pt"))
    run = SimpleNamespace(mode="train", config=options, next_step=lambda: 0, total_steps=1)
    check_recorded(run)
    run.total_steps = 3
    with pytest.raises(UserError, match=r"--load-debug-rollout-data: .*/2\.pt is missing"):
        check_recorded(run)


def test_binary_columns_pass(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    write_samples(str(path), {"samples": [{**SAMPLE, "multimodal_train_inputs": b"\x00\x01"}]})
    rollout = read_recorded(config(load_debug_rollout_data=str(path)), 0).rollout
    assert rollout["multimodal_train_inputs"].to_pylist() == [b"\x00\x01"]
    assert isinstance(rollout, pa.Table)
    assert debug_data.recorded_path(config(load_debug_rollout_data="x"), 0) == "x"
