"""Names of checkpoints.

Guarantee: what ``folder_name`` makes, ``iteration_of`` reads. Importing this module costs nothing.
"""

import re

_NAME = re.compile(r"iter_(\d{7,})")


def folder_name(iteration: int) -> str:
    """``iter_0000012``."""
    return f"iter_{iteration:07d}"


def iteration_of(url: str) -> int | None:
    """The iteration that a URL like ``.../iter_0000012`` names, or None."""
    match = _NAME.fullmatch(url.rstrip("/").rsplit("/", 1)[-1])
    return int(match[1]) if match else None
