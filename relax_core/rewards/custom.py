"""Reward functions of the user: ``--custom-rm-path package.module.function`` or ``path/to/file.py:function``.

Guarantee: what cannot be loaded is an error that says why, before any generation; a file that was edited since it was
loaded in this process is loaded anew, so that ``source_hash`` always belongs to the code that runs.
"""

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from data.errors import UserError
from relax_core.rewards.source import source_hash
from relax_core.rewards.types import RewardSpec

__all__ = ["load_custom", "source_hash"]

_EXPECTED = "Expected a function `reward(sample)` given as package.module.function or path/to/file.py:function."
_loaded: dict[str, str] = {}  # module name -> hash of the source that it was loaded from


def load_custom(path: str) -> RewardSpec:
    """Load a user's reward function.

    Args:
        path: ``package.module.function`` (importable from the working directory too), ``package.module:function`` or
            ``path/to/file.py:function``.

    Raises:
        UserError: the module or function is missing, importing it fails, or it cannot be called with one sample.
    """
    place, separator, name = path.rpartition(":") if ":" in path else path.rpartition(".")
    if not (place and name and separator):
        raise UserError(f"--custom-rm-path {path!r} names no function.", _EXPECTED)
    module = _load_file(path, place) if place.endswith(".py") else _load_module(path, place)
    function = getattr(module, name, None)
    if function is None:
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        near = difflib.get_close_matches(name, names, n=1)
        raise UserError(
            f"--custom-rm-path {path!r}: {place} has no {name!r}.", f"Did you mean {near[0]!r}?" if near else _EXPECTED
        )
    _check_callable(path, function)
    call = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    return RewardSpec(
        name=path,
        function=function,
        is_async=inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call),
        doc=(inspect.getdoc(function) or "").split("\n", 1)[0],
        source_hash=source_hash(function),
        custom=True,
    )


def _check_callable(path: str, function: Any) -> None:
    if not callable(function):
        raise UserError(f"--custom-rm-path {path!r} is of type {type(function).__name__}, not a function.", _EXPECTED)
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise UserError(
            f"--custom-rm-path {path!r} cannot be called with one argument: {error}.",
            "Define it as `def reward(sample)` or `async def reward(sample)`.",
        ) from None
    except ValueError:  # a builtin without a signature: the first call will tell
        pass


def _load_module(path: str, name: str) -> ModuleType:
    # An installed command does not have the working directory on its path; last, so that it shadows nothing.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    importlib.invalidate_caches()
    known = sys.modules.get(name)
    if known is not None and name in _loaded and _file_hash(known) != _loaded[name]:
        module = _guard(path, lambda: importlib.reload(known))
    else:
        module = _guard(path, lambda: importlib.import_module(name))
    _loaded[name] = _file_hash(module)
    return module


def _load_file(path: str, file: str) -> ModuleType:
    source = Path(file).expanduser().resolve()
    if not source.is_file():
        raise UserError(f"--custom-rm-path {path!r}: there is no file {source}.", "Check the path.")
    # The content is in the name: an edited file is another module.
    digest = hashlib.sha256(str(source).encode() + b"\0" + source.read_bytes()).hexdigest()[:16]
    name = f"relax_custom_reward_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, source)
    assert spec is not None, source  # a .py file always has a loader
    assert spec.loader is not None, source
    module, loader = importlib.util.module_from_spec(spec), spec.loader
    sys.modules[name] = module  # dataclasses and pickling look the module up while it loads

    def execute() -> ModuleType:
        try:
            loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module

    return _guard(path, execute)


def _guard(path: str, load: Callable[[], ModuleType]) -> ModuleType:
    """Run an import of the user's code; its failure is the user's to mend, so it is told in full."""
    try:
        return load()
    except Exception as error:
        lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
        raise UserError(
            f"--custom-rm-path {path!r} cannot be imported: {type(error).__name__}: {error}.",
            _EXPECTED if isinstance(error, ModuleNotFoundError) else "Correct the module.",
            "\n".join(lines[-6:]),
        ) from error


def _file_hash(module: ModuleType) -> str:
    path = getattr(module, "__file__", None)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path and Path(path).is_file() else ""
