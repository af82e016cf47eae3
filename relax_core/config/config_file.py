"""The run file: options in YAML, below the names of their sections.

Guarantee: every section or key that is not known, every key that is given twice and every value that an option
cannot have is reported with the file and the key. The ``config.yaml`` of a run is a run file too: of it, only what the
person gave counts, so that what had been derived is derived anew.
"""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from relax_core.config.options import OPTIONS, SECTIONS, BadValueError
from relax_core.config.problems import Problem, nearest

SOURCES = "sources"
"""Key of a run's ``config.yaml`` that holds the source of each value."""

GIVEN = ("file", "command line")
"""The sources of values that a person gave."""


class _Loader(yaml.SafeLoader):
    """YAML's plain types, and no key twice in one mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)  # type: ignore[no-untyped-call]
            if isinstance(key, Hashable):
                if key in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key} is given twice", key_node.start_mark)
                seen.add(key)
        return super().construct_mapping(node, deep)


def load_yaml(text: str) -> Any:
    """YAML's plain types.

    Raises:
        yaml.YAMLError: the text is no YAML, or gives a key twice.
    """
    return yaml.load(text, Loader=_Loader)


def read_config_file(path: str) -> tuple[dict[str, Any], list[Problem]]:
    """The options of a run file by their names, as typed values, and everything that is wrong with it."""
    option = f"--config {path}"
    try:
        content = load_yaml(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no UTF-8 text"
        return {}, [Problem(option, None, f"cannot be read: {reason}.", "Give the path of a YAML file.")]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        return {}, [Problem(option, None, f"is no valid YAML{line}: {getattr(error, 'problem', None) or error}.")]
    if content is None:
        return {}, []
    if not isinstance(content, dict):
        return {}, [Problem(option, None, "holds no sections.", "Write `rollout:` and below it its options, indented.")]
    sources = content.pop(SOURCES, None)
    values, problems = _read_sections(content, path)
    if isinstance(sources, dict):
        values = {name: value for name, value in values.items() if sources.get(name) in GIVEN}
    return values, problems


def _read_sections(content: dict[Any, Any], path: str) -> tuple[dict[str, Any], list[Problem]]:
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for section, keys in content.items():
        if section not in SECTIONS:
            known = OPTIONS.get(str(section).replace("-", "_"))
            hint = (
                f"It belongs below `{known.section}:`."
                if known
                else nearest(str(section), SECTIONS) or f"Sections: {', '.join(SECTIONS)}."
            )
            problems.append(Problem(f"{section} in {path}", None, "no such section.", hint))
        elif keys is not None and not isinstance(keys, dict):
            problems.append(Problem(f"{section} in {path}", keys, "expects options below it, indented."))
        else:
            for key, value in (keys or {}).items():
                where = f"{section}.{key} in {path}"
                option = OPTIONS.get(key) if isinstance(key, str) else None
                if option is None:
                    spelt = str(key).replace("-", "_").lower()
                    problems.append(Problem(where, None, "no such option.", nearest(spelt, OPTIONS)))
                elif option.section != section:
                    hint = f"It belongs below `{option.section}:`."
                    problems.append(Problem(where, None, "in the wrong section.", hint))
                else:
                    try:
                        values[key] = option.convert(value)
                    except BadValueError as error:
                        problems.append(Problem(where, "null" if value is None else value, str(error)))
    return values, problems
