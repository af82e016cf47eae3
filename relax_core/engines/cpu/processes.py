"""How an engine on a CPU starts its processes.

Guarantee: they are copies of the server, which has imported all that they need, instead of new ones that import it
again: a start takes half the processor time, and what is alike is in memory once. Processes that they start themselves
are new ones.
"""

import functools
import multiprocessing
import os
from types import ModuleType
from typing import Any

from relax_core.engines.cpu.sampling import replace


def copy_server(engine: ModuleType) -> None:
    """Fork where SGLang spawns, which it needs for CUDA only. The server has but one more thread then, which holds no
    lock, and none of torch's."""
    settings = engine._set_envs_and_config

    @functools.wraps(settings)
    def set_envs_and_config(*args: Any, **more: Any) -> Any:
        result = settings(*args, **more)
        multiprocessing.set_start_method("fork", force=True)
        return result

    replace(engine, "_set_envs_and_config", set_envs_and_config)
    os.register_at_fork(after_in_child=functools.partial(multiprocessing.set_start_method, "spawn", force=True))
