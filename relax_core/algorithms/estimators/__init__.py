"""The estimators, one module for each family.

Guarantee: every module of this package is imported, in the order of their names, when the registry is; each registers
its estimators. None of them imports torch when it is imported.
"""

from importlib import import_module
from pkgutil import iter_modules


def discover() -> None:
    """Import every module of the package that is not imported yet."""
    for module in sorted(iter_modules(__path__), key=lambda found: found.name):
        import_module(f"{__name__}.{module.name}")


discover()
