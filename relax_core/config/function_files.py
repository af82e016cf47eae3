"""The functions of the user that a configuration names, looked for without running their files.

Guarantee: a missing file, module or function, and a file that is no Python, is told with the option; nothing of the
user's is imported or run, so that what only running it can tell (whether the function takes the right arguments, what
an import in it raises) is left to the start of the run.
"""

import ast
import importlib.util
import os
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from data.nearest import nearest
from relax_core.config.options import OPTIONS, get_option
from relax_core.config.problems import Problem
from relax_core.config.rules.base import Purpose
from relax_core.config.sections import RelaxConfig
from relax_core.functions import our_path, split_path

OF_TRAINING = ("custom_loss_function_path", "custom_tis_function_path", "custom_pg_loss_reducer_function_path")
"""Options that name functions of the loss."""

FUNCTIONS = (
    "custom_rm_path",
    "custom_reward_post_process_path",
    "custom_prompt_path",
    "custom_generate_function_path",
    "dynamic_sampling_filter_path",
    "buffer_filter_path",
    "rollout_data_postprocess_path",
    "custom_rollout_log_function_path",
    "custom_eval_rollout_log_function_path",
    *OF_TRAINING,
)
"""Options that name functions of the user."""

_OF_SETS = ("custom_rm_path", "custom_generate_function_path")
_FORM = "Write file.py:function, or package.module.function."


def check_function_files(config: RelaxConfig, purpose: Purpose) -> list[Problem]:
    """What is wrong with the functions that a configuration names, as far as their source tells."""
    told: dict[str, Problem] = {}
    for option, path, origin in _named(config, purpose):
        if path not in told and (found := _wrong(path)) is not None:
            reason, fix = found
            told[path] = Problem(option, path, reason, fix, origin=origin)
    return list(told.values())


def _named(config: RelaxConfig, purpose: Purpose) -> Iterator[tuple[str, str, str]]:
    """Option, path and origin of each function."""
    for name in FUNCTIONS:
        path = get_option(config, name)
        if path and not (purpose == "evaluate" and name in OF_TRAINING):
            yield OPTIONS[name].flag, path, ""
    option = "--eval-config" if config.eval.eval_config else "--eval-datasets"
    for one in config.eval.eval_datasets or []:
        for name in _OF_SETS:
            if path := getattr(one, name):
                yield option, path, f"evaluation set {one.name}"


def _wrong(path: str) -> tuple[str, str] | None:
    """The reason why a path leads to no function, and the fix; None where nothing is seen to be wrong."""
    place, name = split_path(our_path(path))
    if not name and place.endswith(".py"):
        return "names a file, and no function in it.", f"Write {path}:function."
    if not (place and name):
        return "names no function.", _FORM
    try:
        source = _file(place) if place.endswith(".py") else _module(place)
    except OSError as error:
        return f"cannot be read: {error.strerror}.", ""
    if isinstance(source, str):
        return source, "Check the path." if place.endswith(".py") else _FORM
    if source is None:
        return None
    try:
        names = _names(ast.parse(source.read_bytes()))
    except SyntaxError as error:
        return f"is no Python: {source}, line {error.lineno}: {error.msg}.", "Correct the file."
    except (OSError, ValueError, RecursionError):  # loading it says why
        return None
    if names is None or name in names:
        return None
    public = [each for each in names if not each.startswith("_")]
    return f"names no function: {place} has no {name!r}.", nearest(name, public) or _FORM


def _file(place: str) -> Path | str:
    path = Path(place).expanduser()
    return path if path.is_file() else f"names no file: there is no {path.absolute()}."


def _module(place: str) -> Path | str | None:
    """The source file of a module, why there is none, or None where it has none that could be read."""
    if not all(part.isidentifier() for part in place.split(".")):
        return "names no function."
    try:
        found = _spec(place)
    except (ImportError, ValueError):  # a module without a place of its own
        return None
    if found is None:
        return f"names no module: there is no {place!r}."
    return Path(found.origin) if found.origin and found.origin.endswith(".py") else None


def _spec(place: str) -> ModuleSpec | None:
    """Where a module is; None: nowhere."""
    first, *rest = place.split(".")
    spec = importlib.util.find_spec(first) or PathFinder.find_spec(first, [os.getcwd()])
    for part in rest:
        if spec is None or spec.submodule_search_locations is None:
            return None
        # by its last name alone: Python would look for the packages above a whole one among those that are imported
        spec = PathFinder.find_spec(part, list(spec.submodule_search_locations))
    return spec


def _names(module: ast.Module) -> set[str] | None:
    """The names that a module's source gives at its top level; None where only running it can tell."""
    names: set[str] = set()
    todo: list[ast.AST] = list(module.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif node.id in ("globals", "exec", "vars", "locals", "setattr"):
                return None
        else:
            todo.extend(ast.iter_child_nodes(node))
    return None if names & {"*", "__getattr__"} else names
