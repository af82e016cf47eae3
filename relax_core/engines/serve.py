"""Run one SGLang server: ``python -m relax_core.engines.serve <SGLang's own arguments>``.

Guarantee: the same entry on CUDA and on a CPU; on CUDA nothing of SGLang is changed. Every process of the engine ends
within about a second of its parent's death, SIGKILL included, so that a killed actor leaves no server behind.

SGLang starts its workers with ``spawn``, which imports this module again as ``__mp_main__``: what stands at the top
level is done in each process of the engine. On a CPU they are forked instead (``relax_core.engines.cpu.processes``).
"""

import contextlib
import os
import sys
import threading
import time

PARENT = "RELAX_ENGINE_PARENT"
"""Environment variable with the process id that the server must not outlive; without it: whoever started the server."""

GIVES_WAY = "RELAX_ENGINE_GIVES_WAY"
"""Environment variable; where it is set the engine's processes give way to others on the machine."""


def end_with(parent: int, interval: float = 0.5) -> None:
    """Start a thread that kills this process and all below it once its parent is no longer ``parent``."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(interval)
        import psutil

        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        os._exit(1)

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


NICENESS, GROUP_NICENESS = 19, 10
"""Of what gives way, and of its session where Linux shares out the cores by session first: below Ray's actors, which
have 15. Linux' idle class would let it starve beside a busy run."""


def give_way() -> None:
    """Take little of the cores while others want them: this thread, what it starts, and this session."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w") as group:
        group.write(str(GROUP_NICENESS))


def prepare() -> None:
    """What each process of the engine needs: the watch on its parent and, without a CUDA device, the CPU stand-in."""
    if GIVES_WAY in os.environ:
        give_way()
    # The variable names the parent of the server; a worker's parent is the server.
    parent = int(os.environ.get(PARENT, 0)) if __name__ == "__main__" else 0
    end_with(parent or os.getppid())
    import torch

    from relax_core.engines.meeting import stay_local

    stay_local()
    if not torch.cuda.is_available():
        from relax_core.engines import cpu

        cpu.install()


def main() -> None:
    """Serve until told to stop; whatever SGLang started is ended on the way out."""
    from sglang.launch_server import run_server
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    try:
        run_server(prepare_server_args(sys.argv[1:]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ in ("__main__", "__mp_main__"):
    prepare()

if __name__ == "__main__":
    main()
