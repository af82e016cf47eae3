"""Megatron distributed checkpoints of a trainer, with what a run needs beside them.

Guarantee: a checkpoint becomes complete by its last file (see ``checkpoint_index``); saving changes nothing in the
trainer; what is loaded continues bit by bit in float32 on the same layout, and under other tensor, pipeline and data
sizes holds the same numbers. Every call is collective: all ranks make it, and an error of one is raised on all.

A URL that is no local folder is written to a temporary folder first and uploaded file by file.
"""

import json
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from data.errors import UserError
from data.files import FileStore
from relax_core.training.checkpoint_content import Content, weights_template
from relax_core.training.checkpoint_index import FORMAT, MARKER, TRACKER, read_marker
from relax_core.training.checkpoint_names import folder_name
from relax_core.training.checkpoint_writer import Write
from relax_core.training.distributed import Layout, gather_objects, together
from relax_core.training.megatron import dist_checkpointing
from relax_core.training.model import unwrap
from relax_core.training.reference import WeightCopy
from relax_core.training.state import Update
from relax_core.weights.mapping import VALUE_HEAD

__all__ = ["Checkpointer", "load_weights"]


@dataclass
class _Unfinished:
    """A checkpoint that is being written."""

    write: Write
    store: FileStore
    folder: str
    path: Path
    content: dict[str, Any]
    resources: ExitStack


class Checkpointer:
    """Saves and loads one trainer's model, optimiser and schedule.

    Args:
        model: the policy in Megatron's data-parallel wrapper.
        frozen: some parameters are not trained.
    """

    def __init__(self, model: torch.nn.Module, optimizer: Any, schedule: Any, layout: Layout, frozen: bool) -> None:
        self._model, self._layout = model, layout
        self._content = Content(model, optimizer, schedule, layout, frozen)
        self._unfinished: _Unfinished | None = None

    def save(
        self,
        url: str,
        iteration: int,
        state: Mapping[str, Any],
        with_optimizer: bool = True,
        reference: WeightCopy | None = None,
        background: bool = False,
    ) -> dict[str, Any]:
        """Write ``iter_<iteration>`` below ``url``; an incomplete one is replaced, a complete one of this state kept.

        Args:
            state: what the marker holds beside its own entries (version, weights_id, ...), as a JSON object.
            with_optimizer: False leaves the optimiser out; such a checkpoint gives weights, but no resumption.
            reference: further weights of the model to keep, under names of their own.
            background: return when all is copied; the checkpoint becomes complete in ``finish``. One that is still
                being written is waited for first.

        Returns:
            ``seconds`` that this took, and ``bytes`` of a checkpoint that is complete.
        """
        begin = time.monotonic()
        self.finish()
        store, folder = FileStore(url), folder_name(iteration)
        content = {
            "format": FORMAT,
            "iteration": iteration,
            "optimizer": with_optimizer,
            "reference": reference is not None,
            "separate_layers": self._content.separate_layers,
            "layout": self._layout.shape(),
            "shape": unwrap(self._model).shape.to_json(),
            **state,
        }
        kept = together(lambda: self._prepare(store, iteration, content), leader_only=True)
        kept = gather_objects(kept)[0]
        if kept is not None:
            return {"seconds": time.monotonic() - begin, "bytes": kept}
        with ExitStack() as stack:
            path = stack.enter_context(_working_folder(store, folder))
            write = Write(self._content.to_save(with_optimizer, reference), path, background)
            self._unfinished = _Unfinished(write, store, folder, path, content, stack.pop_all())
        size = {} if background else {"bytes": self.finish()}
        return {"seconds": time.monotonic() - begin, **size}

    def finish(self, wait: bool = True) -> int | None:
        """Complete the checkpoint that is being written. Collective.

        Args:
            wait: False leaves it be unless every rank has written its part.

        Returns:
            Its bytes; None when none is being written, or is left be.
        """
        unfinished = self._unfinished
        if unfinished is None or not (wait or all(gather_objects(unfinished.write.done))):
            return None
        self._unfinished = None  # whatever happens: what fails is told once, and begun anew
        store, folder, content = unfinished.store, unfinished.folder, unfinished.content
        with unfinished.resources:
            unfinished.write.finish()
            if not store.is_local:
                together(lambda: _upload(unfinished.path, store, folder))
        size = together(lambda: _complete(store, folder, content), leader_only=True)
        return int(gather_objects(size)[0])

    def load(
        self, url: str, iteration: int, reference: WeightCopy | None = None, update: Update | None = None
    ) -> dict[str, Any]:
        """Take over what was saved.

        Args:
            reference: takes the further weights that were saved.
            update: told when the first weight is about to change.

        Returns:
            The checkpoint's marker.

        Raises:
            UserError: it is not there, incomplete, or lacks the optimiser or the reference. Nothing has been changed
                then.
        """
        store, folder = FileStore(url), folder_name(iteration)
        marker = together(lambda: _require_marker(store, iteration, reference is not None))
        assert marker is not None
        same_layout = all(marker["layout"][key] == self._layout.shape()[key] for key in ("tp", "pp"))
        template = self._content.to_load(reference, marker.get("separate_layers", False), same_layout)
        with _downloaded(store, folder) as path:
            if update is not None:
                update.begun = True
            loaded = dist_checkpointing.load(template, str(path))
        self._content.take(loaded, reference)
        return marker

    def _prepare(self, store: FileStore, iteration: int, content: Mapping[str, Any]) -> int | None:
        """Make room for the checkpoint; the bytes of the same one when it is already there."""
        marker, _ = read_marker(store, iteration)
        if marker is not None and all(marker.get(key) == value for key, value in _json(content).items()):
            return sum(marker["files"].values())
        weights = sum(p.numel() * p.element_size() for p in self._model.parameters())
        copies = (3 if content["optimizer"] else 1) + content["reference"]
        store.check_writable(weights * copies * self._layout.tp_size * self._layout.pp_size)
        store.delete(folder_name(iteration))
        local = store.local_path(folder_name(iteration))
        if local is not None:
            Path(local).mkdir(parents=True)
        return None


