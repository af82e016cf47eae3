"""Whether the rows of a prompt set have what the judge's template asks for.

Guarantee: a row that lacks a reference, a rubric or a label, or has one that cannot be used, is told with its number
before anything is generated; rows that look alike to the template are rendered once.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from data.errors import UserError
from data.prompts import PromptDataset
from relax_core.config.eval_set import EvalSet
from relax_core.config.rules.named import JUDGED, plain
from relax_core.config.sections import RelaxConfig
from relax_core.rewards.judge.question import builtin_templates, question
from relax_core.rewards.parts import MIX
from relax_core.rewards.types import RewardInput

TEMPLATES = {"judge": "pointwise", "dapo-genrm": "correctness"}
"""Reward that asks the judge -> its template where none is given."""


def check_judged(config: RelaxConfig, prompts: PromptDataset, sets: Iterable[tuple[EvalSet, PromptDataset]]) -> None:
    """Find the first row that its judge could not be asked about.

    Args:
        config: resolved.
        prompts: those of training; rewards and templates that their metadata names win.
        sets: evaluation sets.

    Raises:
        UserError: the set, its row and what that lacks.
    """
    if config.reward.custom_rm_path is None:
        _check_rows("--prompt-data", prompts, config, config.reward.rm_type)
    for one, rows in sets:
        if not one.custom_rm_path:
            _check_rows(f"Evaluation set {one.name},", rows, config, one.default_rm_type)


def _check_rows(what: str, prompts: PromptDataset, config: RelaxConfig, rm_type: str | None) -> None:
    seen: set[str] = set()
    for number, (metadata, label) in enumerate(zip(prompts.metadata, prompts.labels, strict=True)):
        reward = _judging(metadata, rm_type, config)
        if reward is None:
            continue
        template = metadata.get("judge_template")
        if template not in builtin_templates():  # another one is an error of the reward's own
            template = config.genrm.genrm_template or TEMPLATES[reward]
        asked = [metadata.get(key) for key in ("rubric", "judge_scale")]
        alike = json.dumps([template, label is None, sorted(metadata), metadata.get("reference") is None, *asked])
        if alike in seen:
            continue
        seen.add(alike)
        sample = RewardInput(
            f"of row {prompts.prompt_ids[number]}",
            prompts.texts[number],
            "",
            None if label is None else json.loads(label),
            dict(metadata),
        )
        try:
            question(sample, template)
        except UserError as error:
            if isinstance(error.__cause__, ArithmeticError | LookupError | TypeError | ValueError):
                continue  # what a template of the user's makes of an empty answer says nothing of the row
            raise UserError(f"{what} {prompts.source}: {error.problem}", error.fix) from error


def _judging(metadata: Mapping[str, Any], rm_type: str | None, config: RelaxConfig) -> str | None:
    """The reward by which a row is judged; None where it is not."""
    name = plain(metadata.get("rm_type") or rm_type)
    if name == MIX:
        parts = metadata.get("reward_mix") or config.reward.reward_mix or {}
        return next((plain(part) for part in parts if plain(part) in JUDGED), None)
    return name if name in JUDGED else None
