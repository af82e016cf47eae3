"""Options that a replay takes otherwise than the run had them.

Guarantee: they are read, resolved and checked as ``relax train`` does; what is wrong with the run's own options (a
file that is elsewhere now) is no error here; an option that cannot change anything that the replay computes is refused
with the reason, and never left out in silence.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from data.errors import UserError
from relax_core.config import (
    RelaxConfig,
    Stage,
    find_option,
    get_option,
    options_hash,
    run_file,
    stage_options,
    with_options,
)
from relax_core.config.examine import examine_given
from relax_core.config.options import Option, flag_of
from relax_core.config.parser import flags, read_given, read_words
from relax_core.config.problems import raise_problems, show_value
from relax_core.config.secrets import redact
from relax_core.config.stages import stages_of

REPLAYED: tuple[Stage, ...] = ("reward", "forward", "advantage", "train_critic", "train")
"""Stages that can be repeated, in the order of a step."""


@dataclass(frozen=True)
class Change:
    """An option that was set: its flag, and the run's and the new value as they are typed."""

    flag: str
    old: str
    new: str


def option_words(texts: Sequence[str]) -> list[str]:
    """``OPTION=VALUE`` (``kl_coef=0.1``, ``--kl-coef=0.1``) as words of a command line.

    Raises:
        UserError: a text without ``=``.
    """
    words = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip("-"):
            raise UserError(f"--set {text}: is no OPTION=VALUE.", "Write --set kl_coef=0.1.")
        flag = f"--{name.lstrip('-')}"
        words.append(f"{flag if flag in flags() else flag_of(name.lstrip('-'))}={value}")
    return words


def changed_config(url: str, base: RelaxConfig, texts: Sequence[str]) -> tuple[RelaxConfig, list[str]]:
    """``base``, which is the configuration of the run at ``url``, with these options and what follows from them.

    Args:
        texts: ``OPTION=VALUE`` each.

    Returns:
        The configuration, and the names of the options that were set.

    Raises:
        UserError: what is wrong with them.
    """
    if not texts:
        return base, []
    words = option_words(texts)
    values, problems = read_words(words)
    raise_problems(problems)
    file = ["--config", f"{url.rstrip('/')}/config.yaml"]
    before, after = (examine_given(read_given([*file, *more], {})) for more in ([], words))
    known = {str(problem) for problem in before.errors}
    raise_problems([problem for problem in after.errors if str(problem) not in known])
    differing = {name: value for name, _, value in run_file.differences(before.config, after.config)}
    return with_options(base, {**differing, **{name: get_option(after.config, name) for name in values}}), list(values)


def shown_changes(base: RelaxConfig, new: RelaxConfig, names: Sequence[str]) -> list[Change]:
    """The options by these names, and others that have followed them, without secrets."""
    also = [name for name, _, _ in run_file.differences(base, new) if name not in names]
    return [_change(name, get_option(base, name), get_option(new, name)) for name in [*names, *also]]


def shown_differences(old: RelaxConfig, new: RelaxConfig) -> list[Change]:
    """All options whose values differ, but for the place of the run itself."""
    return [_change(name, *pair) for name, *pair in run_file.differences(old, new) if name != "run_dir"]


def _change(name: str, old: Any, new: Any) -> Change:
    option = find_option(name)
    if option is None:
        return Change(flag_of(name), str(old), str(new))
    return Change(option.flag, *(show_value(option.show(redact(name, value))) for value in (old, new)))


def first_reached(base: RelaxConfig, new: RelaxConfig, again: Sequence[str]) -> str:
    """The first of the stages ``again`` whose options are not the same; empty where those of all are."""
    for stage in again:
        before, after = (options_hash(stage_options(config, cast(Stage, stage))) for config in (base, new))
        if before != after:
            return stage
    return ""


def refuse_idle(base: RelaxConfig, new: RelaxConfig, names: Sequence[str], again: Sequence[str]) -> None:
    """Make sure that every option that was set can change what is computed.

    Args:
        names: of the options.
        again: the stages that are repeated.

    Raises:
        UserError: the first that cannot, and why.
    """
    for name in names:
        option = find_option(name)
        assert option is not None
        reason, fix = _idle(option, base, new, again)
        if reason:
            raise UserError(f"--set {name}: {option.flag} {reason}", fix)


def _idle(option: Option, base: RelaxConfig, new: RelaxConfig, again: Sequence[str]) -> tuple[str, str]:
    """Why an option changes nothing, and what to do; empty texts when it does."""
    declared = stages_of(option)
    if "generate" in declared and not _for_other_functions(option, base, new):
        reason = "changes what is generated, and a replay takes the recorded rollout: nothing is generated."
        return reason, "Start a run with it."
    if not declared:
        return "changes the output of no stage.", "Leave it out."
    replayed = [stage for stage in REPLAYED if stage in declared]
    if not replayed:
        return f"matters to {', '.join(declared)} alone, which a replay does not repeat.", "Leave it out."
    matters = [stage for stage in replayed if any(option.name in stage_options(one, stage) for one in (base, new))]
    if not matters:
        return "has no effect beside the other options.", "`relax explain` tells what it belongs to; set that too."
    if set(matters) & set(again):
        return "", ""
    if again and REPLAYED.index(matters[-1]) < REPLAYED.index(cast(Stage, again[0])):
        return f"matters to {', '.join(matters)}, which is taken as it was recorded.", f"Add --from {matters[0]}."
    return f"matters to {', '.join(matters)}, which is not repeated.", "Add --to train: it starts the trainer."


def _for_other_functions(option: Option, base: RelaxConfig, new: RelaxConfig) -> bool:
    """--custom-args are read by a user's functions: where none of them generates, they do not change what is."""
    return option.name == "custom_args" and not any(one.rollout.custom_generate_function_path for one in (base, new))


def one_process(config: RelaxConfig) -> RelaxConfig:
    """The configuration of the same training in a single process: it differs in the rounding of sums only."""
    options = {
        "tensor_model_parallel_size": 1,
        "pipeline_model_parallel_size": 1,
        "context_parallel_size": 1,
        "sequence_parallel": False,
        "resource": {"actor": (1, 1), "critic": (1, 1), "rollout": (1, 1)},
        "async_save": False,
    }
    return with_options(config, options)


def pinned_length(config: RelaxConfig, step: int) -> RelaxConfig:
    """With the number of steps that a schedule of the trainer stretches over.

    Raises:
        UserError: --num-epoch decides it, together with prompts that are not looked at here, and a schedule reads it.
    """
    changes: dict[str, Any] = {}
    if config.debug.load_debug_rollout_data_subsample is not None:
        changes["global_batch_size"] = None  # it counts all samples
    if config.rollout.num_rollout is None:
        if "num_epoch" in stage_options(config, "train"):
            raise UserError(
                "The run's length follows from --num-epoch and its prompts, and a schedule of the optimiser from it.",
                "Say it: --set num_rollout=STEPS.",
            )
        changes["num_rollout"] = step + 1
    return with_options(config, changes) if changes else config


def with_model(config: RelaxConfig, folder: str | None) -> RelaxConfig:
    """With the model's folder where it is now."""
    if folder is None:
        return config
    moved = {"hf_checkpoint": folder}
    for name in ("load", "ref_load"):
        if get_option(config, name) == config.checkpoint.hf_checkpoint:
            moved[name] = folder
    return with_options(config, moved)
