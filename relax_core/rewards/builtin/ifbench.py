"""The reward ``ifbench``: instructions that a program can check, of IFEval, IFBench and IF-RLVR.

Guarantee: 1 if and only if every instruction is followed, 0 else; linear in the response, which makes nothing raise; no
download. A sample's instructions are all read before one is checked: a mistake in them is an error, never a 0.
"""

import json
from collections.abc import Mapping
from typing import Any

from data.errors import UserError
from relax_core.rewards.answer_text import answer_text
from relax_core.rewards.instructions.base import Check, read
from relax_core.rewards.registry import register
from relax_core.rewards.types import RewardInput


@register("ifbench", key="score")
def ifbench(sample: RewardInput) -> dict[str, float] | None:
    """1 when the response follows every instruction of metadata.instruction_id_list, with metadata.kwargs; else 0.

    A dict: ``score``; ``followed``, the part of the instructions that are followed; and for each instruction 1 or 0
    under its id, with ``#2``, ``#3`` after it where it comes again. None for a sample without instructions (an empty
    list).
    """
    checks = instructions_of(sample)
    if not checks:
        return None
    response = answer_text(sample)
    followed: dict[str, float] = {}
    for check in checks:
        name, number = check.instruction.name, 1
        while (key := name if number == 1 else f"{name}#{number}") in followed:
            number += 1
        followed[key] = float(check.follows(response))
    share = sum(followed.values()) / len(followed)
    return {"score": float(share == 1.0), "followed": share, **followed}


def instructions_of(sample: RewardInput) -> list[Check]:
    """The instructions of a sample: those of its metadata, else of its label as IF-RLVR's data has them.

    Raises:
        UserError: there are none, or something is wrong with them (see ``read``).
    """
    metadata = sample.metadata
    if "instruction_id_list" in metadata:
        return read(metadata["instruction_id_list"], metadata.get("kwargs"), sample.sample_id)
    label = _of_label(sample.label)
    if label is None:
        raise UserError(
            f"Sample {sample.sample_id} cannot be scored by ifbench: its metadata has no instruction_id_list.",
            "Give metadata with instruction_id_list (ids) and kwargs (a dict for each); see --metadata-key.",
        )
    return read(label.get("instruction_id", label.get("instruction_id_list")), label.get("kwargs"), sample.sample_id)


def _of_label(label: Any) -> Mapping[str, Any] | None:
    """IF-RLVR's ground truth: a dict with ``instruction_id`` and ``kwargs``, in a list of one; a value, or JSON."""
    if isinstance(label, str):
        try:
            label = json.loads(label)
        except (ValueError, RecursionError):
            return None
    if isinstance(label, list) and len(label) == 1:
        label = label[0]
    known = isinstance(label, Mapping) and ("instruction_id" in label or "instruction_id_list" in label)
    return label if known else None
