"""Files on every kind of file system: whole or absent, and errors that say what to do."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from data.errors import UserError
from data.files import MissingFile
from data.store import RunStore


def test_bytes_json_and_lines_are_read_back(store: RunStore) -> None:
    store.write_bytes("a/b/c.bin", memoryview(b"123"))
    assert store.read_bytes("a/b/c.bin") == b"123"
    store.write_json("x.json", {"name": "é 中", "list": [1, 2.5, None]})
    assert store.read_json("x.json") == {"name": "é 中", "list": [1, 2.5, None]}
    store.write_json("x.json", [1])
    assert store.read_json("x.json") == [1]
    for step in range(3):
        store.append_jsonl("log/metrics.jsonl", {"step": step})
    assert store.read_jsonl("log/metrics.jsonl") == [{"step": 0}, {"step": 1}, {"step": 2}]
    assert store.sizes() == {
        "a/b/c.bin": 3,
        "x.json": len("[\n  1\n]\n"),
        "log/metrics.jsonl": 3 * len('{"step": 0}\n'),
    }


def test_listing_shows_names_and_nothing_for_a_missing_folder(store: RunStore) -> None:
    assert store.ls() == []
    assert store.ls("none") == []
    assert store.sizes("none") == {}
    for name in ("b.txt", "a.txt", "sub/c.txt"):
        store.write_bytes(f"dir/{name}", b"x")
    assert store.ls("dir") == ["a.txt", "b.txt", "sub"]
    assert store.ls("dir/") == ["a.txt", "b.txt", "sub"]
    assert store.exists("dir/sub/c.txt")
    assert store.exists("dir/sub")
    assert not store.exists("dir/sub/d.txt")
    store.delete("dir/sub")
    store.delete("dir/a.txt")
    store.delete("dir/never-there.txt")
    assert store.ls("dir") == ["b.txt"]


def test_what_another_writer_adds_is_seen(store: RunStore) -> None:
    other = RunStore(store.url)
    assert store.ls("dir") == []
    other.write_bytes("dir/a.txt", b"x")
    assert store.ls("dir") == ["a.txt"]
    assert store.exists("dir/a.txt")


def test_missing_and_truncated_json_is_none(store: RunStore) -> None:
    assert store.read_json("x.json") is None
    for content in (b"", b'{"a": 1', b"\xff\xfe{"):
        store.write_bytes("x.json", content)
        assert store.read_json("x.json") is None
    assert store.read_jsonl("x.jsonl") == []


def test_a_line_that_a_killed_writer_left_open_spoils_no_other(store: RunStore) -> None:
    store.write_bytes("m.jsonl", b'{"step": 0}\n{"step": 1, "lo')
    store.append_jsonl("m.jsonl", {"step": 2})
    assert store.read_jsonl("m.jsonl") == [{"step": 0}, {"step": 2}]


def test_a_missing_file_is_named(store: RunStore) -> None:
    with pytest.raises(MissingFile, match=r"dir/a\.txt is missing"):
        store.read_bytes("dir/a.txt")


def test_paths_stay_inside_the_store(store: RunStore) -> None:
    for path in ("../x", "a/../../x"):
        with pytest.raises(ValueError, match="leaves the store"):
            store.write_bytes(path, b"")
    store.write_bytes("/lead.txt", b"x")
    assert store.exists("lead.txt")


def test_uris_open_the_file(store: RunStore) -> None:
    store.write_bytes("a.txt", b"x")
    local = store.local_path("a.txt")
    if store.is_local:
        assert local is not None
        assert os.path.isabs(local)
        assert Path(local).read_bytes() == b"x"
        assert store.uri("a.txt") == local
    else:
        assert local is None
        assert store.uri("a.txt").startswith(store.url.split("://")[0] + "://")
        folder, name = store.uri("a.txt").rsplit("/", 1)
        assert RunStore(folder).read_bytes(name) == b"x"


def test_a_relative_folder_is_fixed_when_the_store_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = RunStore("runs/x")
    monkeypatch.chdir("/")
    store.write_bytes("a.txt", b"x")
    assert (tmp_path / "runs/x/a.txt").exists()


def test_a_writable_store_passes_the_check_and_is_left_empty(store: RunStore) -> None:
    store.check_writable(free_bytes=1)
    assert store.ls() == []


def test_too_little_space_is_found_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"GiB left and the run needs 1048576\.0 GiB\. Free some space"):
        RunStore(tmp_path).check_writable(free_bytes=2**50)


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        (errno.ENOSPC, "Free some space"),
        (errno.EDQUOT, "Free some space"),
        (errno.EACCES, "Give yourself the right"),
        (errno.EROFS, "Give yourself the right"),
        (errno.EIO, "Check the disk"),
    ],
)
def test_a_failing_disk_is_explained_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, fix: str
) -> None:
    store = RunStore(tmp_path)
    store.write_bytes("a.txt", b"old")

    def fail(_descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match=f"Cannot write {tmp_path}/a.txt: {os.strerror(code)}. {fix}"):
        store.write_bytes("a.txt", b"new")
    assert os.listdir(tmp_path) == ["a.txt"]
    assert store.read_bytes("a.txt") == b"old"


def test_a_file_in_the_place_of_the_folder_is_explained(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(UserError, match="A file stands where a folder must be"):
        RunStore(tmp_path / "run").check_writable()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_explained(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="Give yourself the right to write there"):
        RunStore(tmp_path / "run").check_writable()


def test_a_writer_killed_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.write_json("x.json", {"old": True})
    code = (
        "import os, signal, sys; from data.store import RunStore;"
        "os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL);"
        "RunStore(sys.argv[1]).write_json('x.json', {'new': True})"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == -9
    assert store.read_json("x.json") == {"old": True}
    assert len(os.listdir(tmp_path)) == 2  # the unfinished file is there ...
    assert store.ls() == ["x.json"]  # ... and not shown
    assert list(store.sizes()) == ["x.json"]


@pytest.mark.parametrize("url", ["surprise://x/y", "s4://bucket"])
def test_an_unknown_kind_of_url_is_explained(url: str) -> None:
    with pytest.raises(UserError, match="cannot be used"):
        RunStore(url)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_args: Any, **_options: Any) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.url_to_fs", missing)
    with pytest.raises(UserError, match=r"Install s3fs to access S3.*relax-rl\[s3\]"):
        RunStore("s3://runs/x")


@pytest.mark.usefixtures("s3_endpoint")
def test_a_missing_bucket_is_explained() -> None:
    with pytest.raises(UserError, match=r"Cannot write s3://no-such-bucket/x/.*bucket of the run exists"):
        RunStore("s3://no-such-bucket/x").check_writable()


def test_the_endpoint_can_be_given_in_code(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    store = RunStore("s3://runs/in-code", endpoint_url=s3_endpoint, key="testing", secret="testing")
    store.check_writable()


def test_an_unreachable_endpoint_is_explained(s3_endpoint: str) -> None:
    options = {"config_kwargs": {"retries": {"max_attempts": 0}, "connect_timeout": 1}}
    store = RunStore("s3://runs/x", endpoint_url="http://127.0.0.1:9", key="k", secret="s", **options)
    with pytest.raises(UserError, match="Check the address and the credentials"):
        store.check_writable()
