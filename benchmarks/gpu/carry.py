"""Carry a folder to a machine without a network, in parts of a limited size: packed here, joined there.

    python benchmarks/gpu/carry.py pack FOLDER PARTS [--part-mib 55]    # PARTS/part-1, PARTS/part-2, ...; once, here
    python benchmarks/gpu/carry.py join PARTS/part-1 FOLDER             # there, once for each part, in any order

Guarantee: what is joined has the packed files' bytes, or nothing is written under its name: pieces and files have
their sha256. A part that was joined before is no mistake. Needs Python's standard library alone.

Numbers are packed by their bytes' place: in weights of two bytes the upper one, with sign and most of the exponent,
packs to 0.35 of its size, the lower one not at all, so that bfloat16 comes to 0.67. What gains less than a tenth stays
as it is. Several values of ``--part-mib`` are the sizes of the parts in turn, the last one of all further ones.
"""

import argparse
import concurrent.futures
import hashlib
import itertools
import json
import lzma
import os
import shutil
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MIB = 1 << 20
CHUNK = 16 * MIB
"""Bytes of a file that are packed together."""
WIDTHS = {"F32": 4, "F16": 2, "BF16": 2}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    doing = parser.add_subparsers(dest="doing", required=True)
    packing = doing.add_parser("pack", help="a folder into parts")
    packing.add_argument("folder", type=Path)
    packing.add_argument("parts", type=Path)
    packing.add_argument("--part-mib", type=float, nargs="+", default=[55.0])
    joining = doing.add_parser("join", help="one part to those that came before")
    joining.add_argument("part", type=Path)
    joining.add_argument("folder", type=Path)
    chosen = parser.parse_args(arguments)
    started = time.perf_counter()
    try:
        if chosen.doing == "pack":
            print(pack(chosen.folder, chosen.parts, chosen.part_mib), end="; ")
        else:
            print(join(chosen.part, chosen.folder), end="; ")
    except (OSError, ValueError, zlib.error, lzma.LZMAError) as error:
        print(f"carry: {error}", file=sys.stderr)
        return 1
    print(f"{time.perf_counter() - started:.1f} s")
    return 0


def pack(folder: Path, parts: Path, part_mib: list[float]) -> str:
    """Write the parts; others that lie there are removed first.

    Raises:
        ValueError: there is nothing to pack, or a part would have no room.
    """
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    names = [name for name in names if "__pycache__" not in name]
    if not names or min(part_mib) <= 0:
        raise ValueError(f"there is nothing to pack in {folder}, or --part-mib is not above 0")
    for old in parts.glob("part-*"):
        shutil.rmtree(old)
    files, packed = [], bytearray()
    for name in names:
        content = (folder / name).read_bytes()
        chunks = []
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for kind, data in pool.map(squeezed, planes(content, width(name, content))):
                chunks.append([kind, len(data)])
                packed += data
        digest = hashlib.sha256(content).hexdigest()
        files.append({"name": name, "size": len(content), "sha256": digest, "chunks": chunks})
    sizes = [round(size * MIB) for size in part_mib]
    cuts = [0]
    while cuts[-1] < len(packed):
        cuts.append(min(cuts[-1] + sizes[min(len(cuts) - 1, len(sizes) - 1)], len(packed)))
    pieces = [bytes(packed[a:b]) for a, b in itertools.pairwise(cuts)]
    listing = {"files": files, "pieces": [hashlib.sha256(piece).hexdigest() for piece in pieces]}
    for place, piece in enumerate(pieces):
        target = parts / f"part-{place + 1}"
        target.mkdir(parents=True)
        (target / "piece").write_bytes(piece)
        (target / "listing.json").write_text(json.dumps({**listing, "this": place}))
    whole = sum(file["size"] for file in files)  # type: ignore[misc]
    shown = ", ".join(f"{len(piece) / MIB:.1f}" for piece in pieces)
    return f"{len(files)} files, {whole / MIB:.1f} MiB in {len(pieces)} parts of {shown} MiB"


def width(name: str, content: bytes) -> int:
    """Bytes of a number in this file: that of most of a safetensors file's bytes, else 1."""
    if not name.endswith(".safetensors") or len(content) < 8:
        return 1
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    bytes_of: dict[int, int] = {}
    for key, tensor in header.items():
        if key != "__metadata__":
            first, last = tensor["data_offsets"]
            size = WIDTHS.get(tensor["dtype"], 1)
            bytes_of[size] = bytes_of.get(size, 0) + last - first
    return max(bytes_of, key=lambda size: bytes_of[size], default=1)


