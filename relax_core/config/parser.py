"""The command line and the run file, read into one configuration.

Guarantee: an option is known by its whole name only, never by a beginning of it; every word that is wrong, on the
command line and in the file, is in the one error that comes out; a value's source is kept. Order of precedence, lowest
first: default, run file (``--config run.yaml``), command line.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from relax_core.config.config_file import read_config_file
from relax_core.config.options import OPTIONS, BadValueError, Option, flag_of, get_option, with_options
from relax_core.config.problems import Problem, nearest, raise_problems
from relax_core.config.sections import RelaxConfig

Source = Literal["default", "file", "command line", "derived"]
"""Where a value comes from."""

CONFIG = "config"
"""Name of the one option that is no field: the run file."""

_FLAGS: dict[str, Option] = {option.flag: option for option in OPTIONS.values()}
# `--no-x` turns x off, unless an option is really called no_x
_NEGATIONS: dict[str, Option] = {
    flag_of(f"no_{name}"): option
    for name, option in OPTIONS.items()
    if option.kind == "bool" and flag_of(f"no_{name}") not in _FLAGS and not name.startswith("no_")
}
_FLAG = re.compile(r"--[A-Za-z]")


def parse_arguments(argv: Sequence[str]) -> dict[str, Any]:
    """The options given on a command line, by field name, as typed values; ``config`` is the path of the run file.

    `--x VALUE` and `--x=VALUE` are the same; of an option given twice the last one counts. A switch is `--x`,
    `--x true`, `--x false` or `--no-x`; a list takes words up to the next option; an object is JSON text; `none`
    unsets an option that may be unset (and is not text).

    Raises:
        UserError: unknown options (with the nearest names), bad values (with what was expected): all of them.
    """
    values, problems = _parse(argv)
    raise_problems(problems)
    return values


def read_config(argv: Sequence[str]) -> tuple[RelaxConfig, dict[str, Source]]:
    """The configuration that a command line and its run file ask for, not yet resolved, and every option's source.

    Raises:
        UserError: as ``parse_arguments``, together with what is wrong in the run file.
    """
    values, problems = _parse(argv)
    from_file: Mapping[str, Any] = {}
    path = values.pop(CONFIG, None)
    if path is not None:
        from_file, file_problems = read_config_file(path)
        problems += file_problems
    raise_problems(problems)
    sources: dict[str, Source] = dict.fromkeys(OPTIONS, "default")
    sources |= dict.fromkeys(from_file, "file")
    sources |= dict.fromkeys(values, "command line")
    return with_options(RelaxConfig(), {**from_file, **values}), sources


def mark_derived(before: RelaxConfig, after: RelaxConfig, sources: Mapping[str, Source]) -> dict[str, Source]:
    """``sources`` with every default that ``resolve`` replaced marked as derived.

    A given value that was only completed (a lone evaluation path that got a name) keeps its source.
    """
    marked = dict(sources)
    for name in OPTIONS:
        if marked.get(name, "default") == "default" and get_option(before, name) != get_option(after, name):
            marked[name] = "derived"
    return marked


def _parse(argv: Sequence[str]) -> tuple[dict[str, Any], list[Problem]]:
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for flag, words in _split(argv):
        try:
            if flag == f"--{CONFIG}":
                if len(words) != 1:
                    raise BadValueError("expects the path of one YAML file.")
                values[CONFIG] = words[0]
            elif option := _FLAGS.get(flag):
                values[option.name] = _read_words(option, words)
            elif option := _NEGATIONS.get(flag):
                if words:
                    raise BadValueError(f"takes no value; {option.flag} takes true or false.")
                values[option.name] = False
            elif flag:
                problems.append(_unknown(flag))
            else:
                problems.append(Problem(words[0], None, "a word that belongs to no option."))
        except BadValueError as error:
            problems.append(Problem(flag, words or None, str(error)))
    return values, problems


def _split(argv: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The command line as flags with the words that follow them; words before the first flag have the flag ``""``."""
    parts: list[tuple[str, list[str]]] = []
    for word in argv:
        if _FLAG.match(word):
            flag, equals, value = word.partition("=")
            parts.append((flag, [value] if equals else []))
        elif not parts or (not parts[-1][0] or _is_dashed_word(word)):
            # `-lr 1`: a flag with one dash, never the value of the option before it
            parts.append((word, []) if _is_dashed_word(word) else ("", [word]))
        else:
            parts[-1][1].append(word)
    return parts


def _is_dashed_word(word: str) -> bool:
    return re.fullmatch(r"-[A-Za-z][A-Za-z0-9_-]*", word) is not None


def _read_words(option: Option, words: list[str]) -> Any:
    if option.kind == "bool" and not words:
        return True
    if not words:
        raise BadValueError(f"needs a value: {option.expected}.")
    if option.kind == "list":
        return option.convert_text("none" if words == ["none"] else words)
    if len(words) > 1:
        hint = " Put quotes round a value with spaces." if option.kind in ("text", "json") else ""
        raise BadValueError(f"takes one value, {option.expected}.{hint}")
    return option.convert_text(words[0])


def _unknown(flag: str) -> Problem:
    # `--rollout_batch_size` and `-lr` are spelt right but for the dashes
    spelt = f"--{flag.lstrip('-').replace('_', '-').lower()}"
    return Problem(flag, None, "no such option.", nearest(spelt, [*_FLAGS, *_NEGATIONS, f"--{CONFIG}"]))
