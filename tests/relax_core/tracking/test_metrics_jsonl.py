"""metrics.jsonl: readable by others, once a step."""

import json

import pandas as pd

from data.store import RunStore
from relax_core.tracking.jsonl import append_metrics, read_metrics, trim_metrics


def test_lines_are_a_table_for_pandas_and_nan_is_null(tmp_path):
    store = RunStore(str(tmp_path))
    append_metrics(store, 0, {"reward/mean": 0.5, "loss": float("nan")}, now=12.34567)
    append_metrics(store, 1, {"reward/mean": 0.75, "loss": 0.25}, now=13)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[0]) == {"step": 0, "time": 12.346, "reward/mean": 0.5, "loss": None}
    frame = pd.read_json(tmp_path / "metrics.jsonl", lines=True)
    assert frame["reward/mean"].tolist() == [0.5, 0.75]


def test_a_step_that_was_written_twice_counts_once_and_a_torn_line_not_at_all(tmp_path):
    store = RunStore(str(tmp_path))
    append_metrics(store, 0, {"loss": 1.0}, now=1)
    append_metrics(store, 1, {"loss": 2.0}, now=2)
    append_metrics(store, 1, {"loss": 3.0}, now=3)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    assert [(line["step"], line["loss"]) for line in read_metrics(store)] == [(0, 1.0), (1, 3.0)]


def test_what_a_kill_tore_is_gone_when_the_run_goes_on(tmp_path):
    store, file = RunStore(str(tmp_path)), tmp_path / "metrics.jsonl"
    append_metrics(store, 0, {"loss": float("nan"), "lr": 1e-06}, now=1)
    whole = file.read_bytes()
    trim_metrics(store, 1)
    assert file.read_bytes() == whole
    with file.open("a") as torn:
        torn.write('{"step": 1, "lo')
    trim_metrics(store, 1)
    assert file.read_bytes() == whole
    append_metrics(store, 1, {"loss": 2.0}, now=2)
    assert pd.read_json(file, lines=True)["step"].tolist() == [0, 1]


def test_lines_of_no_step_are_left_out(tmp_path):
    store = RunStore(str(tmp_path))
    (tmp_path / "metrics.jsonl").write_text('{"step": null}\n{"step": "x"}\n{"step": [1]}\n{"step": 1.5}\n7\n{}\n')
    append_metrics(store, 0, {"loss": 1.0}, now=1)
    assert [line["step"] for line in read_metrics(store)] == [0]


def test_a_run_without_metrics_has_none(tmp_path):
    assert read_metrics(RunStore(str(tmp_path))) == []


def test_the_time_is_the_clocks_by_default(tmp_path):
    store = RunStore(str(tmp_path))
    append_metrics(store, 0, {})
    assert read_metrics(store)[0]["time"] > 1.7e9
