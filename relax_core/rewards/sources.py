"""What decides scores beside the samples: the source of the functions, and the options.

Guarantee: another source of a function that may score, or another option that changes a score, is another hash; nothing
else is.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from functools import cache
from pathlib import Path

from relax_core.config.eval_set import EvalSet
from relax_core.config.options import json_values
from relax_core.config.sections import RelaxConfig
from relax_core.config.stages import options_hash, stage_options
from relax_core.rewards.choice import RewardChoice, custom_reward, evaluation_choice, training_choice
from relax_core.rewards.judge.question import builtin_templates, template_text


def reward_source_hash(config: RelaxConfig) -> str:
    """SHA-256 over the source of every function that may score: part of the identity of a reward stage.

    With ``--custom-rm-path`` that is the user's file; else all built-in rewards, as rows may name any of them.
    """
    return _source_hash(training_choice(config), config)


def evaluation_source_hash(eval_sets: Iterable[EvalSet], config: RelaxConfig) -> str:
    """``reward_source_hash`` over all evaluation sets."""
    sources = {each.name: _source_hash(evaluation_choice(each, config), config) for each in eval_sets}
    return hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()


def scoring_hash(choice: RewardChoice, config: RelaxConfig) -> str:
    """SHA-256 over sources and options: equal samples with an equal hash have equal scores."""
    options = options_hash(stage_options(config, "reward"))
    parts = [_source_hash(choice, config), options, asdict(choice)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _source_hash(choice: RewardChoice, config: RelaxConfig) -> str:
    if custom := custom_reward(choice, config):
        if custom.convention != "slime":
            return custom.source_hash
        arguments = json.dumps(json_values(config.run.custom_args), sort_keys=True)  # it gets them
        return hashlib.sha256(f"{custom.source_hash}{arguments}".encode()).hexdigest()
    template = config.genrm.genrm_template
    if template is None or template in builtin_templates():
        return _package_hash()
    return hashlib.sha256(f"{_package_hash()}{template_text(template)}".encode()).hexdigest()


@cache
def _package_hash() -> str:
    """Of the whole package: built-in rewards share answers, instructions and lists of words that decide a score."""
    folder, content = Path(__file__).parent, hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".jinja")):
        content.update(f"{file.relative_to(folder)}\0".encode() + file.read_bytes())
    return content.hexdigest()
