import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from configs import valid_config

from relax_core.config.files import local_path
from relax_core.config.prompt_columns import Columns, check_columns, column_problems
from relax_core.config.resolve import resolve

ROW = {"input": "1+1=", "answer": "2", "metadata": {"level": 1}}


def columns(prompt: str = "input", label: str | None = "answer", text_only: bool = True) -> Columns:
    named = None if label is None else ("--label-key", label)
    return Columns(("--input-key", prompt), named, ("--metadata-key", "metadata"), text_only)


def told(path: Path, wanted: Columns, start: int = 0) -> list[str]:
    return [str(problem) for problem in column_problems("--prompt-data", "data", path, wanted, start)]


def jsonl(folder: Path, *rows: Any) -> Path:
    path = folder / "a.jsonl"
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


def parquet(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("write", [jsonl, lambda folder, row: parquet(folder, [row])])
def test_columns_that_are_there(tmp_path: Path, write: Any) -> None:
    path = write(tmp_path, ROW)
    assert told(path, columns()) == []
    assert told(path, columns(label=None)) == []
    assert told(path, columns(prompt="prompt", label="anser")) == [
        "--input-key prompt: is no column of data: its columns are input, answer, metadata.",
        "--label-key anser: is no column of data: its columns are input, answer, metadata. Did you mean answer?",
    ]


def test_a_prompt_of_messages_needs_the_template(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {**ROW, "input": [{"role": "user", "content": "1+1="}]})
    assert told(path, columns(text_only=False)) == []
    assert told(path, columns()) == [
        "--input-key input: is no column of texts in data: its first row holds a list."
        " Add --apply-chat-template for lists of messages."
    ]


@pytest.mark.parametrize(
    ("metadata", "kind"),
    [([1], "a list"), ("text", "text"), (3, "a number"), (True, "true or false"), ("[]", "a list")],
)
def test_metadata_is_an_object(tmp_path: Path, metadata: Any, kind: str) -> None:
    assert told(jsonl(tmp_path, {**ROW, "metadata": metadata}), columns()) == [
        f"--metadata-key metadata: is no column of objects in data: it holds {kind}."
        " Name another column, or none that the file has."
    ]


@pytest.mark.parametrize("metadata", [{}, None, '{"level": 1}'])
def test_metadata_may_be_absent_or_json_text(tmp_path: Path, metadata: Any) -> None:
    assert told(jsonl(tmp_path, {**ROW, "metadata": metadata}), columns()) == []


def test_metadata_of_a_parquet_file(tmp_path: Path) -> None:
    assert told(parquet(tmp_path, [{**ROW, "metadata": "{}"}]), columns()) == []
    assert told(parquet(tmp_path, [{**ROW, "metadata": None}]), columns()) == []
    assert "it holds int64" in told(parquet(tmp_path, [{**ROW, "metadata": 3}]), columns())[0]


def test_the_first_row_that_is_used_is_looked_at(tmp_path: Path) -> None:
    path = jsonl(tmp_path, "\n", {"other": 1}, "\n", ROW)
    assert len(told(path, columns())) == 2
    assert told(path, columns(), start=1) == []
    assert told(path, columns(), start=9) == []  # the stage that reads the file says that there is none
    assert told(path, columns(), start=-2) == []


def test_what_is_no_jsonl(tmp_path: Path) -> None:
    assert told(jsonl(tmp_path, "[1]\n"), columns()) == [
        "--prompt-data data: is no JSONL: line 1 holds a list. Each line must be one JSON object."
    ]
    assert told(jsonl(tmp_path, "\n", "{'a': 1}\n"), columns())[0].startswith(
        "--prompt-data data: is no JSONL: line 2: "
    )
    broken = tmp_path / "b.parquet"
    broken.write_bytes(b"PAR1 and no more")
    assert told(broken, columns())[0].startswith("--prompt-data data: is no valid Parquet file: ")


def test_files_that_are_packed(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(ROW).encode()))
    assert told(path, columns(prompt="prompt")) != []
    path.write_bytes(b"no gzip")
    assert told(path, columns()) == []
    other = tmp_path / "a.jsonl.zst"
    other.write_bytes(b"\x28\xb5\x2f\xfd")
    assert told(other, columns()) == []


def test_nothing_is_said_of_files_without_rows_and_of_none(tmp_path: Path) -> None:
    assert told(jsonl(tmp_path, ""), columns()) == []
    assert told(tmp_path / "none.jsonl", columns()) == []
    assert told(tmp_path, columns()) == []


def test_a_byte_order_mark_is_no_part_of_a_row(tmp_path: Path) -> None:
    assert told(jsonl(tmp_path, "\ufeff" + json.dumps(ROW)), columns()) == []


def test_a_configuration(tmp_path: Path) -> None:
    path = jsonl(tmp_path, ROW, {"question": "?"})
    options = {
        "prompt_data": f"{path}@[1:]",
        "label_key": "answer",
        "eval_prompt_data": ["a", str(path), "b", "s3://bucket/b.jsonl"],
        "eval_input_key": "quest",
    }
    config = resolve(valid_config(tmp_path, **options))
    assert [problem.option for problem in check_columns(config, "train", local_path)] == [
        "--input-key",
        "--label-key",
        "--eval-input-key",
    ]
    assert [problem.option for problem in check_columns(config, "evaluate", local_path)] == ["--eval-input-key"]


@pytest.mark.parametrize(
    "options", [{"apply_chat_template": True}, {"loss_type": "sft"}, {"custom_prompt_path": "mine.py:f"}]
)
def test_a_template_takes_lists_of_messages(tmp_path: Path, options: dict[str, Any]) -> None:
    path = jsonl(tmp_path, {"input": [{"role": "user", "content": "1+1="}]})
    config = resolve(valid_config(tmp_path, prompt_data=str(path), **options))
    assert check_columns(config, "train", local_path) == []
