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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from data.errors import UserError
from data.files import FileStore
from relax_core.training.checkpoint_index import (
    FORMAT,
    MARKER,
    TRACKER,
    folder_name,
    newest_complete,
    read_marker,
)
from relax_core.training.checkpoint_writer import InProcessSave
from relax_core.training.distributed import Layout, gather_objects, together
from relax_core.training.megatron import ShardedObject, dist_checkpointing, mpu, tensor_parallel
from relax_core.training.model import unwrap
from relax_core.training.state import Update

__all__ = ["Checkpointer", "newest_complete"]


class Checkpointer:
    """Saves and loads one trainer's model, optimiser and schedule.

    Args:
        model: the policy in Megatron's data-parallel wrapper.
    """

    def __init__(self, model: torch.nn.Module, optimizer: Any, schedule: Any, layout: Layout) -> None:
        self._model, self._optimizer, self._schedule, self._layout = model, optimizer, schedule, layout

    def save(self, url: str, iteration: int, state: Mapping[str, Any], with_optimizer: bool = True) -> dict[str, Any]:
        """Write ``iter_<iteration>`` below ``url``; an incomplete one is replaced, a complete one of this state kept.

        Args:
            state: what the marker holds beside its own entries (version, weights_id, ...), as a JSON object.
            with_optimizer: False leaves the optimiser out; such a checkpoint gives weights, but no resumption.

        Returns:
            ``seconds`` and ``bytes``.
        """
        begin = time.monotonic()
        store, folder = FileStore(url), folder_name(iteration)
        content = {
            "format": FORMAT,
            "iteration": iteration,
            "optimizer": with_optimizer,
            "layout": self._layout.shape(),
            **state,
        }
        kept = together(lambda: self._prepare(store, iteration, content), leader_only=True)
        kept = gather_objects(kept)[0]
        if kept is not None:
            return {"seconds": time.monotonic() - begin, "bytes": kept}
        with _working_folder(store, folder) as path:
            dist_checkpointing.save(self._template(with_optimizer), str(path), sharded_strategy=InProcessSave())
            if not store.is_local:
                together(lambda: _upload(path, store, folder))
        size = together(lambda: _complete(store, folder, content), leader_only=True)
        return {"seconds": time.monotonic() - begin, "bytes": gather_objects(size)[0]}

    def load(
        self, url: str, iteration: int, weights_only: bool = False, update: Update | None = None
    ) -> dict[str, Any]:
        """Take over what was saved.

        Args:
            weights_only: leave optimiser, schedule and random state as they are.
            update: told when the first weight is about to change.

        Returns:
            The checkpoint's marker.

        Raises:
            UserError: it is not there, incomplete, or has no optimiser although that is asked for. Nothing has been
                changed then.
        """
        store, folder = FileStore(url), folder_name(iteration)
        marker = together(lambda: _require_marker(store, iteration, weights_only))
        assert marker is not None
        same_layout = all(marker["layout"][key] == self._layout.shape()[key] for key in ("tp", "pp"))
        template = self._template(not weights_only, loading=True, random_state=same_layout and not weights_only)
        with _downloaded(store, folder) as path:
            if update is not None:
                update.begun = True
            loaded = dist_checkpointing.load(template, str(path))
        unwrap(self._model).load_state_dict(loaded["model"], strict=True)
        if weights_only:
            self._optimizer.reload_model_params()
            return marker
        self._optimizer.load_state_dict(loaded["optimizer"])
        self._schedule.num_steps = loaded["opt_param_scheduler"]["num_steps"]
        if "rng_state" in loaded:
            _restore_random_state(loaded["rng_state"])
        return marker

    def _template(self, with_optimizer: bool, loading: bool = False, random_state: bool = True) -> dict[str, Any]:
        """What Megatron saves, or the places that it loads into."""
        metadata = {
            "distrib_optim_sharding_type": "fully_reshardable",
            "distrib_optim_fully_reshardable_mem_efficient": False,
            "dp_cp_group": mpu.get_data_parallel_group(with_context_parallel=True),
            "singleton_local_shards": False,
            "chained_optim_avoid_prefix": True,
        }
        template: dict[str, Any] = {"model": unwrap(self._model).sharded_state_dict(metadata=metadata)}
        if with_optimizer:
            template["optimizer"] = self._optimizer.sharded_state_dict(template, is_loading=loading, metadata=metadata)
            if not loading:
                template["opt_param_scheduler"] = self._schedule.state_dict()
            if random_state:
                template["rng_state"] = _random_state(self._layout, empty=loading)
        return template

    def _prepare(self, store: FileStore, iteration: int, content: Mapping[str, Any]) -> int | None:
        """Make room for the checkpoint; the bytes of the same one when it is already there."""
        marker, _ = read_marker(store, iteration)
        if marker is not None and all(marker.get(key) == value for key, value in _json(content).items()):
            return sum(marker["files"].values())
        weights = sum(p.numel() * p.element_size() for p in self._model.parameters())
        copies = self._layout.tp_size * self._layout.pp_size * (3 if content["optimizer"] else 1)
        store.check_writable(weights * copies)
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


def _require_marker(store: FileStore, iteration: int, weights_only: bool) -> dict[str, Any]:
    marker, problem = read_marker(store, iteration)
    where = store.uri(folder_name(iteration))
    if marker is None:
        raise UserError(f"The checkpoint {where} is not complete: {problem}.", "Load another one.")
    if not weights_only and not marker.get("optimizer", False):
        raise UserError(
            f"The checkpoint {where} was saved with --no-save-optim: a run cannot resume from it.",
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


def _random_state(layout: Layout, empty: bool) -> Any:
    """The generators of a rank; the same over data parallelism, as the model's dropout would need."""
    state = (
        None
        if empty
        else {
            "torch": torch.get_rng_state(),
            "device": torch.cuda.get_rng_state(),
            "tracker": tensor_parallel.get_cuda_rng_tracker().get_states(),
        }
    )
    return ShardedObject(
        "rng_state",
        state,
        (layout.pp_size, layout.tp_size),
        (layout.pp_rank, layout.tp_rank),
        replica_id=layout.dp_rank,
    )


def _restore_random_state(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    torch.cuda.set_rng_state(state["device"])
    tensor_parallel.get_cuda_rng_tracker().set_states(state["tracker"])