def planes(content: bytes, step: int) -> Iterator[bytes]:
    """Of each chunk all first bytes of its numbers, then all second ones, and so on."""
    for start in range(0, len(content), CHUNK):
        for place in range(step):
            yield content[start : start + CHUNK][place::step]


def squeezed(data: bytes) -> tuple[str, bytes]:
    """The shortest of raw, Huffman-coded and xz, and its kind before it."""
    coder = zlib.compressobj(9, zlib.DEFLATED, 15, 9, zlib.Z_HUFFMAN_ONLY)
    best = ("raw", data)
    for kind, found in (("zlib", coder.compress(data) + coder.flush()), ("xz", lzma.compress(data, preset=1))):
        if len(found) < 0.9 * len(best[1]):  # unpacking takes time too
            best = (kind, found)
    return best


def join(part: Path, folder: Path) -> str:
    """Keep a part beside ``folder``; once all are there, write the folder and remove them.

    Raises:
        ValueError: a piece, a listing or a file is damaged, or ``folder`` has other things.
        OSError: there is no such part, or ``folder`` cannot be written.
    """
    listing = listed(part)
    pieces, mark = listing["pieces"], folder / ".carried"
    stamp = hashlib.sha256(json.dumps([listing["files"], pieces]).encode()).hexdigest()  # names too
    if mark.exists() and mark.read_text() == stamp:
        return f"{folder} is complete already"
    if folder.exists() and not mark.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} has something that was not carried there: name another folder, or remove it")
    place = listing["this"]
    kept = folder.parent / f".{folder.name}.parts"
    kept.mkdir(parents=True, exist_ok=True)
    piece = (part / "piece").read_bytes()
    if hashlib.sha256(piece).hexdigest() != pieces[place]:
        raise ValueError(f"{part} is damaged: carry it again")
    scratch = kept / f"{pieces[place]}.new"
    scratch.write_bytes(piece)
    scratch.replace(kept / pieces[place])
    missing = [number + 1 for number, name in enumerate(pieces) if not (kept / name).exists()]
    if missing:
        return f"part {place + 1} of {len(pieces)} kept; still to come: {', '.join(map(str, missing))}"
    packed = memoryview(b"".join((kept / name).read_bytes() for name in pieces))
    new = folder.parent / f".{folder.name}.new"
    shutil.rmtree(new, ignore_errors=True)
    done = 0
    for file in listing["files"]:
        size = sum(chunk[1] for chunk in file["chunks"])
        write(new / file["name"], file, packed[done : done + size])
        done += size
    (new / ".carried").write_text(stamp)
    shutil.rmtree(folder, ignore_errors=True)
    new.replace(folder)
    shutil.rmtree(kept)
    return f"{folder}: {len(listing['files'])} files, {sum(file['size'] for file in listing['files']) / MIB:.1f} MiB"


def listed(part: Path) -> dict[str, Any]:
    """What a part says of itself and of all.

    Raises:
        ValueError: ``pack`` does not write such a listing, for instance one with names outside the folder.
    """
    try:
        found: dict[str, Any] = json.loads((part / "listing.json").read_text())
        names = [Path(file["name"]) for file in found["files"]]
        right = range(len(found["pieces"])).index(found["this"]) >= 0
        right &= all(len(piece) == 64 and piece.isalnum() for piece in found["pieces"])
        right &= not any(name.is_absolute() or ".." in name.parts for name in names)
        for file in found["files"]:
            right &= file["size"] >= 0 and len(file["sha256"]) == 64 and all(size >= 0 for _, size in file["chunks"])
    except (ValueError, KeyError, TypeError, AttributeError):
        right = False
    if not right:
        raise ValueError(f"{part} is damaged: its listing.json is not one that was packed")
    return found


def write(path: Path, file: dict[str, Any], packed: memoryview) -> None:
    """One file from its chunks."""
    kinds = [kind for kind, _ in file["chunks"]]
    ends = [0, *itertools.accumulate(size for _, size in file["chunks"])]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = list(pool.map(unsqueezed, kinds, (packed[a:b] for a, b in itertools.pairwise(ends))))
    content = bytearray(file["size"])
    step = len(parts) // max(1, -(-file["size"] // CHUNK))
    for number, data in enumerate(parts):
        start, place = number // step * CHUNK, number % step
        content[start + place : start + CHUNK : step] = data
    if hashlib.sha256(content).hexdigest() != file["sha256"]:
        raise ValueError(f"{file['name']} is not what was packed: carry all parts again")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def unsqueezed(kind: str, data: memoryview) -> bytes:
    """What ``squeezed`` was given."""
    if kind == "raw":
        return bytes(data)
    return zlib.decompress(data) if kind == "zlib" else lzma.decompress(data)


if __name__ == "__main__":
    raise SystemExit(main())
