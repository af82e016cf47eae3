"""The built-in rewards, one module for each family.

Guarantee: every module of this package is imported, in the order of their names, when the registry lists rewards.
"""

from pkgutil import iter_modules


def module_names() -> list[str]:
    """Dotted names of the package's modules."""
    return sorted(f"{__name__}.{found.name}" for found in iter_modules(__path__))
