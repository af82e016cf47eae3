"""Memory of an engine on a CPU.

Guarantee: forgetting the cache frees what it freed before, as soon as nobody holds it; Python's own collection goes on
when Python sees fit.
"""

from types import ModuleType


def no_collection(platform: ModuleType) -> None:
    """SGLang lets Python collect garbage whenever a GPU's cache would be emptied: nearly half a second in each weight
    sync, for tensors that are freed without it."""
    cls = platform.CpuDeviceMixin
    _ = cls.empty_cache
    cls.empty_cache = lambda self: None
