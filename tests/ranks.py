"""Run a function in several processes joined by torch.distributed, as a trainer's ranks are.

Guarantee: ``run_ranks`` returns each rank's result or fails with the end of every failed rank's output; no process is
left behind. Tests of Megatron use it even for one rank, because Megatron without a GPU changes torch for the process.
"""

import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent

MEETING = "RANKS_MEETING"

_meetings = itertools.count()


def meeting_file() -> str:
    """Where the ranks meet, as torch.distributed's ``init_method``; another one at each call. It is no port, since one
    that is free now may be somebody else's when the ranks have imported torch."""
    return f"{os.environ[MEETING]}-{next(_meetings)}"


def join_ranks() -> None:
    """Make the default group of all ranks, unless there is one."""
    import torch.distributed as dist

    if not dist.is_initialized():
        rank, size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
        dist.init_process_group("gloo", init_method=meeting_file(), rank=rank, world_size=size)


def run_ranks(n: int, function: str, args: dict[str, Any] | None = None, timeout: float = 240) -> list[Any]:
    """Call ``function(**args)`` in ``n`` new processes that can join with :func:`meeting_file` (gloo on loopback).

    Args:
        n: world size.
        function: ``path.of.module:name``, the path relative to the folder of tests, e.g.
            ``relax_core.training.model_checks:parity``. The module is imported in the new processes only.
        args: keyword arguments, as JSON.
        timeout: seconds until all processes are killed.

    Returns:
        The results in the order of ranks, through JSON.

    Raises:
        AssertionError: a rank failed or the time is up, with the last lines of the ranks' output.
    """
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        processes, logs = [], []
        for rank in range(n):
            environment = os.environ | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(n),
                MEETING: f"file://{folder}/meeting",
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
                "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")]),
            }
            log = Path(folder, f"log.{rank}")
            command = [sys.executable, __file__, function, json.dumps(args or {}), str(Path(folder, f"result.{rank}"))]
            with log.open("wb") as output:
                processes.append(
                    subprocess.Popen(
                        command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
                    )
                )
            logs.append(log)
        try:
            failed = _wait(processes, time.monotonic() + timeout)
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if failed:
            tails = [
                f"--- rank {rank}, exit code {processes[rank].returncode}:\n{_tail(logs[rank])}" for rank in failed
            ]
            raise AssertionError("\n".join([f"{function} failed", *tails]))
        return [json.loads(Path(folder, f"result.{rank}").read_text()) for rank in range(n)]


def _wait(processes: list[subprocess.Popen[bytes]], deadline: float) -> list[int]:
    """Wait for all to end; the ranks that failed, or all that still run when the time is up. Stops soon after the
    first failure, since the others then wait for it in a collective."""
    while True:
        codes = [process.poll() for process in processes]
        if all(code == 0 for code in codes):
            return []
        if any(codes):
            deadline = min(deadline, time.monotonic() + 3)
        if time.monotonic() > deadline or None not in codes:
            return [r for r, code in enumerate(codes) if code] or [r for r, code in enumerate(codes) if code is None]
        time.sleep(0.05)


def _tail(log: Path) -> str:
    """The last lines of a rank's output."""
    return log.read_text(errors="replace")[-4000:]


def main() -> None:
    """The part that runs in each new process."""
    target, args, result = sys.argv[1:]
    module_name, name = target.split(":")
    path = TESTS.joinpath(*module_name.split(".")).with_suffix(".py")
    spec = importlib.util.spec_from_file_location(f"ranks_{path.stem}", path)
    assert spec, f"no module {path}"
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # so that dataclasses and pickles find it
    spec.loader.exec_module(module)
    value = getattr(module, name)(**json.loads(args))
    Path(result).write_text(json.dumps(value))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Collective libraries keep threads whose end may hang after the other ranks have gone.
    os._exit(0)
