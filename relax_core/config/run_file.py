"""The configuration of a run as a file, and the comparison with the one that made the run.

Guarantee: what ``dump`` writes, ``load`` reads back equal, with the source of each value; a run directory is never
gone on with under options that would have given other samples or other weights.
"""

import logging
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from data.errors import UserError
from relax_core.config.config_file import SOURCES
from relax_core.config.options import OPTIONS, Option, find_option, get_option, json_values, option_values
from relax_core.config.problems import Problem, show_value
from relax_core.config.resolve import FOLLOWS
from relax_core.config.seal import CUT_OFF, sealed, state
from relax_core.config.secrets import redact
from relax_core.config.sections import RelaxConfig
from relax_core.config.sources import DEFAULT, Source, is_given, is_source
from relax_core.config.stages import stages_of
from relax_core.config.yaml_text import dump_yaml, load_yaml, why_unreadable

log = logging.getLogger(__name__)

# where the optimiser's state lies, what it consists of, and how it is cut
_FIXED = {"save", "critic_save", "use_distributed_optimizer", "optimizer_cpu_offload", "use_precision_aware_optimizer"}
LAYOUT = frozenset({"tensor_model_parallel_size", "pipeline_model_parallel_size", "sequence_parallel"})
"""Parallel sizes under which a checkpoint reloads whatever they were before."""

# longer or shorter, it is the same run; a service may move
_FREE = {"num_rollout", "num_epoch", "rm_url"}

_RESTORE = "Restore it from a copy, or start a new run directory."


def may_change(option: Option) -> bool:
    """Whether an option may differ when a run is gone on with.

    So may the length of the run, the address of a service, and everything that changes neither what is generated, nor
    its advantages, nor what is learned from it: the reward, devices and parallel sizes, since checkpoints reload under
    others. Where the state is saved and how it is cut may not.
    """
    if option.name in _FREE:
        return True
    return option.name not in _FIXED and not {"generate", "forward", "advantage", "train_critic", "train"}.intersection(
        stages_of(option)
    )


MAY_CHANGE: frozenset[str] = frozenset(option.name for option in OPTIONS.values() if may_change(option))
"""The declared options that may differ when a run is gone on with."""


def dump(config: RelaxConfig, sources: Mapping[str, Source]) -> str:
    """The text of `<run>/config.yaml`: every option below its section, and the source of each that is no default."""
    content = config.model_dump(mode="json")
    if is_given(sources.get("eval_datasets", DEFAULT)):  # as they were given: the rest follows other options
        sets = config.eval.eval_datasets or []
        content["eval"]["eval_datasets"] = [one.model_dump(mode="json", exclude_unset=True) for one in sets]
    content[SOURCES] = {name: source for name, source in sources.items() if source != DEFAULT}
    return sealed(dump_yaml(content))


def holds_secrets(config: RelaxConfig) -> bool:
    """Whether what ``dump`` writes of a configuration has anything in it that must not be shown."""
    values = json_values(option_values(config))
    return any(redact(name, value) != value for name, value in values.items())


def load(text: str) -> tuple[RelaxConfig, dict[str, Source]]:
    """The configuration and the sources that ``dump`` wrote. A warning is logged where the text was changed since.

    Raises:
        UserError: the text is no such file, is cut off, or is of a version of Relax that had other options.
    """
    found = state(text)
    if found == "cut off":
        raise UserError(f"The run's config.yaml {CUT_OFF}", _RESTORE)
    if found == "changed":
        log.warning("The run's config.yaml was changed after Relax wrote it: the run may have been made otherwise.")
    try:
        content = load_yaml(text)
        if not isinstance(content, dict):
            raise UserError("The run's config.yaml is empty or cut off.", _RESTORE)
        given = content.pop(SOURCES, None)
        config = RelaxConfig.model_validate(content)
    except yaml.YAMLError as error:
        raise UserError(f"The run's config.yaml {why_unreadable(error)}", _RESTORE) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(
            f"The run's config.yaml does not fit this version of Relax: {where}: {_sentence(first['msg'])}",
            "Go on with the version that made the run, or start a new run directory.",
        ) from None
    sources: dict[str, Source] = dict.fromkeys(OPTIONS, DEFAULT)
    given = given if isinstance(given, dict) else {}
    sources |= {name: source for name, source in given.items() if find_option(str(name)) and is_source(source)}
    return config, sources


def _sentence(message: str) -> str:
    """What pydantic says, as the end of a sentence."""
    return f"{message.removeprefix('Value error, ').rstrip('.')}."


def differences(old: RelaxConfig, new: RelaxConfig) -> list[tuple[str, Any, Any]]:
    """Every option whose value differs: (name, old value, new value), in the order of the sections."""
    names = dict.fromkeys([*option_values(old), *option_values(new)])
    pairs = ((name, get_option(old, name), get_option(new, name)) for name in names)
    return [(name, before, after) for name, before, after in pairs if before != after]


def refuse_other_configuration(old: RelaxConfig, new: RelaxConfig) -> None:
    """Raise when a run made with ``old`` cannot be gone on with under ``new`` (both resolved).

    Raises:
        UserError: the options that differ, with both values; those in ``MAY_CHANGE`` are free.
    """
    changed = [
        Problem(option.flag, None, f"the run has {_show(option, before)}, now it is {_show(option, after)}.")
        for name, before, after in differences(old, new)
        if (option := find_option(name)) is not None and not may_change(option) and not _follows(name, old, new)
    ]
    if changed:
        names = ", ".join(problem.option for problem in changed)
        raise UserError(
            f"The run directory was made by another configuration; what differs: {names}.",
            "Give the run's values to go on with it, or another --run-dir to start a new run.",
            "\n".join(map(str, changed)),
        )


def other_layout(old: RelaxConfig, new: RelaxConfig) -> str:
    """What it means that a run made with ``old`` is gone on with under other parallel sizes of its trainers, or on
    another number of devices; empty where neither differs."""
    sizes = {name for name in LAYOUT if get_option(old, name) != get_option(new, name)}
    if any(old.cluster.resource.get(role) != new.cluster.resource.get(role) for role in ("actor", "critic")):
        sizes.add("resource")
    if not sizes:
        return ""
    changed = [
        f"{option.flag} {_show(option, before)} -> {_show(option, after)}"
        for name, before, after in differences(old, new)
        if name in sizes and (option := find_option(name)) is not None
    ]
    return (
        f"other parallel sizes than before ({', '.join(changed)}): the trainer reloads its checkpoint cut anew and"
        " nothing is generated again, but sums are added in another order: weights will not be equal bit by bit"
    )


def _follows(name: str, old: RelaxConfig, new: RelaxConfig) -> bool:
    """Whether an option only has the value of another one, as it had it: that one is told."""
    source = FOLLOWS.get(name)
    return source is not None and all(get_option(each, name) == get_option(each, source) for each in (old, new))


def _show(option: Option, value: Any) -> str:
    return show_value(option.show(redact(option.name, value)))
