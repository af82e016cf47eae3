"""Traces of the engines during chosen rollout steps.

Guarantee: a step that is not chosen costs nothing, and a chosen one generates the same samples; a profiler that does
not start or stop is a warning, never the end of a run. After the step no engine records any more.

A trace is ``<folder>/rollout_<step>/engine<i>-*.trace.json.gz`` on the engine's machine, for Perfetto or
``chrome://tracing``.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from relax_core.config.sections import RelaxConfig
from relax_core.engines.control import EngineControl
from relax_core.engines.errors import EngineRefused, EngineUnavailable

log = logging.getLogger(__name__)

ENDLESS = 10**9
"""More forward passes than a step has: by stage SGLang wants a number."""


def is_profiled(config: RelaxConfig, step: int) -> bool:
    """Whether a rollout step is recorded: one of the list where there is one, else one of the range, ends included."""
    sglang = config.sglang
    if not sglang.sglang_profile:
        return False
    if sglang.sglang_profile_steps is not None:
        return step in sglang.sglang_profile_steps
    first, last = sglang.sglang_profile_step_start, sglang.sglang_profile_step_end
    return (first is None or step >= first) and (last is None or step <= last)


def trace_folder(config: RelaxConfig, step: int) -> Path:
    """Where the traces of a step go, as an absolute path: engines have working directories of their own."""
    chosen = config.sglang.sglang_profile_output_dir
    usual = os.path.join("traces", config.tracking.tb_experiment_name or "", "sglang_trace")
    return Path(chosen or usual).expanduser().absolute() / f"rollout_{step}"


@contextlib.contextmanager
def profiled(config: RelaxConfig, urls: Sequence[str], step: int) -> Iterator[None]:
    """Record what the engines do while the body runs, if the step is chosen."""
    if not is_profiled(config, step):
        yield
        return
    _everywhere(urls, _stop)  # a driver that was killed may have left it recording
    folder = trace_folder(config, step)
    _everywhere(urls, lambda index, engine: _start(config, folder, index, engine))
    try:
        yield
    finally:
        # also where the number of passes ends it: a step may have fewer
        _everywhere(urls, _stop)


def _everywhere(urls: Sequence[str], call: Callable[[int, EngineControl], None]) -> None:
    """One call at each engine, over a new connection: SGLang closes that of a call that it refuses."""

    def one(index: int, url: str) -> None:
        with EngineControl(url, f"engine {index}") as engine:
            call(index, engine)

    with ThreadPoolExecutor(max(1, len(urls))) as pool:
        list(pool.map(one, range(len(urls)), urls))


def _start(config: RelaxConfig, folder: Path, index: int, engine: EngineControl) -> None:
    sglang = config.sglang
    passes: int | None = sglang.sglang_profile_num_steps
    if passes == -1:
        passes = ENDLESS if sglang.sglang_profile_by_stage else None
    body: dict[str, Any] = {
        "output_dir": str(folder),
        "num_steps": passes,
        "activities": sglang.sglang_profile_activities,
        "profile_by_stage": sglang.sglang_profile_by_stage,
        "with_stack": sglang.sglang_profile_with_stack,
        "record_shapes": sglang.sglang_profile_record_shapes,
        "profile_prefix": f"engine{index}",
    }
    try:
        engine.start_profile(body)
    except (EngineRefused, EngineUnavailable) as error:
        log.warning("%s is not profiled: %s", engine.name, error.problem)


def _stop(_: int, engine: EngineControl) -> None:
    # SGLang answers "not in progress" with an error, as it does when the number of passes has ended the recording
    with contextlib.suppress(EngineRefused, EngineUnavailable):
        engine.stop_profile()
