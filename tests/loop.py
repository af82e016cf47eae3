"""The training loop as plain Python: no Prefect, engines that answer at once. A run takes a fraction of a second, and
may be stopped at any of its writes.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from fakes import FakeBackend, Killed

from data.files import FileStore
from relax_core.config import RelaxConfig
from relax_core.config.options import with_options


@contextlib.contextmanager
def plain_functions() -> Iterator[None]:
    """Flows and tasks are the functions that they are made of."""
    import prefect

    import flows.train
    from tasks import artefacts

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    with contextlib.ExitStack() as stack:
        for target, name, value in (
            (prefect.Task, "__call__", call),
            (prefect.Flow, "__call__", call),
            (flows.train, "mark_crashed", lambda tag: 0),
            (flows.train, "guard_temporary_server", lambda: None),
            (artefacts, "_silent_until", [float("inf")]),
        ):
            stack.enter_context(mock.patch.object(target, name, value))
        yield


def small_config(folder: Path, model: Path, prompts: Path, **options: Any) -> RelaxConfig:
    """A run of two groups of two samples a step, in ``folder/run``, that saves every second step."""
    values = {
        "run_dir": str(folder / "run"),
        "hf_checkpoint": str(model),
        "prompt_data": str(prompts),
        "label_key": "label",
        "rollout_batch_size": 2,
        "n_samples_per_prompt": 2,
        "rollout_max_response_len": 8,
        "rm_type": "random",
        "save_interval": 2,
        **options,
    }
    return with_options(RelaxConfig(), values)


def run_plain(config: RelaxConfig, backend: FakeBackend) -> dict[str, Any]:
    """``flows.train.train`` without Prefect."""
    from flows.train import train

    with plain_functions():
        return train(config.model_copy(deep=True), backend=backend)  # type: ignore[arg-type]


class Writes:
    """Counts what is written to any store, and stops the driver before one of the writes: from then on nothing of it
    is written, whatever it still does. A line that is added may be cut in the middle.

    Args:
        stop: number of the write, 0-based; None: never.
        counts: which paths count.
        torn: the write is half done, where a file system allows that.
    """

    def __init__(
        self, stop: int | None = None, counts: Callable[[str], bool] = lambda path: True, torn: bool = False
    ) -> None:
        self.paths: list[str] = []
        self._stop, self._counts, self._torn = stop, counts, torn
        self._lock = threading.Lock()
        self.dead = False

    def __enter__(self) -> "Writes":
        self._patches = contextlib.ExitStack()
        for name in ("write_bytes", "append_jsonl", "delete"):
            self._patches.enter_context(mock.patch.object(FileStore, name, self._guarded(getattr(FileStore, name))))
        return self

    def __exit__(self, *_: object) -> None:
        self._patches.close()

    def _guarded(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def write(store: FileStore, path: str, *args: Any, **kwargs: Any) -> Any:
            with self._lock:
                if self.dead:
                    raise Killed
                if self._counts(path):
                    if len(self.paths) == self._stop:
                        self.dead = True
                        if self._torn and (local := store.local_path(path)) and real.__name__ == "append_jsonl":
                            with open(local, "ab") as file:
                                file.write(b'{"step": 1, "kind": "sta')
                        raise Killed
                    self.paths.append(path)
                return real(store, path, *args, **kwargs)

        return write


class Asked:
    """Seeds of the samples that engines are asked for, in order; a seed belongs to one sample of a run.

    Args:
        also: gets ``request`` for each.
    """

    def __init__(self, also: list[str] | None = None) -> None:
        self.seeds: list[int] = []
        self._also = also

    def __enter__(self) -> "Asked":
        from relax_core.engines.client import EngineClient

        real = EngineClient.generate

        async def generate(
            client: EngineClient, input_ids: Any, sampling_params: dict[str, Any], *args: Any, **kwargs: Any
        ) -> Any:
            self.seeds.append(int(sampling_params["sampling_seed"]))
            if self._also is not None:
                self._also.append("request")
            return await real(client, input_ids, sampling_params, *args, **kwargs)

        self._patch = mock.patch.object(EngineClient, "generate", generate)
        self._patch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.stop()
