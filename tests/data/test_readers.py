"""Prompt files: slices, formats, and the line or row that is named when something is wrong."""

from __future__ import annotations

import datetime
import gzip
import json
import logging
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import UserError
from data.files import FileStore
from data.readers import read_rows, split_source


def write_jsonl(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    """JSONL or Parquet, by the name."""
    if path.suffix != ".parquet":
        return write_jsonl(path, rows)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


@pytest.mark.parametrize("name", ["ten.jsonl", "ten.parquet"])
@pytest.mark.parametrize(
    ("suffix", "numbers"),
    [
        ("", range(10)),
        ("@[0:3]", range(3)),
        ("@[-3:]", range(7, 10)),
        ("@[1:-1]", range(1, 9)),
        ("@[-5:-2]", range(5, 8)),
        ("@[-100:]", range(10)),
        ("@[:]", range(10)),
        ("@[:100]", range(10)),
        ("@[9:]", range(9, 10)),
    ],
)
def test_a_slice_selects_rows_and_keeps_their_numbers(tmp_path: Path, name: str, suffix: str, numbers: range) -> None:
    path = write(tmp_path / name, [{"x": i} for i in range(10)])
    rows = read_rows(path + suffix, columns=["x"])
    assert [row.data["x"] for row in rows] == list(numbers)
    assert [row.number for row in rows] == list(numbers)
    first = f"line {numbers[0] + 1}" if name.endswith("jsonl") else f"row {numbers[0]}"
    assert rows[0].place == first


@pytest.mark.parametrize("name", ["ten.jsonl", "ten.parquet"])
@given(start=st.none() | st.integers(-15, 15), stop=st.none() | st.integers(-15, 15))
def test_every_slice_is_pythons(tmp_path_factory: pytest.TempPathFactory, name: str, start: int, stop: int) -> None:
    path = tmp_path_factory.getbasetemp() / name
    if not path.exists():
        write(path, [{"x": i} for i in range(10)])
    source = f"{path}@[{'' if start is None else start}:{'' if stop is None else stop}]"
    expected = list(range(10))[start:stop]
    if expected:
        assert [row.data["x"] for row in read_rows(source, columns=["x"])] == expected
    else:
        with pytest.raises(UserError, match="selects none of the 10 rows"):
            read_rows(source, columns=["x"])


@pytest.mark.parametrize("suffix", ["@[1]", "@[a:b]", "@[1:2:3]", "@[-:]", "@[]", "@[1.5:2]"])
def test_a_slice_that_is_none_is_refused(suffix: str) -> None:
    with pytest.raises(UserError, match="is not a row slice"):
        split_source(f"x.jsonl{suffix}")


def test_paths_with_other_at_signs_are_left_alone() -> None:
    assert split_source("s3://me@host/x.jsonl") == ("s3://me@host/x.jsonl", slice(None))
    assert split_source("a@[0:1]b.jsonl@[2:]") == ("a@[0:1]b.jsonl", slice(2, None))


def test_blank_lines_line_ends_and_byte_order_marks_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes('\ufeff{"x": 1}\r\n\n   \n{"x": "a\u2028b"}\r\n{"x": 3}'.encode())
    rows = read_rows(str(path), columns=["x"])
    assert [(row.number, row.place, row.data["x"]) for row in rows] == [
        (0, "line 1", 1),
        (1, "line 4", "a\u2028b"),
        (2, "line 5", 3),
    ]


def test_compressed_files_and_urls_are_read(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "x.jsonl.gz", "wt") as file:
        file.write('{"x": 1}\n{"x": 2}\n')
    assert [row.data["x"] for row in read_rows(f"file://{tmp_path}/x.jsonl.gz@[1:]", columns=["x"])] == [2]
    FileStore("memory://readers").write_bytes("x.jsonl", b'{"x": 1}')
    assert read_rows("memory://readers/x.jsonl", columns=["x"])[0].data == {"x": 1}


@pytest.mark.usefixtures("s3_endpoint")
def test_files_on_s3_are_read(tmp_path: Path) -> None:
    source = Path(write(tmp_path / "x.parquet", [{"x": 1}, {"x": 2}]))
    FileStore("s3://runs/readers").write_bytes("x.parquet", source.read_bytes())
    assert [row.data["x"] for row in read_rows("s3://runs/readers/x.parquet@[-1:]", columns=["x"])] == [2]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"x": 2', "line 2 is not JSON"),
        ("[1]", "line 2 holds list, not an object"),
        ("3", "line 2 holds int, not an object"),
        ('{"x": "\\ud800"}', "line 2 has half of a surrogate pair"),
        ("[" * 100_000, "line 2 (is nested too deeply|is not JSON)"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(f'{{"x": 1}}\n{line}\n{{"x": "\\ud83d\\ude00"}}\n')
    with pytest.raises(UserError, match=f"1 bad line: {says}"):
        read_rows(str(path), columns=["x"])


def test_bytes_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"x": 1}\n{"x": "\xff"}\n')
    with pytest.raises(UserError, match="line 2 is not JSON"):
        read_rows(str(path), columns=["x"])


def test_bad_lines_are_counted_and_can_be_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(["{"] * 7 + ['{"x": 1}']))
    with pytest.raises(UserError, match=r"7 bad lines: line 1 .*line 5 .*and 2 more"):
        read_rows(str(path), columns=["x"])
    with caplog.at_level(logging.WARNING, "data.readers"):
        rows = read_rows(str(path), columns=["x"], skip_bad_lines=True)
    assert [(row.number, row.data) for row in rows] == [(7, {"x": 1})]
    assert "7 bad lines are left out" in caplog.text


