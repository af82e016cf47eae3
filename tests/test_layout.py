"""The architecture as CONTRIBUTING.md states it: layers, where heavy libraries may be imported, sizes, docstrings.

Imports are read from the source, those inside functions too, so that no test needs the libraries.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("data", "relax_core", "tasks", "flows", "deployments")
"""From the bottom to the top: a layer imports itself and those before it."""

HEAVY = ("torch", "transformers", "ray", "prefect", "megatron", "sglang")
ALLOWED = {
    "data": (),
    "relax_core.config": (),
    "relax_core.run": ("transformers",),
    "relax_core.run.debug_data": ("torch",),
    "relax_core.run.transport": ("ray", "torch"),
    "relax_core.batching": (),
    "relax_core.rewards": (),
    "relax_core.rollout": (),
    "relax_core.tracking": (),
    "relax_core.algorithms": ("torch",),
    "relax_core.models": ("torch", "transformers"),
    "relax_core.weights": ("torch",),
    "relax_core.cluster": ("ray",),
    "relax_core.engines": ("torch", "sglang"),
    "relax_core.training": ("torch", "ray", "megatron"),
    "tasks": ("prefect",),
    "flows": ("prefect",),
    "deployments": ("prefect",),
}
"""Package -> the heavy libraries that its modules may import."""

ONE_PLACE = {
    "megatron": {"relax_core.training.megatron", "relax_core.training.megatron_cpu"},
    "sglang": {"relax_core.engines.serve", "relax_core.engines.introspect"},
    "transfer_queue": {"relax_core.run.transport.transfer_queue"},
    "prefect": {"tasks", "flows", "deployments"},
}
"""Library -> the modules (or packages) that alone import it."""

MODULE_LINES = 600


def modules() -> list[str]:
    paths = (path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))
    names = (path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for path in paths)
    return sorted(name for name in names if not name.startswith("data.samples."))


def path_of(module: str) -> Path:
    return ROOT / f"{module.replace('.', '/')}.py"


def imports(module: str) -> Iterator[str]:
    """Dotted names of all imported modules, wherever in the file, but not what only type checkers import."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(ast.parse(path_of(module).read_text())):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            skipped.update(inner for statement in node.body for inner in ast.walk(statement))
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import: imports here are absolute"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def docstring(module: str) -> str:
    return ast.get_docstring(ast.parse(path_of(module).read_text())) or ""


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_imports_only_what_lies_below_it(layer: str) -> None:
    above = LAYERS[LAYERS.index(layer) + 1 :]
    wrong = [
        f"{module} imports {name}"
        for module in modules()
        if within(module, layer)
        for name in imports(module)
        if name.split(".")[0] in above
    ]
    assert not wrong


def test_heavy_libraries_are_imported_where_they_belong() -> None:
    wrong = []
    for module in modules():
        package = max((name for name in ALLOWED if within(module, name)), key=len, default=None)
        allowed = ALLOWED[package] if package else ()
        heavy = {name.split(".")[0] for name in imports(module)} & set(HEAVY)
        wrong += [f"{module} imports {name}" for name in sorted(heavy - set(allowed))]
    assert not wrong


@pytest.mark.parametrize("library", sorted(ONE_PLACE))
def test_a_library_has_one_place(library: str) -> None:
    users = {module for module in modules() if any(within(name, library) for name in imports(module))}
    assert {user for user in users if not any(within(user, place) for place in ONE_PLACE[library])} == set()


def test_modules_are_small() -> None:
    lines = {module: len(path_of(module).read_text().splitlines()) for module in modules()}
    assert {module: count for module, count in lines.items() if count > MODULE_LINES} == {}


def test_every_module_says_what_it_guarantees() -> None:
    """An empty ``__init__`` needs no docstring; that of a package with content says what the package is."""
    silent = []
    for module in modules():
        text = docstring(module)
        if module.endswith("__init__"):
            if path_of(module).read_text().strip() and not text:
                silent.append(module)
        elif "Guarantee:" not in text:
            silent.append(module)
    assert silent == []


def test_public_names_have_docstrings() -> None:
    """Functions and classes of a module's top level."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    missing = [
        f"{module}.{node.name}"
        for module in modules()
        for node in ast.parse(path_of(module).read_text()).body
        if isinstance(node, kinds) and not node.name.startswith("_") and ast.get_docstring(node) is None
    ]
    assert missing == []


def test_help_is_shown_without_heavy_imports() -> None:
    code = (
        "import sys\n"
        "from flows.cli.main import main\n"
        "assert main(['--help']) == 0\n"
        f"print('heavy:', sorted(set({HEAVY!r}) & set(sys.modules)))\n"
        "assert main(['train', '--help']) == 0\n"
        f"print('heavy:', sorted(set({HEAVY!r}) & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.count("heavy: []") == 2
