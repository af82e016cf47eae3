"""The command line, the run file and the environment, read into one configuration.

Guarantee: an option is known by its whole name only, never by a beginning of it; every word that is wrong, wherever it
stands, is in the one error that comes out; nothing is left out in silence; a value's source is kept. Order of
precedence, lowest first: default, run file (``--config run.yaml``), environment (``RELAX_LR=1e-6``), command line,
custom configuration (``--custom-config-path``).
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from data.nearest import nearest
from relax_core.config.config_file import read_config_file, read_flat_file, read_parameters
from relax_core.config.environment import environment_options, read_environment_file
from relax_core.config.foreign import FOREIGN, RENAMED, translate
from relax_core.config.mistyped import DASHES, pasted, plain_dashes
from relax_core.config.options import OPTIONS, BadValueError, Option, find_option, flag_of, get_option, with_options
from relax_core.config.passthrough import pass_through_flags
from relax_core.config.problems import Problem, raise_problems
from relax_core.config.sections import RelaxConfig
from relax_core.config.sources import COMMAND_LINE, CUSTOM, DEFAULT, DERIVED, Source

CONFIG = "config"
"""Name of the one option that is no field: the run file."""

_FLAG = re.compile(r"--[A-Za-z]")


class Given(NamedTuple):
    """What a person gave: the configuration (not yet resolved), the source of every option, and what to tell them."""

    config: RelaxConfig
    sources: dict[str, Source]
    notes: list[Problem]


@dataclass
class _Words:
    """A command line as far as it is read: options by name, words of other systems by flag, and what is wrong."""

    values: dict[str, Any] = field(default_factory=dict)
    foreign: dict[str, list[str]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


@cache
def flags() -> dict[str, tuple[Option, bool]]:
    """Every spelling of every flag, with its option; False when it turns the option off."""
    found: dict[str, tuple[Option, bool]] = {option.flag: (option, True) for option in OPTIONS.values()}
    for name, option in OPTIONS.items():  # `--no-x` turns x off, unless an option is really called no_x
        if option.kind == "bool" and not name.startswith("no_"):
            found.setdefault(flag_of(f"no_{name}"), (option, False))
    for flag, (passed, positive) in pass_through_flags().items():
        known = find_option(passed.name)
        if known is not None:
            found.setdefault(flag, (known, positive))
    for flag, name in RENAMED.items():
        if (renamed := find_option(name)) is not None:
            found.setdefault(flag, (renamed, True))
    return found


def parse_arguments(argv: Sequence[str]) -> dict[str, Any]:
    """The options given on a command line, by name, as typed values; ``config`` is the path of the run file.

    `--x VALUE` and `--x=VALUE` are the same; of an option given twice the last one counts. A switch is `--x`,
    `--x true`, `--x false` or `--no-x`; a list takes words up to the next option; an object is JSON text; `none`
    unsets an option that may be unset (and is not text).

    Raises:
        UserError: unknown options (with the nearest names), bad values (with what was expected): all of them.
    """
    words = _parse(argv)
    translated, notes = translate(words.foreign, words.values)
    raise_problems([*words.problems, *notes])
    return words.values | translated


def read_words(argv: Sequence[str]) -> tuple[dict[str, Any], list[Problem]]:
    """``parse_arguments`` that raises nothing: values, and what is wrong or was translated from another system."""
    words = _parse(argv)
    translated, notes = translate(words.foreign, words.values)
    values = {name: value for name, value in words.values.items() if name != CONFIG}
    return values | translated, [*words.problems, *notes]


def read_config(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Given:
    """The configuration that a command line, its run file and the environment ask for.

    Args:
        argv: the words behind `relax train`.
        environ: the environment; default: this process's.

    Raises:
        UserError: as ``parse_arguments``, together with what is wrong in files and environment.
    """
    given = read_given(argv, environ)
    raise_problems(given.notes)
    return given


def read_given(
    argv: Sequence[str], environ: Mapping[str, str] | None = None, parameters: Mapping[str, Any] | None = None
) -> Given:
    """``read_config`` that raises nothing: what is wrong is among the notes, and left out of the configuration.

    Args:
        parameters: of a flow run, in the shape of a run file; they count as the command line does.
    """
    words = _parse(argv)
    line, problems = words.values, words.problems
    submitted, sources_of_parameters, more = read_parameters(parameters or {})
    line |= submitted
    problems += more
    values: dict[str, Any] = {}
    sources: dict[str, Source] = dict.fromkeys(OPTIONS, DEFAULT)
    path = line.pop(CONFIG, None)
    if path is not None:
        values, sources_of_file, more = read_config_file(path)
        sources |= sources_of_file
        problems += more
    environ = os.environ if environ is None else environ
    env_file = line.get("env_file", environ.get("RELAX_ENV_FILE", values.get("env_file")))
    from_file, more = read_environment_file(env_file)
    problems += more
    from_environment, more = environment_options({**from_file, **environ}, set(from_file) - set(environ))
    problems += more
    for name, (value, source) in from_environment.items():
        values[name], sources[name] = value, source
    translated, notes = translate(words.foreign, line)
    problems += notes
    values |= line | translated
    sources |= dict.fromkeys([*line, *translated], COMMAND_LINE) | sources_of_parameters
    if custom := values.get("custom_config_path"):
        overriding, more = read_flat_file(custom, "--custom-config-path")
        problems += more
        values |= overriding
        sources |= dict.fromkeys(overriding, f"{CUSTOM} {custom}")
    return Given(with_options(RelaxConfig(), values), sources, problems)


def mark_derived(before: RelaxConfig, after: RelaxConfig, sources: Mapping[str, Source]) -> dict[str, Source]:
    """``sources`` with every default that was replaced marked as derived.

    A given value that was only completed (a lone evaluation path that got a name) keeps its source.
    """
    marked = dict(sources)
    for name in OPTIONS:
        if marked.get(name, DEFAULT) == DEFAULT and get_option(before, name) != get_option(after, name):
            marked[name] = DERIVED
    return marked


def _parse(argv: Sequence[str]) -> _Words:
    read = _Words()
    known = flags()
    if any(word.endswith("\r") for word in argv):
        reason = "has words that end with a carriage return."
        fix = "The script has the line ends of Windows: convert it with dos2unix."
        read.problems.append(Problem("command line", None, reason, fix))
        argv = [word.removesuffix("\r") for word in argv]
    for flag, words in _split(argv):
        try:
            if flag == f"--{CONFIG}":
                if len(words) != 1 or not words[0]:
                    raise BadValueError("expects the path of one YAML file.")
                read.values[CONFIG] = words[0]
            elif flag in known:
                option, positive = known[flag]
                if not positive and words:
                    raise BadValueError(f"takes no value; {option.flag} takes true or false.")
                read.values[option.name] = _read_words(option, words) if positive else False
            elif flag in FOREIGN:
                read.foreign[flag] = words
            elif flag:
                read.problems.append(_unknown(flag))
            else:
                read.problems += [
                    Problem(word, None, "a word that belongs to no option.", _meant(word)) for word in words
                ]
        except BadValueError as error:
            read.problems.append(Problem(flag, words or None, str(error)))
    return read


def _split(argv: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The command line as flags with the words that follow them; words before the first flag have the flag ``""``."""
    parts: list[tuple[str, list[str]]] = []
    for word in argv:
        if _FLAG.match(word):
            flag, equals, value = word.partition("=")
            parts.append((flag, [value] if equals else []))
        elif _is_dashed_word(word):
            # `-lr 1`: a flag with one dash, or with a dash of another kind, never the value of the option before it
            parts.append((word, []))
        elif parts:
            parts[-1][1].append(word)
        else:
            parts.append(("", [word]))
    return parts


