"""Checkpoints as Megatron writes them, made without it: in a second, of any weights."""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.distributed import checkpoint

from data.files import FileStore
from relax_core.training.checkpoint_index import MARKER
from relax_core.training.checkpoint_names import folder_name
from relax_core.training.shape import ModelShape
from relax_core.weights.huggingface import HfWeights
from relax_core.weights.mapping import blocks, join
from relax_core.weights.saved import _FUSED


def write_checkpoint(folder: Path, iteration: int, model: Path, weights_id: str | None = None) -> dict[str, Any]:
    """The weights in a Hugging Face folder as the checkpoint of a step; returns its marker."""
    shape, place = ModelShape.from_hf(model), folder / folder_name(iteration)
    source, tensors, layers = HfWeights(model, shape), {}, {}
    for _, block in blocks(shape):
        for entry in block:
            value = join(entry, [source.read(name) for name in entry.hf], shape)
            number, _, part = entry.megatron.removeprefix("decoder.layers.").partition(".")
            if number.isdigit():
                layers.setdefault(_FUSED.get(part, part), []).append(value)
            else:
                tensors[entry.megatron] = value
    tensors |= {f"decoder.layers.{part}": torch.stack(values) for part, values in layers.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint.save(tensors, storage_writer=checkpoint.FileSystemWriter(place), no_dist=True)
    marker = {
        "iteration": iteration,
        "version": iteration + 1,
        "weights_id": weights_id,
        "optimizer": True,
        "shape": shape.to_json(),
        "hf_checkpoint": str(model),
        "files": {path.name: path.stat().st_size for path in place.iterdir()},
    }
    (place / MARKER).write_text(json.dumps(marker))
    return marker


def upload(folder: Path, url: str) -> None:
    """The same checkpoints below a URL."""
    store = FileStore(url)
    for path in folder.rglob("*"):
        if path.is_file():
            store.write_bytes(str(path.relative_to(folder)), path.read_bytes())
