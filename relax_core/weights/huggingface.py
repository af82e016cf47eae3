"""Hugging Face weight folders: read tensors in parts, write them in shards.

Guarantee: a folder is checked against the model's shape before a tensor is read, and every missing, unexpected or
misshapen tensor is named; an export becomes visible whole or not at all. Reads through a memory map, so that a rank
holds no more than the tensor that it is copying. Needs no Megatron.
"""

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from data.errors import UserError
from relax_core.training.shape import Family, ModelShape, hf_folder, read_config
from relax_core.weights.mapping import hf_shapes

SHARD_BYTES = 5 * 10**9
_WITH_VALUES: dict[Family, str] = {
    "llama": "LlamaForTokenClassification",
    "qwen2": "Qwen2ForTokenClassification",
    "qwen3": "Qwen3ForTokenClassification",
}
"""transformers' class of a model with a value for each token."""
_HEADS = ("lm_head.", "score.", "classifier.", "v_head.", "value_head.")
"""Beginnings of the names of what stands on top of a body."""
_FLOATS = ("F64", "F32", "F16", "BF16")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".index.json", ".md")


class HfWeights:
    """The weights of a Hugging Face folder, opened for reading by name.

    Args:
        folder: a local folder with ``model.safetensors`` or a sharded ``model.safetensors.index.json``.
        shape: of the model, to check the folder against.
        body: whatever is on top of it, an output layer or another head, is neither needed nor looked at.

    Raises:
        UserError: no safetensors, an unreadable file, tensors missing, unexpected, misshapen or quantised.
    """

    def __init__(self, folder: str | Path, shape: ModelShape, body: bool = False) -> None:
        self.folder = hf_folder(folder)
        self._slices: dict[str, Any] = {}
        for name in _weight_files(self.folder):
            path = self.folder / name
            if not path.is_file():
                raise UserError(f"{self.folder} lacks {name}, which its index lists.", "Copy the whole model folder.")
            try:
                file = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise UserError(f"{path} is damaged: {error}.", "Copy the model folder again.") from error
            self._slices |= {key: file.get_slice(key) for key in file.keys()}  # noqa: SIM118 (it is no mapping)
        if body:
            self._slices = {name: part for name, part in self._slices.items() if not name.startswith(_HEADS)}
        self._check(shape, body)

    def read(self, name: str, cut: int | None = None, rank: int = 0, ranks: int = 1) -> Tensor:
        """A tensor, or the rank's share of it when it is cut in ``ranks`` equal parts along dimension ``cut``."""
        source = self._slices[name]
        if cut is None or ranks == 1:
            return source[...]  # type: ignore[no-any-return]
        size = source.get_shape()[cut] // ranks
        part = slice(rank * size, (rank + 1) * size)
        return source[part] if cut == 0 else source[:, part]  # type: ignore[no-any-return]

    def _check(self, shape: ModelShape, body: bool) -> None:
        expected = {name: size for name, size in hf_shapes(shape).items() if not (body and name.startswith(_HEADS))}
        # Some folders hold the output layer's copy of a tied embedding, or the rotary table of old releases.
        ignored = {"lm_head.weight"} if shape.tie else set()
        extra = [
            name
            for name in self._slices
            if name not in expected and name not in ignored and not name.endswith("rotary_emb.inv_freq")
        ]
        missing = [name for name in expected if name not in self._slices]
        if missing or extra:
            found = [f"{title} {_some(names)}" for title, names in (("lacks", missing), ("also has", extra)) if names]
            raise UserError(
                f"The weights in {self.folder} do not fit its config.json: it {' and '.join(found)}.",
                f"A {shape.family} model of {shape.layers} layers is expected; check that the folder is complete.",
            )
        for name, size in expected.items():
            found_size, kind = tuple(self._slices[name].get_shape()), self._slices[name].get_dtype()
            if found_size != size:
                raise UserError(
                    f"{name} in {self.folder} has the shape {list(found_size)}, but config.json says {list(size)}."
                )
            if kind not in _FLOATS:
                raise UserError(
                    f"{name} in {self.folder} is stored as {kind}.",
                    "Give a model in float32, bfloat16 or float16: quantised weights cannot be trained.",
                )


