"""Programs that are no part of a package, as modules of a test."""

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]


def program(path: str) -> ModuleType:
    """The file at ``path`` of the project, run anew under its own name; ``sys.modules`` is left alone."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
