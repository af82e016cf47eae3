"""Reward functions of the user: ``--custom-rm-path package.module.function`` or ``path/to/file.py:function``.

Guarantee: what cannot be loaded is an error that says why, before any generation (see ``relax_core.functions``).
"""

from relax_core.functions import load_function
from relax_core.rewards.types import RewardSpec

OPTION = "--custom-rm-path"


def load_custom(path: str, *, of_group: bool = False) -> RewardSpec:
    """Load a user's reward function.

    Args:
        path: ``package.module.function`` (importable from the working directory too), ``package.module:function`` or
            ``path/to/file.py:function``.
        of_group: it gets the list of a group's samples.

    Raises:
        UserError: the module or function is missing, importing it fails, or it cannot be called with one argument.
    """
    function = load_function(path, OPTION, "reward(samples)" if of_group else "reward(sample)")
    return RewardSpec(
        name=path,
        function=function.call,
        is_async=function.is_async,
        doc=function.doc,
        source_hash=function.source_hash,
        custom=True,
    )
