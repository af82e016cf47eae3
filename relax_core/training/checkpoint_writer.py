"""Megatron's checkpoint writer without its helper processes.

Guarantee: the files are those of the ``torch_dist`` format, written and flushed when ``save`` returns. Megatron writes
through a spawned manager and forked writers, which costs seconds and is not safe in an actor with threads; here the
buckets are written by threads of this process. With a Megatron whose writer looks otherwise, its own is used.
"""

import queue
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from relax_core.training.megatron import TorchDistSaveShardedStrategy, filesystem_async


class InProcessSave(TorchDistSaveShardedStrategy):  # type: ignore[misc]
    """Strategy for ``dist_checkpointing.save``."""

    def __init__(self) -> None:
        super().__init__("torch_dist", 1)

    def save(self, sharded_state_dict: Any, checkpoint_dir: str | Path) -> None:
        """Write this rank's shards; collective."""
        if not hasattr(filesystem_async, "_get_write_results_queue"):
            super().save(sharded_state_dict, checkpoint_dir)
            return
        original = filesystem_async._get_write_results_queue
        results: queue.Queue[Any] = queue.Queue()
        filesystem_async._get_write_results_queue = lambda *args: results
        try:
            request = self.async_save(sharded_state_dict, Path(checkpoint_dir))
        finally:
            filesystem_async._get_write_results_queue = original
        if request.async_fn is not None:  # None: this rank has nothing to write
            buckets = request.async_fn_args[1] if request.preload_fn is None else request.preload_fn()
            results.put(_write(request.async_fn.args[0], buckets))
        dist.barrier()
        for finalize in request.finalize_fns:
            finalize()


def _write(transforms: Any, buckets: list[Any]) -> dict[int, Any] | Exception:
    """What was written of each bucket, or the first error."""
    with ThreadPoolExecutor(len(buckets)) as pool:
        written = dict(pool.map(partial(_write_bucket, transforms), range(len(buckets)), buckets))
    return next((result for result in written.values() if isinstance(result, Exception)), written)


def _write_bucket(transforms: Any, number: int, bucket: Any) -> tuple[int, Any]:
    results: queue.Queue[Any] = queue.Queue()
    filesystem_async.FileSystemWriterAsync.write_preloaded_data(transforms, number, bucket, results, _Counter(), True)
    return results.get()  # type: ignore[no-any-return]


class _Counter:
    """Stand-in for the queue by which forked writers say that they are done."""

    def get(self) -> None:
        pass

    task_done = get
