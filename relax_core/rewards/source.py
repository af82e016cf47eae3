"""The source of a reward function, for the identity of a reward stage.

Guarantee: a change in the file that defines the function changes the hash; a change in a module that this file imports
does not (pass such settings as options, or keep them in the same file).
"""

import hashlib
import inspect
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from data.errors import UserError


def source_hash(function: Callable[..., Any]) -> str:
    """SHA-256 of the whole source file of a function's module; of the function's own text where there is no file.

    The whole file, because helpers and constants beside the function decide its result too.

    Raises:
        UserError: the source cannot be found (e.g. a function made by ``exec``).
    """
    while isinstance(function, partial):
        function = function.func
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    path = getattr(module, "__file__", None)
    if path and Path(path).is_file():
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    try:
        text = inspect.getsource(function if inspect.isroutine(function) else type(function))
    except (OSError, TypeError):
        raise UserError(
            f"The source of the reward function {getattr(function, '__qualname__', function)!r} cannot be found, so a "
            "resumed run could not tell whether it has changed.",
            "Define it in a file and pass that as --custom-rm-path.",
        ) from None
    return hashlib.sha256(text.encode()).hexdigest()