def write_folder(
    tensors: Iterable[tuple[str, Tensor]],
    shape: ModelShape,
    source: str | Path,
    out: str | Path,
    dtype: torch.dtype,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write a Hugging Face folder that transformers loads.

    Args:
        tensors: all tensors of the model, in the order of :func:`hf_shapes`; held for one shard at most.
        source: folder whose config.json, tokenizer and other small files are taken over.
        out: the new folder; replaced when it exists.
        dtype: of the tensors, recorded in config.json.
        shard_bytes: most bytes of one file, unless a single tensor has more.

    Raises:
        UserError: ``out`` is a URL, or its disk has too little room.
    """
    if "://" in str(out):
        raise UserError(f"A Hugging Face export cannot go to the URL {out}.", "Give a local folder with --save-hf.")
    out = Path(out).absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    fill_folder(tensors, shape, source, partial, dtype, shard_bytes, f"--save-hf {out}")
    _put_in_place(partial, out)


def fill_folder(
    tensors: Iterable[tuple[str, Tensor]],
    shape: ModelShape,
    source: str | Path,
    folder: Path,
    dtype: torch.dtype,
    shard_bytes: int = SHARD_BYTES,
    name: str = "",
) -> None:
    """``write_folder`` into an empty folder, in which the files appear one after another.

    Args:
        name: what errors call the folder.

    Raises:
        UserError: its disk has too little room.
    """
    source, plan = hf_folder(source), plan_shards(hf_shapes(shape), dtype.itemsize, shard_bytes)
    total = sum(plan.values())
    free = shutil.disk_usage(folder).free
    if free < total:
        raise UserError(
            f"The Hugging Face folder {name or folder} needs {total / 1e9:.2f} GB, but the disk has {free / 1e9:.2f} GB"
            " left.",
            "Free some space or give another folder.",
        )
    _write_shards(tensors, [list(shard) for shard in plan], folder, total)
    _write_rest(source, folder, dtype, shape)


def plan_shards(shapes: Mapping[str, tuple[int, ...]], itemsize: int, limit: int) -> dict[tuple[str, ...], int]:
    """Names and bytes of each shard: tensors in their order, a new shard where the limit would be passed."""
    plan: dict[tuple[str, ...], int] = {}
    names: list[str] = []
    size = 0
    for name, dimensions in shapes.items():
        count = itemsize
        for dimension in dimensions:
            count *= dimension
        if names and size + count > limit:
            plan[tuple(names)] = size
            names, size = [], 0
        names.append(name)
        size += count
    plan[tuple(names)] = size
    return plan


def _weight_files(folder: Path) -> list[str]:
    """Names of the folder's safetensors files."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise UserError(f"{index} is damaged: {error!r}.", "Copy the model folder again.") from error
    if (folder / "model.safetensors").is_file():
        return ["model.safetensors"]
    if any(folder.glob("*.bin")):
        raise UserError(
            f"{folder} has its weights as .bin files, which may run code when loaded.",
            "Convert it: AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder).",
        )
    raise UserError(f"{folder} has no model.safetensors.", "Give a Hugging Face folder with its weights.")


def _write_shards(tensors: Iterable[tuple[str, Tensor]], shards: list[list[str]], folder: Path, total: int) -> None:
    """Write tensors as they come; a shard's memory is freed before the next begins."""
    files = {shard[0]: f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i, shard in enumerate(shards)}
    if len(shards) == 1:
        files = {shards[0][0]: "model.safetensors"}
    source = iter(tensors)
    for shard in shards:
        held: dict[str, Tensor] = {}
        for expected in shard:
            name, tensor = next(source)
            if name != expected:
                raise ValueError(f"expected the tensor {expected}, not {name}")
            held[name] = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        save_file(held, folder / files[shard[0]], metadata={"format": "pt"})
    for name, _ in source:  # also runs what the source does after its last tensor
        raise ValueError(f"a tensor more than expected: {name}")
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": total},
            "weight_map": {name: files[shard[0]] for shard in shards for name in shard},
        }
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")


def _write_rest(source: Path, folder: Path, dtype: torch.dtype, shape: ModelShape) -> None:
    """config.json with the type of the weights, and the source's tokenizer and other small files."""
    config = read_config(source)
    if shape.values:  # one label, which is the value
        config |= {"architectures": [_WITH_VALUES[shape.family]], "id2label": {"0": "value"}, "label2id": {"value": 0}}
    for key in {"dtype", *(key for key in ("torch_dtype",) if key in config)}:
        config[key] = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    for file in source.iterdir():
        skipped = file.name == "config.json" or file.name.startswith(".") or file.name.endswith(_WEIGHTS)
        if file.is_file() and not skipped:
            shutil.copyfile(file, folder / file.name)


def _put_in_place(partial: Path, out: Path) -> None:
    """Make the finished folder visible under its name, in place of an older one."""
    old = out.with_name(f".{out.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        os.replace(out, old)
    os.replace(partial, out)
    shutil.rmtree(old, ignore_errors=True)


def _some(names: list[str]) -> str:
    """The first few names and the number of the rest."""
    shown = ", ".join(names[:4])
    return f"{shown} and {len(names) - 4} more" if len(names) > 4 else shown
