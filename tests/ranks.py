"""Run a function in several processes joined by torch.distributed, as a trainer's ranks are.

Guarantee: ``run_ranks`` returns each rank's result or fails with the end of every failed rank's output; no process is
left behind. Tests of Megatron use it even for one rank, because Megatron without a GPU changes torch for the process.

The processes are forks of one that has imported torch and Megatron: each would need seconds for that.
"""

import atexit
import contextlib
import importlib
import importlib.util
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent

MEETING = "RANKS_MEETING"

FIXED = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Variables of every rank; some are read as a library is imported."""

PRELOADED = (
    "transformers.models.auto.modeling_auto",
    "transformers.models.qwen3.modeling_qwen3",
    "relax_core.training.trainer",
)
"""What most ranks need, and what takes long."""

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
        ranks = []
        try:
            for rank in range(n):
                environment = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(n)}
                environment[MEETING] = f"file://{folder}/meeting"
                ranks.append(_Rank(Path(folder), rank, [function, json.dumps(args or {})], environment))
            failed = _wait(ranks, time.monotonic() + timeout)
            fates = {rank: ranks[rank].poll() for rank in failed}
        finally:
            for each in ranks:
                each.kill()
        if failed:
            tails = [
                f"--- rank {rank}, {f'killed after {timeout:g} s' if fate is None else f'exit code {fate}'}:\n"
                + _tail(ranks[rank].log)
                for rank, fate in fates.items()
            ]
            raise AssertionError("\n".join([f"{function} failed", *tails]))
        return [json.loads(each.result.read_text()) for each in ranks]


class _Rank:
    """A process, begun by the source of all of them."""

    def __init__(self, folder: Path, rank: int, words: list[str], environment: dict[str, str]) -> None:
        self.log, self.result = folder / f"log.{rank}", folder / f"result.{rank}"
        self._code = folder / f"code.{rank}"
        self._source = _source()
        self._pid = self._source.begin(
            {
                "words": [*words, str(self.result)],
                "environment": _variables() | environment,
                "folder": os.getcwd(),
                "log": str(self.log),
                "code": str(self._code),
            }
        )

    def poll(self) -> int | None:
        """Its exit code; None while it runs."""
        return int(self._code.read_text()) if self._code.exists() else None

    def kill(self) -> None:
        """End it, and wait until it has ended."""
        while self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
            if not self._source.lives():  # and nobody notes how this one ends
                return
            time.sleep(0.01)


class _Source:
    """The process that forks ranks, for as long as this one lives. Requests and answers are lines of JSON."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env=_variables(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        atexit.register(self._process.kill)

    def lives(self) -> bool:
        return self._process.poll() is None

    def begin(self, rank: dict[str, Any]) -> int:
        """The id of the new process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(rank) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the source of the ranks died; its output is above"
        return int(answer)


_sources: list[_Source] = []


def _source() -> _Source:
    if not (_sources and _sources[-1].lives()):
        _sources.append(_Source())
    return _sources[-1]


def _variables() -> dict[str, str]:
    paths = [str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")]
    return dict(os.environ) | FIXED | {"PYTHONPATH": os.pathsep.join(paths)}


def _wait(ranks: list[_Rank], deadline: float) -> list[int]:
    """Wait for all to end; the ranks that failed, or all that still run when the time is up. Stops soon after the
    first failure, since the others then wait for it in a collective."""
    while True:
        codes = [each.poll() for each in ranks]
        if all(code == 0 for code in codes):
            return []
        if any(codes):
            deadline = min(deadline, time.monotonic() + 3)
        if time.monotonic() > deadline or None not in codes:
            return [r for r, code in enumerate(codes) if code] or [r for r, code in enumerate(codes) if code is None]
        time.sleep(0.02)


def _tail(log: Path) -> str:
    """The last lines of a rank's output."""
    return log.read_text(errors="replace")[-4000:] if log.exists() else ""


# -- in the source and its forks --------------------------------------------------------------------------------


def serve() -> None:
    """Fork a rank for each line, and write down how each ended, until there are no more lines."""
    for name in PRELOADED:
        importlib.import_module(name)
    codes: dict[int, str] = {}
    while True:
        while codes and (ended := os.waitpid(-1, os.WNOHANG))[0]:
            path = codes.pop(ended[0])
            Path(f"{path}.new").write_text(str(os.waitstatus_to_exitcode(ended[1])))
            os.replace(f"{path}.new", path)
        if not select.select([sys.stdin.fileno()], [], [], 0.02)[0]:
            continue
        line = _line()
        if not line:  # the tests have ended, or were killed
            for pid in codes:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            return
        rank = json.loads(line)
        pid = os.fork()
        if not pid:
            _become(rank)
        codes[pid] = rank["code"]
        print(pid, flush=True)


def _line() -> bytes:
    """The next one; read without a buffer, which would hide further ones from ``select``."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(sys.stdin.fileno(), 1)):
        line += byte
    return line


def _become(rank: dict[str, Any]) -> None:
    """Be the rank, and end."""
    code = 1
    try:
        os.setsid()
        with open(rank["log"], "wb") as log, open(os.devnull, "rb") as nothing:
            for source, target in ((nothing, 0), (log, 1), (log, 2)):
                os.dup2(source.fileno(), target)
        os.environ.clear()
        os.environ.update(rank["environment"])
        os.chdir(rank["folder"])
        _run(*rank["words"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1 if end.code else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        # Collective libraries keep threads whose end may hang after the other ranks have gone.
        os._exit(code)


def _run(target: str, args: str, result: str) -> None:
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
    serve()
