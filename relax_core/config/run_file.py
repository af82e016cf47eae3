"""The configuration of a run as a file, and the comparison with the one that made the run.

Guarantee: what ``dump`` writes, ``load`` reads back equal, with the source of each value; a run directory is never
gone on with under options that would have given other samples or other weights.
"""

from collections.abc import Mapping
from typing import Any, get_args

import yaml
from pydantic import ValidationError

from data.errors import UserError
from relax_core.config.config_file import SOURCES, load_yaml
from relax_core.config.options import OPTIONS, get_option
from relax_core.config.parser import Source
from relax_core.config.problems import Problem, show_value
from relax_core.config.sections import RelaxConfig
from relax_core.config.stages import NO_OUTPUT, STAGES

_HEAD = """\
# The resolved configuration of this run. `sources` names the options whose value is no default:
# file and command line were given, derived follows from others. `relax train --config` reads this file too.
"""

# where the optimiser's state lies, and how it is cut
_FIXED = {"save", "use_distributed_optimizer"}
# longer or shorter, it is the same run
_FREE = {"num_rollout", "num_epoch"}

MAY_CHANGE: frozenset[str] = frozenset(
    name
    for name in OPTIONS
    if name in _FREE
    or (
        name not in _FIXED
        and (name in NO_OUTPUT or all(name not in STAGES[stage] for stage in ("generate", "advantage", "train")))
    )
)
"""Options that may differ when a run is gone on with: the length of the run, and everything that changes neither what
is generated, nor its advantages, nor what is learned from it. So the reward may change, and so may devices and parallel
sizes, since checkpoints reload under others; where the state is saved and how it is cut may not."""


class _Dumper(yaml.SafeDumper):
    """YAML's plain types, with every text in a style that reads back the same."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # outside double quotes PyYAML writes these line breaks of Unicode as they are, and reads them back as others
    style = '"' if any(character in text for character in "\x85\u2028\u2029") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def dump(config: RelaxConfig, sources: Mapping[str, Source]) -> str:
    """The text of `<run>/config.yaml`: every option below its section, and the source of each that is no default."""
    content = config.model_dump(mode="json")
    content[SOURCES] = {name: source for name, source in sources.items() if source != "default"}
    return _HEAD + yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def load(text: str) -> tuple[RelaxConfig, dict[str, Source]]:
    """The configuration and the sources that ``dump`` wrote.

    Raises:
        UserError: the text is no such file, or of a version of Relax that had other options.
    """
    try:
        content = load_yaml(text)
        if not isinstance(content, dict):
            raise UserError("The run's config.yaml is empty or cut off.", "Start a new run directory.")
        given = content.pop(SOURCES, None)
        config = RelaxConfig.model_validate(content)
    except yaml.YAMLError as error:
        raise UserError(f"The run's config.yaml is no valid YAML: {error}.", "Start a new run directory.") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(
            f"The run's config.yaml does not fit this version of Relax: {where}: {first['msg']}.",
            "Go on with the version that made the run, or start a new run directory.",
        ) from None
    sources: dict[str, Source] = dict.fromkeys(OPTIONS, "default")
    given = given if isinstance(given, dict) else {}
    sources |= {name: source for name, source in given.items() if name in OPTIONS and source in get_args(Source)}
    return config, sources


def differences(old: RelaxConfig, new: RelaxConfig) -> list[tuple[str, Any, Any]]:
    """Every option whose value differs: (name, old value, new value), in the order of the sections."""
    pairs = ((name, get_option(old, name), get_option(new, name)) for name in OPTIONS)
    return [(name, before, after) for name, before, after in pairs if before != after]


def refuse_other_configuration(old: RelaxConfig, new: RelaxConfig) -> None:
    """Raise when a run made with ``old`` cannot be gone on with under ``new`` (both resolved).

    Raises:
        UserError: the options that differ, with both values; those in ``MAY_CHANGE`` are free.
    """
    changed = [
        Problem(OPTIONS[name].flag, None, f"the run has {_show(name, before)}, now it is {_show(name, after)}.")
        for name, before, after in differences(old, new)
        if name not in MAY_CHANGE
    ]
    if changed:
        names = ", ".join(problem.option for problem in changed)
        raise UserError(
            f"The run directory was made by another configuration; what differs: {names}.",
            "Give the run's values to go on with it, or another --run-dir to start a new run.",
            "\n".join(map(str, changed)),
        )


def _show(name: str, value: Any) -> str:
    return show_value(OPTIONS[name].show(value))
