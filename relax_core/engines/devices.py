"""The GPUs of this machine, and which of them the process of an engine sees.

Guarantee: its own come first, so that it computes on them; behind them are the machine's others, whose memory it can
map: weights come from the trainer's. Where the machine does not tell, nothing changes.
"""

import subprocess
from collections.abc import Mapping

VISIBLE = "CUDA_VISIBLE_DEVICES"


def seen_by_engine(environment: Mapping[str, str], machine: list[tuple[str, str]] | None = None) -> dict[str, str]:
    """Variables to add to the environment of an engine's process.

    Args:
        environment: its own; an empty list of devices is a CPU's.
        machine: index and UUID of each GPU; None: asked for.
    """
    own = [name for name in environment.get(VISIBLE, "").split(",") if name]
    if not own:
        return {}
    machine = gpus() if machine is None else machine
    place = 0 if all(name.isdigit() for name in own) else 1
    others = [pair[place] for pair in machine if set(own).isdisjoint(pair)]
    return {VISIBLE: ",".join([*own, *others])} if others else {}


def gpus() -> list[tuple[str, str]]:
    """Index and UUID of each GPU of this machine; none where it does not tell."""
    rows = [[part.strip() for part in line.split(",")] for line in ask("gpu=index,uuid")]
    return [(row[0], row[1]) for row in rows if len(row) == 2]


def fullest() -> tuple[float, float] | None:
    """Memory of the GPU of this machine with the least free, in GiB: in all, and free; None where there is none, or it
    does not tell."""
    rows = [line.replace(" ", "").split(",") for line in ask("gpu=memory.total,memory.free")]
    known = [(int(total), int(free)) for total, free in rows if total.isdigit() and free.isdigit()]
    total, free = min(known, key=lambda pair: pair[1], default=(None, None))
    return None if total is None or free is None else (total / 1024, free / 1024)


def ask(query: str, timeout: float = 30.0) -> list[str]:
    """Lines of ``nvidia-smi --query-...``, memory in MiB; none where there is no such program, or no answer in time."""
    command = ["nvidia-smi", f"--query-{query}", "--format=csv,noheader,nounits"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []
