"""How an engine on a CPU starts its processes.

Guarantee: scheduler and detokenizer are copies of the server, which has imported all that they need, instead of new
programs that import it again: a start takes half the processor time, and what is alike is in memory once. Each ends
with the server. Whatever else SGLang starts is started as before.
"""

import multiprocessing
from multiprocessing.context import ForkProcess
from types import ModuleType
from typing import Any

from relax_core.engines.cpu.sampling import replace
from relax_core.engines.serve import end_with


class _Copy(ForkProcess):
    def run(self) -> None:
        multiprocessing.set_start_method("spawn", force=True)  # a forked one would fork
        server = multiprocessing.parent_process()
        if server is not None and server.pid is not None:
            end_with(server.pid)
        super().run()


class _Processes:
    """``multiprocessing``, whose processes are copies of this one. That is sound while no other thread holds a lock:
    there is but one more, which sleeps, and none of torch's."""

    Process = _Copy

    def __getattr__(self, name: str) -> Any:
        return getattr(multiprocessing, name)


def copy_server(engine: ModuleType) -> None:
    """Fork where SGLang spawns, which it needs for CUDA only."""
    replace(engine, "mp", _Processes())
