"""Reward functions of the user: ``--custom-rm-path package.module.function`` or ``path/to/file.py:function``.

Guarantee: what cannot be loaded or called is an error that says why, before any generation (see
``relax_core.functions`` and ``relax_core.rewards.adapters``).
"""

from collections.abc import Callable

from relax_core.functions import load_function
from relax_core.rewards.adapters import adapt
from relax_core.rewards.signatures import SHAPES
from relax_core.rewards.types import Convention, RewardSpec

OPTION = "--custom-rm-path"


def load_custom(
    path: str,
    *,
    of_group: bool = False,
    adapter: str = "auto",
    settings: Callable[[Convention], str] = lambda convention: "",
) -> RewardSpec:
    """Load a user's reward function.

    Args:
        path: ``package.module.function`` (importable from the working directory too), ``package.module:function`` or
            ``path/to/file.py:function``.
        of_group: --group-rm: it gets the list of a group's samples.
        adapter: --custom-rm-signature.
        settings: gives the JSON text of an object that functions of a convention are configured with: slime the
            options, TRL and verifiers ``label_key`` and ``conversational`` (texts are messages).

    Raises:
        UserError: the module or function is missing, importing it fails, or its arguments do not fit the convention.
    """
    shape = SHAPES["relax"] if adapter == "auto" else SHAPES.get(adapter, SHAPES["relax"])  # type: ignore[call-overload]
    function = load_function(path, OPTION, shape, arguments=None)
    adapted, given = adapt(function.call, f"{OPTION} {path!r}", adapter, of_group=of_group, settings=settings)
    return RewardSpec(
        name=path,
        function=adapted.function,
        is_async=function.is_async,
        doc=function.doc,
        source_hash=function.source_hash,
        custom=True,
        settings=given,
        key=adapted.key,
        of_group=adapted.of_group,
        convention=adapted.convention,
    )