def _json(content: Mapping[str, Any]) -> dict[str, Any]:
    """As it comes back from a JSON file."""
    return json.loads(json.dumps(content))  # type: ignore[no-any-return]


def _complete(store: FileStore, folder: str, content: Mapping[str, Any]) -> int:
    """Write the marker and the tracker; the bytes of the checkpoint."""
    files = {path.removeprefix(f"{folder}/"): size for path, size in store.sizes(folder).items()}
    store.write_json(f"{folder}/{MARKER}", {**content, "files": files})
    store.write_bytes(TRACKER, str(content["iteration"]).encode())
    return sum(files.values())


def load_weights(model: torch.nn.Module, url: str, iteration: int) -> None:
    """Take over a checkpoint's weights alone; an optimiser that copies them is made afterwards. Collective.

    A critic takes the body of an actor's checkpoint, and keeps the head that it has.

    Raises:
        UserError: it is not there or incomplete, or is a critic's and the model is none; nothing has been changed then.
    """
    store, policy = FileStore(url), unwrap(model)
    marker = together(lambda: _require_weights(store, iteration, policy.shape.values))
    assert marker is not None
    template = weights_template(policy, marker.get("separate_layers", False))
    kept = {}
    if policy.shape.values and marker.get("role") != "critic":
        kept = {name: value for name, value in policy.state_dict().items() if name.startswith(VALUE_HEAD)}
        template["model"] = {name: part for name, part in template["model"].items() if not name.startswith(VALUE_HEAD)}
    with _downloaded(store, folder_name(iteration)) as path:
        loaded = dist_checkpointing.load(template, str(path))
    policy.load_state_dict(loaded["model"] | kept, strict=True)


def _require_whole(store: FileStore, iteration: int) -> dict[str, Any]:
    marker, problem = read_marker(store, iteration)
    if marker is None:
        where = store.uri(folder_name(iteration))
        raise UserError(f"The checkpoint {where} is not complete: {problem}.", "Load another one.")
    return marker


def _require_weights(store: FileStore, iteration: int, by_critic: bool) -> dict[str, Any]:
    marker = _require_whole(store, iteration)
    if marker.get("role") == "critic" and not by_critic:
        where = store.uri(folder_name(iteration))
        raise UserError(f"The checkpoint {where} is a critic's: it has no output layer.", "Give an actor's.")
    return marker


def _require_marker(store: FileStore, iteration: int, with_reference: bool) -> dict[str, Any]:
    marker = _require_whole(store, iteration)
    where = store.uri(folder_name(iteration))
    if not marker.get("optimizer", False):
        raise UserError(
            f"The checkpoint {where} was saved with --no-save-optim: a run cannot resume from it.",
            "Start a new run with it as --load.",
        )
    if with_reference and not marker.get("reference", False):
        raise UserError(
            f"The checkpoint {where} was saved without --ref-update-interval, so it has no reference.",
            "Start a new run with it as --load.",
        )
    return marker


@contextmanager
def _working_folder(store: FileStore, folder: str) -> Iterator[Path]:
    """Where this rank writes: the checkpoint's own folder if that is local, else a temporary one."""
    local = store.local_path(folder)
    if local is not None:
        yield Path(local)
        return
    with tempfile.TemporaryDirectory(prefix="checkpoint-") as temporary:
        yield Path(temporary)


def _upload(path: Path, store: FileStore, folder: str) -> None:
    for file in sorted(path.rglob("*")):
        if file.is_file():
            target = f"{store.root}/{folder}/{file.relative_to(path)}"
            store.fs.makedirs(f"{store.root}/{folder}", exist_ok=True)
            store.fs.put_file(str(file), target)


@contextmanager
def _downloaded(store: FileStore, folder: str) -> Iterator[Path]:
    """A local folder with the checkpoint; the first rank of each machine fetches it."""
    local = store.local_path(folder)
    if local is not None:
        yield Path(local)
        return
    hosts = gather_objects(socket.gethostname())
    fetches = hosts.index(socket.gethostname()) == dist.get_rank()
    temporary = tempfile.mkdtemp(prefix="checkpoint-") if fetches else ""
    try:
        together(lambda: store.fs.get(f"{store.root}/{folder}/", temporary + "/", recursive=True) if fetches else None)
        yield Path(gather_objects(temporary)[hosts.index(socket.gethostname())])
        dist.barrier()
    finally:
        if fetches:
            shutil.rmtree(temporary, ignore_errors=True)
