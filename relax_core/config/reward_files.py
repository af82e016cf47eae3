"""What the rewards of a configuration need of this machine: the judge's model and template, a sandbox.

Guarantee: what is missing is told with the option that asks for it; nothing is started but, for a reward
that needs it, a sandbox that runs an empty program.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from data.errors import UserError
from relax_core.config.options import OPTIONS
from relax_core.config.problems import Problem
from relax_core.config.rules.named import is_part, named
from relax_core.config.sections import RelaxConfig
from relax_core.config.values import Values


def check_reward_files(config: RelaxConfig) -> list[Problem]:
    """What a reward needs and this machine does not have.

    Args:
        config: resolved, with its evaluation sets in full.
    """
    return [*_judge(config), *_template(config), *_sandbox(config)]


def _judge(config: RelaxConfig) -> Iterator[Problem]:
    folder = config.genrm.genrm_model_path
    if not folder:  # an empty one is told as such
        return
    try:
        path = Path(folder)
        reason = "is no folder" if not path.is_dir() else "has no model: config.json is missing"
        if not (path / "config.json").is_file():
            yield Problem("--genrm-model-path", folder, f"{reason}.", "Name a local folder in Hugging Face's format.")
        else:
            yield from _judge_context(config, path)
    except OSError as error:
        yield Problem("--genrm-model-path", folder, f"cannot be read: {error.strerror}.")


def _judge_context(config: RelaxConfig, model: Path) -> Iterator[Problem]:
    try:
        most = json.loads((model / "config.json").read_text()).get("max_position_embeddings")
    except (ValueError, AttributeError):  # SGLang says what is wrong with it
        return
    for key in ("max_context_len", "context_length"):
        wanted = (config.genrm.genrm_engine_config or {}).get(key)
        if isinstance(wanted, int) and isinstance(most, int) and wanted > most:
            reason = f"is more than the {most} positions of the judge's model {model}."
            yield Problem("--genrm-engine-config", f"{key} {wanted}", reason, f"Give {most} at most, or leave it out.")


def _template(config: RelaxConfig) -> Iterator[Problem]:
    name = config.genrm.genrm_template
    if not name:
        return
    from relax_core.rewards.judge.question import OPTION, builtin_templates, check_template  # here: a file it reads

    if name in builtin_templates():
        return
    try:
        check_template(name)
    except UserError as error:
        reason = error.problem.removeprefix(f"{OPTION} {name}: ")
        yield Problem(OPTION, name, reason, error.fix)


def _sandbox(config: RelaxConfig) -> Iterator[Problem]:
    values = Values(config)
    options = [*named(values, "code"), *(["reward_mix"] if is_part(values, "code") else [])]
    if not options:
        return
    from relax_core.rewards.sandbox.run import NO_SANDBOX, NOT_EVEN_LIMITS, hindrance

    isolated = config.reward.code_sandbox == "full"
    if why := hindrance(isolated):
        what = "needs a sandbox for programs, which this machine does not give" if isolated else "cannot run programs"
        fix = NO_SANDBOX if isolated else NOT_EVEN_LIMITS
        yield from (Problem(OPTIONS[name].flag, "code", f"{what}: {why}.", fix) for name in options)
