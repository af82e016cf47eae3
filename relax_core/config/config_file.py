"""The run file: options in YAML, below the names of their sections.

Guarantee: every section or key that is not known, every key that is given twice and every value that an option
cannot have is reported with the file and the key. ``base:`` names files whose options this one overrides; a text
``{env:NAME}`` stands for an environment variable; keys that begin with ``x-`` hold anchors and nothing else. The
``config.yaml`` of a run is a run file too: of it, only what a person gave counts, what they changed in it included, so
that what had been derived is derived anew; one that was cut off is refused.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from data.errors import UserError
from data.nearest import nearest
from relax_core.config.foreign import FOREIGN
from relax_core.config.options import OPTIONS, SECTIONS, BadValueError, Option, find_option
from relax_core.config.passthrough import pass_through_flags, pass_throughs
from relax_core.config.problems import Problem
from relax_core.config.seal import CUT_OFF, State, state
from relax_core.config.sources import DEFAULT, FILE, PARAMETERS, Source, is_given, is_source
from relax_core.config.variables import BadVariableError, insert_variables
from relax_core.config.yaml_text import load_yaml, read_text, why_unreadable

SOURCES = "sources"
"""Key of a run's ``config.yaml`` that holds the source of each value."""

BASE = "base"
"""Key of the files that a run file builds on."""

MAX_BASES = 50
"""Files build on each other no deeper."""

_FIX = "Give the path of a YAML file."
_SECTIONS = ("holds no sections.", "Write `rollout:` and below it its options, indented.")
_OPTIONS = ("holds no options.", "Write `lr: 1e-6`, an option a line.")
_VARIABLE_FIX = "A variable is written {env:NAME}."
_BEFORE = {"env_file": "that file is read before this one", "custom_config_path": "it would name this file"}
"""What a custom configuration cannot set, and why."""


@dataclass
class _Read:
    """What is read of a run file and of those that it builds on."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def wrong(self, where: str, reason: str, fix: str = "", value: Any = None) -> None:
        """Tell a mistake, once."""
        problem = Problem(where, value, reason, fix)
        if str(problem) not in map(str, self.problems):
            self.problems.append(problem)


def read_config_file(path: str) -> tuple[dict[str, Any], dict[str, Source], list[Problem]]:
    """The options of a run file by their names, as typed values, their sources, and everything that is wrong."""
    read = _Read()
    _read_file(path, f"--config {path}", (), read)
    return read.values, read.sources, read.problems


def read_parameters(content: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Source], list[Problem]]:
    """As ``read_config_file``, of the parameters of a flow run: they have the shape of a run file."""
    read = _Read()
    for section, keys in content.items():
        if section in SECTIONS:
            _read_section(section, keys, f"the {PARAMETERS}", read)
        else:
            _unknown_section(section, f"the {PARAMETERS}", read)
    return read.values, dict.fromkeys(read.values, PARAMETERS), read.problems


def read_flat_file(path: str, flag: str) -> tuple[dict[str, Any], list[Problem]]:
    """The options of a file that has them without sections, or with; and what is wrong with it.

    Args:
        flag: the option that names the file.
    """
    read = _Read()
    content, _ = _load(path, f"{flag} {path}", _OPTIONS, read)
    for key, value in content.items():
        where = f"{_key(key)} in {path}"
        if isinstance(key, str) and key.startswith("x-"):
            continue
        part = _Read(problems=read.problems)
        if key in SECTIONS and (isinstance(value, dict) or key not in OPTIONS):
            _read_section(key, value, path, part)
        elif key in (BASE, SOURCES):
            read.wrong(where, "is no option: only a run file has it.")
        elif (option := _known_key(key, where, read)) is not None:
            _read_value(option, value, where, path, part)
        for name in part.values:
            if name in _BEFORE:
                read.wrong(f"{name} in {path}", f"has no effect here: {_BEFORE[name]}.", "Take it out.")
            elif name in read.values:
                read.wrong(f"{name} in {path}", "is given twice.")
        read.values |= {name: value for name, value in part.values.items() if name not in _BEFORE}
    return read.values, read.problems


def _load(path: str, where: str, shape: tuple[str, str], read: _Read) -> tuple[dict[Any, Any], State]:
    """The content of a file, and whether it is a run's ``config.yaml`` as Relax wrote it.

    Args:
        where: the option that names it, and its path.
        shape: what to tell where it holds no mapping: the reason, and what to write.
    """
    try:
        text = _text(path)
        content, found = load_yaml(text), state(text)
    except UserError as error:
        read.wrong(where, error.problem, _FIX)
        return {}, "unsealed"
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        read.wrong(where, why_unreadable(error), _FIX if isinstance(error, OSError) else "")
        return {}, "unsealed"
    if found == "cut off":
        read.wrong(where, CUT_OFF, "Take it from a copy. If it is a file of your own now, take its first line out.")
        return {}, found
    if content is not None and not isinstance(content, dict):
        read.wrong(where, *shape)
        return {}, found
    return content or {}, found


def _text(path: str) -> str:
    """The text of a local file, or of one on a remote file system, such as the config.yaml of a run there."""
    if "://" not in path:
        return read_text(path)
    from data.files import FileStore  # here: fsspec takes time that a local file does not need

    folder, _, name = path.rpartition("/")
    return FileStore(f"{folder}/" if folder.endswith(":/") else folder).read_bytes(name).decode()


def _read_file(path: str, where: str, including: tuple[str, ...], read: _Read) -> None:
    content, found = _load(path, where, _SECTIONS, read)
    _read_bases(content.pop(BASE, None), path, including, read)
    sources = content.pop(SOURCES, None)
    own = _Read(problems=read.problems)
    for section, keys in content.items():
        if isinstance(section, str) and section.startswith("x-"):
            continue
        if section in SECTIONS:
            _read_section(section, keys, path, own)
        else:
            _unknown_section(section, path, read)
    if sources is not None:
        own.values = _given(own.values, sources, path, read)
        if found == "changed":
            reason = "was changed after Relax wrote it: of what `sources` calls derived or corrected, nothing is read."
            fix = "To give such an option a value, take its line below `sources` out."
            read.problems.append(Problem(where, None, reason, fix, "warning"))
    read.values |= own.values
    read.sources |= dict.fromkeys(own.values, f"{FILE} {path}")


def _read_bases(bases: Any, path: str, including: tuple[str, ...], read: _Read) -> None:
    where = f"{BASE} in {path}"
    if bases is None:
        return
    bases = bases if isinstance(bases, list) else [bases]
    if not all(isinstance(base, str) and base for base in bases):
        read.wrong(where, "expects a list of paths, or one path.", value=json.dumps(bases, default=str))
        return
    try:
        bases = insert_variables(bases)
        here = os.path.realpath(path)
        for given in bases:
            base = os.path.expanduser(given)
            base = base if "://" in base else os.path.join(os.path.dirname(path), base)
            if os.path.realpath(base) in (*including, here):
                read.wrong(where, "is being read already: files include each other.", value=base)
            elif len(including) >= MAX_BASES:
                read.wrong(where, f"is the base of more than {MAX_BASES} files, one of the other.", value=base)
            else:
                _read_file(base, f"{BASE} {base} in {path}", (*including, here), read)
    except BadVariableError as error:
        read.wrong(where, str(error), value=" ".join(bases))
    except ValueError:  # the character NUL
        read.wrong(where, "is no path.", value=" ".join(bases))


def _given(values: dict[str, Any], sources: Any, path: str, read: _Read) -> dict[str, Any]:
    """Those values of a run's ``config.yaml`` that a person gave: when the run was made, or in the file afterwards."""
    if not isinstance(sources, dict):
        read.wrong(f"{SOURCES} in {path}", "expects the source of each option below it.", "Take it out.", sources)
        return values
    for name, source in sources.items():
        if not is_source(source):
            fix = "Take the line out where you gave the value."
            read.wrong(f"{SOURCES}.{_key(name)} in {path}", "is no source.", fix, "null" if source is None else source)
    given: dict[str, Any] = {}
    for name, value in values.items():
        source = sources.get(name, DEFAULT)
        changed = source == DEFAULT and (name not in OPTIONS or value != OPTIONS[name].default)
        if changed or not is_source(source) or is_given(source):
            given[name] = value
    return given