def test_a_file_of_bad_lines_only_is_an_error_even_when_they_may_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{\n{\n")
    with pytest.raises(UserError, match="2 bad lines"):
        read_rows(str(tmp_path / "x.jsonl"), columns=["x"], skip_bad_lines=True)


def test_bad_lines_outside_the_slice_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{\n{"x": 1}\n')
    assert read_rows(f"{tmp_path}/x.jsonl@[1:]", columns=["x"])[0].data == {"x": 1}


def test_parquet_values_come_as_json_would_hold_them(tmp_path: Path) -> None:
    table = pa.table(
        {
            "messages": [[{"role": "user", "content": "a"}], [{"role": "tool", "content": "b", "name": "f"}]],
            "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
            "decimal": [Decimal("4.50"), Decimal("42.00")],
            "day": [datetime.date(2026, 1, 2), None],
            "text": [b"caf\xc3\xa9", b""],
            "other": [1, 2],
        }
    )
    pq.write_table(table, tmp_path / "x.parquet")
    columns = ["messages", "map", "decimal", "day", "text", "absent"]
    first, second = (row.data for row in read_rows(str(tmp_path / "x.parquet"), columns=columns))
    assert first == {
        "messages": [{"role": "user", "content": "a"}],  # no "name": Parquet had to add it
        "map": {"k": 1},
        "decimal": 4.5,
        "day": "2026-01-02",
        "text": "café",
    }
    assert second["messages"] == [{"role": "tool", "content": "b", "name": "f"}]
    assert (second["decimal"], second["day"]) == (42, None)


def test_parquet_written_by_pandas_is_the_same(tmp_path: Path) -> None:
    rows = [{"m": [{"role": "user", "content": f"{i}"}], "n": i} for i in range(3)]
    pd.DataFrame(rows).to_parquet(tmp_path / "x.parquet")
    assert [row.data for row in read_rows(str(tmp_path / "x.parquet"), columns=["m", "n"])] == rows


def test_a_missing_parquet_column_is_named_with_those_that_exist(tmp_path: Path) -> None:
    path = write(tmp_path / "x.parquet", [{"question": "a", "answer": "b"}])
    with pytest.raises(UserError, match=r"no column 'input'.*Its columns: question, answer"):
        read_rows(path, columns=["input"], required=["input"])


@pytest.mark.parametrize("content", [b"PAR1", b"PAR1 and then something else PAR1"])
def test_a_damaged_parquet_file_is_explained(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.parquet").write_bytes(content)
    with pytest.raises(UserError, match="is not a whole Parquet file"):
        read_rows(str(tmp_path / "x.parquet"), columns=["x"])


def test_parquet_bytes_that_are_not_text_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [b"a", b"\xff"]}), tmp_path / "x.parquet")
    with pytest.raises(UserError, match="row 1, 'x' holds bytes that are not UTF-8"):
        read_rows(str(tmp_path / "x.parquet"), columns=["x"])


def test_files_without_rows_are_explained(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("\n\n")
    pq.write_table(pa.table({"x": pa.array([], pa.string())}), tmp_path / "x.parquet")
    for name in ("x.jsonl", "x.parquet"):
        with pytest.raises(UserError, match=f"{name} has no rows"):
            read_rows(str(tmp_path / name), columns=["x"])


def test_unreadable_files_are_explained(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl.gz").write_bytes(b"not gzip")
    for source, says in [
        (f"{tmp_path}/none.jsonl", "none.jsonl does not exist"),
        (str(tmp_path), "is a folder"),
        (f"{tmp_path}/x.jsonl.gz", "cannot be read"),
        ("surprise://x.jsonl", "cannot be read"),
        ("memory://readers/none.jsonl", "does not exist"),
    ]:
        with pytest.raises(UserError, match=says):
            read_rows(source, columns=["x"])
