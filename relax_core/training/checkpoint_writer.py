"""Megatron's checkpoint writer without its helper processes, at once or in the background.

Guarantee: the files are those of the ``torch_dist`` format, written and flushed when ``finish`` returns; in the
background they hold what the tensors held when the write began. Megatron writes through a spawned manager and forked
writers, which costs seconds and is not safe in an actor with threads; here the buckets are written by threads of this
process. With a Megatron whose writer looks otherwise, its own is used, and never in the background.
"""

import inspect
import queue
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException

from data.errors import UserError
from relax_core.training.distributed import together
from relax_core.training.megatron import TorchDistSaveShardedStrategy, dist_checkpointing, filesystem_async

_QUEUES = ("_get_write_results_queue", "get_write_results_queue")
_QUEUE = next((name for name in _QUEUES if hasattr(filesystem_async, name)), None)
"""What the installed Megatron calls the function that makes its queue of results."""
_OWN_WRITER = (
    {"async_strategy": "mcore"} if "async_strategy" in inspect.signature(dist_checkpointing.save).parameters else {}
)
"""Newer versions would else look for a package of NVIDIA's."""


class Write:
    """A checkpoint on its way to the disk. Collective: every rank begins and finishes it.

    Args:
        template: what Megatron saves.
        path: the folder, which is there and empty.
        background: return as soon as all is copied; ``finish`` waits for the rest.
    """

    def __init__(self, template: Any, path: Path, background: bool) -> None:
        self._finalize: list[Any] = []
        self._results: queue.Queue[Any] = queue.Queue()
        self._writing: Future[Any] | None = None
        strategy = TorchDistSaveShardedStrategy("torch_dist", 1)
        if _QUEUE is None:
            dist_checkpointing.save(template, str(path), sharded_strategy=strategy)
            return
        original = getattr(filesystem_async, _QUEUE)
        setattr(filesystem_async, _QUEUE, lambda *args: self._results)
        try:
            request = dist_checkpointing.save(
                template, str(path), sharded_strategy=strategy, async_sharded_save=True, **_OWN_WRITER
            )
        finally:
            setattr(filesystem_async, _QUEUE, original)
        self._finalize = request.finalize_fns
        if request.async_fn is None:  # this rank has nothing to write
            return
        buckets = request.async_fn_args[1]
        if background:
            buckets = _copies(buckets)
        elif request.preload_fn is not None:
            buckets = request.preload_fn()
        pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing = pool.submit(_write, request.async_fn.args[0], buckets)
        pool.shutdown(wait=False)

    @property
    def done(self) -> bool:
        """This rank has written its part."""
        return self._writing is None or self._writing.done()

    def finish(self) -> None:
        """Wait for this rank's part and then, with the others, write what belongs to all.

        Raises:
            UserError: on all ranks, where one could not write.
        """
        if self._writing is not None:
            self._results.put(self._writing.result())
        for finalize in self._finalize:
            together(partial(_told, finalize))


def _told(finalize: Callable[[], None]) -> None:
    try:
        finalize()
    except CheckpointException as error:  # no Exception, and with the traces of all ranks
        reasons = "; ".join(str(failure[0]) for failure in error.failures.values())
        raise UserError(f"The checkpoint could not be written: {reasons}.", "Look at the disk or storage.") from None


def _copies(buckets: list[Any]) -> list[Any]:
    """The buckets with tensors of their own, in host memory: training goes on in the originals."""
    return [
        (file, key, (texts, [(item, tensor.detach().to("cpu", copy=True)) for item, tensor in tensors]))
        for file, key, (texts, tensors) in buckets
    ]


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
