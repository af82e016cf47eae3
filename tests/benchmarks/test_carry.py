"""Carrying a folder in parts: any order, exact bytes, damage is told, nothing half-written."""

import json
import struct
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from programs import program as load_program


@pytest.fixture(scope="module")
def carry() -> ModuleType:
    return load_program("benchmarks/gpu/carry.py")


def safetensors(values: np.ndarray, kind: str) -> bytes:
    header = json.dumps(
        {"w": {"dtype": kind, "shape": list(values.shape), "data_offsets": [0, values.nbytes]}}
    ).encode()
    header += b" " * (-len(header) % 8)
    return struct.pack("<Q", len(header)) + header + values.tobytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "model"
    (found / "inner").mkdir(parents=True)
    weights = np.random.default_rng(0).normal(0, 0.05, 40_001).astype(np.float32)
    (found / "model.safetensors").write_bytes(safetensors((weights.view(np.uint32) >> 16).astype(np.uint16), "BF16"))
    (found / "inner" / "text").write_bytes(b"abc" * 1000)
    (found / "empty").write_bytes(b"")
    return found


def same(one: Path, other: Path) -> bool:
    names = {path.relative_to(one) for path in one.rglob("*") if path.is_file()}
    found = {path.relative_to(other) for path in other.rglob("*") if path.is_file()} - {Path(".carried")}
    return names == found and all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


def test_a_folder_comes_back_from_its_parts_in_any_order(
    carry: ModuleType, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(carry, "CHUNK", 4096)  # 80 kB of numbers in several chunks, the last one short
    parts, there = tmp_path / "parts", tmp_path / "there" / "model"
    assert carry.main(["pack", str(folder), str(parts), "--part-mib", "0.02", "0.015"]) == 0
    found = sorted(parts.iterdir())
    sizes = [(part / "piece").stat().st_size for part in found]
    assert sizes[0] == round(0.02 * 2**20)
    assert set(sizes[1:-1]) == {round(0.015 * 2**20)}
    # two thirds of 80 kB and a little more: the upper bytes of numbers pack well, the lower ones do not
    assert sum(sizes) < 0.75 * 80_002 + 1000
    for part in reversed(found):
        assert not there.exists()
        assert carry.main(["join", str(part), str(there)]) == 0
    assert same(folder, there)
    assert carry.main(["join", str(found[0]), str(there)]) == 0  # once more: nothing to do
    assert [path.name for path in there.parent.iterdir()] == ["model"]


def test_a_damaged_part_is_refused_and_the_right_one_completes_the_folder(
    carry: ModuleType, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts, there = tmp_path / "parts", tmp_path / "there"
    carry.main(["pack", str(folder), str(parts)])
    piece = parts / "part-1" / "piece"
    content = piece.read_bytes()
    piece.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert carry.main(["join", str(parts / "part-1"), str(there)]) == 1
    assert "is damaged" in capsys.readouterr().err
    assert not there.exists()
    piece.write_bytes(content)
    assert carry.main(["join", str(parts / "part-1"), str(there)]) == 0
    assert same(folder, there)


def test_what_is_packed_anew_leaves_no_older_part(carry: ModuleType, folder: Path, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    carry.main(["pack", str(folder), str(parts), "--part-mib", "0.01"])
    carry.main(["pack", str(folder), str(parts)])
    assert [path.name for path in parts.iterdir()] == ["part-1"]


def test_an_empty_folder_is_refused(carry: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    assert carry.main(["pack", str(tmp_path / "nothing"), str(tmp_path / "parts")]) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"files": [{"name": "../../outside", "size": 0, "sha256": "0" * 64, "chunks": []}]},
        {"files": [{"name": "/outside", "size": 0, "sha256": "0" * 64, "chunks": []}]},
        {"files": [{"name": "a"}]},
        {"pieces": ["../../outside"]},
        {"pieces": None},
        {"this": 1},
        {"this": -1},
    ],
)
def test_a_listing_that_was_not_packed_is_refused(
    carry: ModuleType, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: dict[str, object]
) -> None:
    parts, there = tmp_path / "parts", tmp_path / "inner" / "there"
    carry.main(["pack", str(folder), str(parts)])
    listing = parts / "part-1" / "listing.json"
    listing.write_text(json.dumps({**json.loads(listing.read_text()), **wrong}))
    assert carry.main(["join", str(parts / "part-1"), str(there)]) == 1
    assert "listing.json is not one that was packed" in capsys.readouterr().err
    assert not there.parent.exists()
    listing.write_text("[]")
    assert carry.main(["join", str(parts / "part-1"), str(there)]) == 1


def test_bytes_that_cannot_be_unpacked_are_told(
    carry: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "text").write_bytes(b"not packed")
    carry.main(["pack", str(tmp_path / "one"), str(tmp_path / "parts")])
    listing = tmp_path / "parts" / "part-1" / "listing.json"
    for kind in ("xz", "zlib"):
        listing.write_text(listing.read_text().replace('"raw"', f'"{kind}"').replace('"xz"', f'"{kind}"'))
        assert carry.main(["join", str(listing.parent), str(tmp_path / "there")]) == 1
        assert "carry: " in capsys.readouterr().err
    assert not (tmp_path / "there").exists()


def test_a_folder_that_has_something_else_is_left_alone(
    carry: ModuleType, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts, there = tmp_path / "parts", tmp_path / "there"
    carry.main(["pack", str(folder), str(parts)])
    there.mkdir()
    (there / "mine").write_text("precious")
    assert carry.main(["join", str(parts / "part-1"), str(there)]) == 1
    assert "name another folder" in capsys.readouterr().err
    assert (there / "mine").read_text() == "precious"
    (there / "mine").unlink()
    assert carry.main(["join", str(parts / "part-1"), str(there)]) == 0  # an empty one will do
    (folder / "empty").unlink()
    carry.main(["pack", str(folder), str(parts)])
    assert carry.main(["join", str(parts / "part-1"), str(there)]) == 0  # so will one that was carried before
    assert same(folder, there)
