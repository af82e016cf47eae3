"""The weights of a Megatron checkpoint, read without Megatron: no process group, no trainer, no optimiser state.

Guarantee: yields the Hugging Face tensors that the trainer which wrote the checkpoint would export, bit by bit,
whatever tensor, pipeline and data sizes it had; of the files only the weights' bytes are read, from any store. A
checkpoint that is deleted or replaced in the middle is ``Vanished``, never a mixture.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from data.errors import UserError
from data.files import FileStore
from relax_core.training.checkpoint_index import read_marker
from relax_core.training.checkpoint_names import folder_name
from relax_core.training.shape import ModelShape
from relax_core.weights.mapping import blocks, split

_LAYERS = "decoder.layers."
_FUSED = {
    "input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight",
    "pre_mlp_layernorm.weight": "mlp.linear_fc1.layer_norm_weight",
}
"""What Megatron calls a layer's parameter in a checkpoint, where that is not its name: as if norms were fused into the
product that follows."""


class Vanished(UserError):
    """The checkpoint was deleted or replaced while it was read."""


class SavedWeights:
    """The weights of one complete checkpoint.

    Args:
        store: the folder of checkpoints.
        iteration: which one.

    Attributes:
        marker: what ``relax_state.json`` says.
        shape: of the model.

    Raises:
        UserError: it is not there, or not complete, or of a version of Relax that this one does not know.
    """

    def __init__(self, store: FileStore, iteration: int) -> None:
        self.store, self.iteration, self.where = store, iteration, store.uri(folder_name(iteration))
        marker, problem = read_marker(store, iteration)
        if marker is None:
            raise UserError(f"The checkpoint {self.where} is not complete: {problem}.", "Choose another one.")
        self.marker = marker
        try:
            self.shape = ModelShape.from_json(marker["shape"])
        except (KeyError, TypeError):
            raise UserError(
                f"The checkpoint {self.where} does not say which model it is of.",
                "It may be of another version of Relax: use that one.",
            ) from None
        with self._while_it_is_there():
            self._reader = FileSystemReader(self.where)
            self._reader.fs = _Files(store)
            self._reader.path = f"{store.root}/{folder_name(iteration)}"
            self._metadata: Metadata = self._reader.read_metadata()
            self._reader.set_up_storage_reader(self._metadata, True)

    @property
    def dtype(self) -> torch.dtype:
        """Of its weights."""
        return self._saved("embedding.word_embeddings.weight").properties.dtype

    def check(self) -> None:
        """Raise ``Vanished`` if the checkpoint is no longer the one that was opened."""
        if read_marker(self.store, self.iteration)[0] != self.marker:
            raise Vanished(
                f"The checkpoint {self.where} was deleted or replaced while it was read.",
                "Choose a newer one: a run deletes a checkpoint after a newer one is complete.",
            )

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Names and tensors in the order of ``hf_shapes``, one layer at a time; the last is followed by ``check``.

        Raises:
            Vanished: see there.
        """
        for _, block in blocks(self.shape):
            for entry in block:
                with self._while_it_is_there():
                    parameter = self._read(entry.megatron)
                yield from zip(entry.hf, split(entry, parameter, self.shape), strict=True)
        self.check()

    def _read(self, name: str) -> Tensor:
        """A parameter of the whole model: with one rank, and layers counted from the first."""
        key, layer = name, None
        if name.startswith(_LAYERS):
            number, _, part = name.removeprefix(_LAYERS).partition(".")
            part = _FUSED.get(part, part)
            key = f"{_LAYERS}{number}.{part}"
            if key not in self._metadata.state_dict_metadata:  # what all layers have is one tensor, layers first
                key, layer = f"{_LAYERS}{part}", int(number)
        saved = self._saved(key)
        offsets, sizes = [0] * len(saved.size), list(saved.size)
        if layer is not None:
            offsets[0], sizes[0] = layer, 1
        target = torch.empty(sizes, dtype=saved.properties.dtype)
        chunk = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
        items = create_read_items_for_chunk_list(key, saved, [chunk])
        if (found := sum(torch.Size(item.lengths).numel() for item in items)) != target.numel():
            raise UserError(f"{self.where} has {found} of the {target.numel()} values of {key}.", "Choose another one.")
        self._reader.read_data(LoadPlan(items), _Into(target))  # type: ignore[arg-type]
        return target if layer is None else target[0]

    def _saved(self, key: str) -> TensorStorageMetadata:
        found = self._metadata.state_dict_metadata.get(key)
        if not isinstance(found, TensorStorageMetadata):
            raise UserError(
                f"The checkpoint {self.where} has no tensor {key}.", "It was made by another version of Megatron-core."
            )
        return found

    @contextmanager
    def _while_it_is_there(self) -> Iterator[None]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        except UserError:
            raise
        except Exception:  # of the file system, or of torch over a file that ends early
            self.check()
            raise


class _Files(FileSystem):
    """A store as torch's checkpoints read one."""

    def __init__(self, store: FileStore) -> None:
        self._store = store

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        with self._store.fs.open(str(path), mode) as stream:
            yield stream

    def concat_path(self, path: Any, suffix: str) -> Any:
        return f"{path}/{suffix}"


class _Into:
    """Where one tensor goes: as much of a load planner as its reader asks for."""

    def __init__(self, target: Tensor) -> None:
        self._target = target

    def resolve_tensor(self, item: ReadItem) -> Tensor:
        part = self._target
        for dimension, (offset, length) in enumerate(zip(item.dest_offsets, item.lengths, strict=True)):
            part = part.narrow(dimension, offset, length)
        return part

    def commit_tensor(self, item: ReadItem, tensor: Tensor) -> None:
        pass