def _unknown_section(section: Any, path: str, read: _Read) -> None:
    known = find_option(str(section).replace("-", "_"))
    if known:
        hint = f"It belongs below `{known.section}:`."
    else:
        hint = nearest(str(section), SECTIONS) or f"Sections: {', '.join(SECTIONS)}."
    read.wrong(f"{_key(section)} in {path}", "no such section.", hint)


def _read_section(section: str, keys: Any, path: str, read: _Read) -> None:
    if keys is not None and not isinstance(keys, dict):
        read.wrong(f"{section} in {path}", "expects options below it, indented.", value=keys)
        return
    for key, value in (keys or {}).items():
        where = f"{section}.{_key(key)} in {path}"
        option = _known_key(key, where, read)
        if option is None:
            continue
        if option.section != section:
            read.wrong(where, "in the wrong section.", f"It belongs below `{option.section}:`.")
        else:
            _read_value(option, value, where, path, read)


def _known_key(key: Any, where: str, read: _Read) -> Option | None:
    option = find_option(key) if isinstance(key, str) else None
    if option is None:
        spelt = str(key).lstrip("-").replace("-", "_").lower() if isinstance(key, str) else ""
        flag = f"--{spelt.replace('_', '-')}"
        if flag in pass_through_flags():
            hint = f"It is called {pass_through_flags()[flag][0].name}."
        elif flag in FOREIGN:
            hint = f"It is slime's, and {FOREIGN[flag].text}"
        elif spelt == "config":
            hint = f"A run file names others with `{BASE}:`."
        else:
            hint = nearest(spelt, [*OPTIONS, *pass_throughs()])
        read.wrong(where, "no such option.", hint)
    return option


def _read_value(option: Option, value: Any, where: str, path: str, read: _Read) -> None:
    try:
        inserted = insert_variables(value)
        # JSON in quotes, as on a command line
        as_text = option.kind == "json" and isinstance(inserted, str)
        read.values[option.name] = option.convert_text(inserted) if as_text else option.convert(inserted)
    except (BadValueError, BadVariableError) as error:
        shown = "null" if value is None else value
        if isinstance(value, list) and option.kind != "list":
            shown = json.dumps(value, ensure_ascii=False, default=str)
        fix = _VARIABLE_FIX if isinstance(value, str) and "${" in value else ""
        read.wrong(where, str(error), fix, shown)
        return
    if option.kind == "text" and isinstance(value, str) and "${" in value and not any(map(str.isspace, value)):
        reason = "has a `${`, which stays as it is."
        read.problems.append(Problem(where, value, reason, _VARIABLE_FIX, "warning"))


def _key(key: Any) -> str:
    """A key as it is written in YAML."""
    return str(key) if isinstance(key, str) else json.dumps(key, default=str)
