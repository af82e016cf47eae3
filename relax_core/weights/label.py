"""What an engine is told its weights are called.

Guarantee: two labels are equal only for the same weights: the number of the policy version alone is not enough,
because a run that learns a step anew (another reward, say) has two histories with the same numbers. Whatever is no
label of ours, for instance ``default`` of a fresh server or ``updating-...`` of a push that broke off, has no
version.
"""

import re

_LABEL = re.compile(r"(\d+)(?:\.[0-9a-f]+)?")


def weight_label(version: int, weights_id: str = "") -> str:
    """``<version>.<identity>``, or the version alone where the identity is not known.

    Args:
        version: number of rollout steps that were trained.
        weights_id: hexadecimal identity of the weights, see ``relax_core.run.recovery.History``.
    """
    return f"{version}.{weights_id}" if weights_id else str(version)


def version_of(label: str) -> int | None:
    """The version that a label names, or None."""
    match = _LABEL.fullmatch(label)
    return int(match[1]) if match else None
