"""Functions of the user: ``package.module.function``, ``package.module:function`` or ``path/to/file.py:function``.

Guarantee: what cannot be loaded or called as its option wants is an error that names the option and the expected
function. A file that was edited since it was loaded in this process is loaded anew, so that ``source_hash`` always
belongs to the code that runs; threads that load the same function at once all get the whole of it.
"""

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from data.errors import UserError
from data.nearest import nearest

_loading = threading.RLock()
"""Held round every import here: a module is in ``sys.modules`` before it is whole."""

_THEIRS = ("slime", "relax")
_STANDS_FOR = {"check_reward_nonzero_std": "relax_core.rollout.filters.check_reward_nonzero_std"}
"""Name of a function that packages of slime's line ship -> ours."""

_loaded: dict[str, str] = {}  # module name -> hash of the source that it was loaded from


@dataclass(frozen=True)
class UserFunction:
    """A loaded function.

    Attributes:
        option: the flag that names it, for messages.
        path: as it was given.
        call: the function.
        is_async: whether calling it gives a coroutine.
        doc: the first line of its docstring.
        source_hash: SHA-256 of the source that it was loaded from, see ``source_hash``.
    """

    option: str
    path: str
    call: Callable[..., Any]
    is_async: bool
    doc: str
    source_hash: str

    @property
    def name(self) -> str:
        """What errors call it."""
        return f"{self.option} {self.path}"

    def takes(self, argument: str) -> bool:
        """Whether it has an argument of this name."""
        try:
            return argument in inspect.signature(self.call).parameters
        except ValueError:
            return False

    def failure(self, what: str, error: BaseException) -> UserError:
        """The error to raise when it raised.

        Args:
            what: when it did, e.g. ``on sample 000000-0000-000``.
            error: what it raised.
        """
        return UserError(
            f"{self.name} failed {what}: {type(error).__name__}: {error}.",
            "Correct the function and run again: what is finished is kept.",
            _last_lines(error),
        )


def load_function(
    path: str,
    option: str,
    signature: str,
    arguments: int | None = 1,
    *,
    keywords: Sequence[str] = (),
    is_async: bool = False,
) -> UserFunction:
    """Load a user's function.

    Args:
        path: see the module; importable from the working directory too.
        option: the flag that names it.
        signature: what is expected, for messages: ``reward(sample)``.
        arguments: how many arguments it is called with, by position; None: the caller checks them.
        keywords: names of further arguments that it is called with.
        is_async: it must be a coroutine function.

    Raises:
        UserError: the module or function is missing, importing it fails, it cannot be called with that many
            arguments, or it is no coroutine function.
    """
    expected = f"Expected a function `{signature}` given as package.module.function or path/to/file.py:function."
    place, name = split_path(our_path(path))
    what = f"{option} {path!r}"
    if not (place and name):
        raise UserError(f"{what} names no function.", expected)
    with _loading:
        load = _load_file if place.endswith(".py") else _load_module
        module = load(place, what, expected)
        function = getattr(module, name, None)
    if function is None:
        names = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UserError(f"{what}: {place} has no {name!r}.", nearest(name, names, "{!r}") or expected)
    if not callable(function):
        raise UserError(f"{what} is of type {type(function).__name__}, not a function.", expected)
    if arguments is not None:
        _check_arguments(function, arguments, keywords, what, signature)
    call = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    coroutine = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
    if is_async and not coroutine:
        raise UserError(f"{what} is no coroutine function.", f"Define it as `async def {signature}`.")
    doc = (inspect.getdoc(function) or "").split("\n", 1)[0]
    return UserFunction(option, path, function, coroutine, doc, source_hash(function))


def our_path(path: str) -> str:
    """The path of the function here that stands for slime's of the same name; any other path as it is."""
    package, name = path.partition(".")[0], path.rpartition(".")[2]
    return _STANDS_FOR.get(name, path) if package in _THEIRS else path


def split_path(path: str) -> tuple[str, str]:
    """The module or file of a function's path, and the function's name; an empty text for what is missing."""
    if ":" not in path and path.endswith(".py"):
        return path, ""
    place, _, name = path.rpartition(":" if ":" in path else ".")
    return place, name


def source_hash(function: Callable[..., Any]) -> str:
    """SHA-256 of the whole source file of a function's module; of the function's own text where there is no file.

    The whole file, because helpers and constants beside the function decide its result too. A change in a module that
    this file imports is not seen: pass such settings as options, or keep them in the same file.

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
            f"The source of the function {getattr(function, '__qualname__', function)!r} cannot be found, so a "
            "resumed run could not tell whether it has changed.",
            "Define it in a file and give that.",
        ) from None
    return hashlib.sha256(text.encode()).hexdigest()


def _check_arguments(
    function: Callable[..., Any], arguments: int, keywords: Sequence[str], what: str, signature: str
) -> None:
    try:
        inspect.signature(function).bind(*[None] * arguments, **dict.fromkeys(keywords))
    except TypeError as error:
        count = {1: "one argument", 2: "two arguments", 3: "three arguments"}.get(arguments, f"{arguments} arguments")
        count = " and ".join([count, *([", ".join(keywords)] if keywords else [])])
        raise UserError(
            f"{what} cannot be called with {count}: {error}.",
            f"Define it as `def {signature}` or `async def {signature}`.",
        ) from None
    except ValueError:  # a builtin without a signature: the first call will tell
        pass


def _load_module(name: str, what: str, expected: str) -> ModuleType:
    # An installed command does not have the working directory on its path; last, so that it shadows nothing.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    importlib.invalidate_caches()
    known = sys.modules.get(name)
    if known is not None and name in _loaded and _file_hash(known) != _loaded[name]:
        module = _guard(what, expected, lambda: importlib.reload(known))
    else:
        module = _guard(what, expected, lambda: importlib.import_module(name))
    _loaded[name] = _file_hash(module)
    return module


def _load_file(file: str, what: str, expected: str) -> ModuleType:
    source = Path(file).expanduser().resolve()
    if not source.is_file():
        raise UserError(f"{what}: there is no file {source}.", "Check the path.")
    # The content is in the name: an edited file is another module.
    digest = hashlib.sha256(str(source).encode() + b"\0" + source.read_bytes()).hexdigest()[:16]
    name = f"relax_user_function_{digest}"
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

    return _guard(what, expected, execute)


def _guard(what: str, expected: str, load: Callable[[], ModuleType]) -> ModuleType:
    """Run an import of the user's code; its failure is the user's to mend, so it is told in full."""
    try:
        return load()
    except Exception as error:
        raise UserError(
            f"{what} cannot be imported: {type(error).__name__}: {error}.",
            (_instead(error) or expected) if isinstance(error, ModuleNotFoundError) else "Correct the module.",
            _last_lines(error),
        ) from error


def _instead(error: ModuleNotFoundError) -> str:
    """What to do about an import of slime's packages, which are not installed; empty where another one is missing."""
    package = (error.name or "").partition(".")[0]
    if package not in _THEIRS:
        return ""
    return (
        f"{package} is not installed, nor is it needed: functions are called as {package} calls them. Its Sample is"
        " `from relax_core.rollout.sample import Sample`; a reward of its rm_hub, e.g. math, is"
        " `from relax_core.rewards.registry import get`, then `get('math').function(sample)`. Copy other helpers into"
        " your file."
    )


def _last_lines(error: BaseException) -> str:
    return "\n".join("".join(traceback.format_exception(error)).rstrip().splitlines()[-6:])


def _file_hash(module: ModuleType) -> str:
    path = getattr(module, "__file__", None)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path and Path(path).is_file() else ""