_DASHED = re.compile(f"[-{DASHES}]+[A-Za-z][\\w.{DASHES}-]*(=.*)?", re.DOTALL)
_NUMBERS = ("-inf", "-infinity", "-nan")


def _is_dashed_word(word: str) -> bool:
    return _DASHED.fullmatch(word) is not None and word.lower() not in _NUMBERS


def _read_words(option: Option, words: list[str]) -> Any:
    if option.kind == "bool" and not words:
        return True
    if not words:
        raise BadValueError(f"needs a value: {option.expected}.")
    if option.kind == "list":
        return option.convert_text("none" if words == ["none"] else words)
    if len(words) > 1:
        hint = _meant(words[1])
        if words[0] in ("", "="):
            hint = f"Write {option.flag}={words[-1]} without spaces."
        elif not hint and option.kind in ("text", "json"):
            hint = "Put quotes round a value with spaces."
        raise BadValueError(f"takes one value, {option.expected}.{f' {hint}' if hint else ''}")
    return option.convert_text(words[0])


def _meant(word: str) -> str:
    """What a word that belongs to no option is likely to be meant as; an empty text where nothing is."""
    if word.strip() in ("\\", "--"):
        return {
            "--": "Leave the -- out.",
            "\\": "A backslash continues a line only as its very last character.",
        }[word.strip()]
    name = word.partition("=")[0].lstrip("+").rpartition(".")[2]
    if "=" in word and flag_of(name) in flags():
        return f"An option is written {flag_of(name)} {word.partition('=')[2]}."
    return f"A run file is given with --{CONFIG} {word}." if word.endswith((".yaml", ".yml")) else ""


def _unknown(flag: str) -> Problem:
    flag = flag.partition("=")[0] if "=" in flag else flag
    first = flag.split(maxsplit=1)[0]
    if first != flag and first in flags():
        return Problem(flag, None, "no such option.", f"{first} and its value are two words: no quotes round both.")
    # `--rollout_batch_size` and `-lr` are spelt right but for the dashes
    spelt = f"--{plain_dashes(flag).lstrip('-').replace('_', '-').lower()}"
    hint = pasted(flag)
    near = nearest(spelt, [*flags(), *FOREIGN, f"--{CONFIG}"])
    section, dot, name = spelt.removeprefix("--").partition(".")
    if dot and (option := find_option(name.replace("-", "_"))) is not None and option.section == section:
        near = f"Did you mean {option.flag}?"
    return Problem(flag, None, "no such option.", f"{near} {hint}".strip())
