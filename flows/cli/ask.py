"""``relax doctor``, ``options``, ``explain``, ``algorithms``, ``schema`` and ``import-args``: questions about options.

Guarantee: nothing is started, and neither torch, Ray nor Prefect is imported; a second is enough.
"""

import argparse
import json
import sys
from pathlib import Path

from data.errors import UserError
from data.nearest import nearest
from relax_core.config.examine import examine_given
from relax_core.config.foreign import FOREIGN
from relax_core.config.mistyped import plain_dashes
from relax_core.config.options import OPTIONS, SECTIONS, Option, all_options, find_option
from relax_core.config.parser import CONFIG, flags, read_given
from relax_core.config.rules.base import Purpose

_DOCTOR = """\
usage: relax doctor [train|evaluate] [--json] [the options of `relax train`]

Say what is wrong with a configuration, what follows from it and what a run of it would do. Nothing is
started. Exit code 0: nothing to say; 1: warnings; 2: errors."""


def doctor(arguments: list[str]) -> int:
    """Check a configuration and show its plan."""
    from relax_core.config import doctor as report_of
    from relax_core.config.plan_memory import Device
    from relax_core.engines.devices import fullest

    if any(word in ("-h", "--help") for word in arguments):
        print(_DOCTOR)
        return 0
    as_json = "--json" in arguments
    words = [word for word in arguments if word != "--json"]
    purpose: Purpose = "train"
    if words and words[0] in ("train", "evaluate"):
        purpose = "evaluate" if words.pop(0) == "evaluate" else "train"
    if purpose == "evaluate":
        from flows.cli.run import with_options_of_the_run

        words = with_options_of_the_run(words)
    report = examine_given(read_given(words), purpose)
    training = purpose == "train"
    if training:
        report = report_of.with_run(report)
    memory = fullest() if training else None
    device = None if memory is None else Device(*memory)
    if as_json:
        print(json.dumps(report_of.as_json(report, training, device), indent=2, ensure_ascii=False))
    else:
        print(report_of.as_text(report, training, device))
    return report_of.exit_code(report)


def options(parser: argparse.ArgumentParser, arguments: list[str]) -> int:
    """List options, all or those that match."""
    from relax_core.config.help import option_help, options_help, search

    parser.add_argument("words", nargs="*", help="words that the option's name, section or text must contain")
    parser.add_argument("--unwired", action="store_true", help="only options that nothing honours yet")
    parser.add_argument("--all", action="store_true", help="also those of Megatron and SGLang that are passed through")
    chosen, flags_as_words = parser.parse_known_args(arguments)
    chosen.words += flags_as_words
    if not (chosen.words or chosen.unwired or chosen.all):
        print(options_help())
        return 0
    pool = all_options().values() if chosen.all or chosen.words else OPTIONS.values()
    found = search(chosen.words, (option for option in pool if option.unwired or not chosen.unwired))
    if not found:
        raise UserError(f"No option matches {' '.join(chosen.words)}.", _near_options(chosen.words))
    print("\n".join(option_help(option) for option in found))
    print(f"\n{len(found)} options. `relax explain {found[0].flag}` tells all of one.")
    return 0


def explain(parser: argparse.ArgumentParser, arguments: list[str]) -> int:
    """Tell everything about options."""
    from relax_core.config.explain import explain as text_of

    # its words look like options of the parser's own, so that they are taken as they are
    if not arguments or any(word in ("-h", "--help") for word in arguments):
        print("usage: relax explain --OPTION [--OPTION ...]\n\n" + str(parser.description))
        return 0 if arguments else 2
    named = [_named(word) for word in arguments]
    print("\n\n".join(one if isinstance(one, str) else text_of(one) for one in named))
    return 0


def algorithms(parser: argparse.ArgumentParser, arguments: list[str]) -> int:
    """List the advantage estimators and recipes, or tell of one."""
    from relax_core.config.estimators import algorithms_text

    parser.add_argument("name", nargs="?", help="one estimator or recipe (default: all)")
    print(algorithms_text(parser.parse_args(arguments).name))
    return 0


def schema(parser: argparse.ArgumentParser, arguments: list[str]) -> int:
    """Print the JSON Schema of the run file."""
    from relax_core.config.schema import run_file_schema

    parser.add_argument("-o", "--output", help="file to write to (default: standard output)")
    chosen = parser.parse_args(arguments)
    _write(json.dumps(run_file_schema(), indent=2, ensure_ascii=False) + "\n", chosen.output)
    return 0


def import_args(parser: argparse.ArgumentParser, arguments: list[str]) -> int:
    """Turn a bash launch script into a run file."""
    from relax_core.config.import_script import import_script

    parser.add_argument("script", help="bash script that starts training: of slime, Relax, or with `relax train`")
    parser.add_argument("-o", "--output", help="run file to write (default: standard output)")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a variable of the script")
    chosen = parser.parse_args(arguments)
    variables = dict(map(_assigned, chosen.set))
    imported = import_script(chosen.script, variables)
    _write(imported.text, chosen.output)
    for note in imported.notes:
        print(f"relax: {note}", file=sys.stderr)
    return 1 if imported.notes else 0


def _assigned(item: str) -> tuple[str, str]:
    name, equals, value = item.partition("=")
    if not equals or not name.isidentifier():
        raise UserError(f"--set {name}: expects NAME=VALUE.", "Write --set HF_HOME=/models.")
    return name, value


def _write(text: str, path: str | None) -> None:
    if path is None:
        sys.stdout.write(text)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:  # ValueError: the character NUL
        reason = getattr(error, "strerror", None) or "is no path"
        raise UserError(f"{path or repr(path)} cannot be written: {reason}.", "Name another file.") from None
    print(f"{path} is written.")


_RUN_FILE = """\
--config FILE

A run file: options in YAML, below the names of their sections. It is no option itself, and stands on the command line
only. `relax schema` tells what it may hold."""


def _named(word: str) -> Option | str:
    """The option that a word means, or the text about one that is none of Relax's."""
    name = plain_dashes(word).lstrip("-").partition("=")[0]
    spelt = name.removeprefix("RELAX_").rpartition(".")[2].replace("_", "-").lower()
    found = flags().get(f"--{name}") or flags().get(f"--{spelt}")
    option = found[0] if found else find_option(name.replace("-", "_")) or find_option(spelt.replace("-", "_"))
    if option is not None:
        return option
    if name == CONFIG:
        return _RUN_FILE
    if f"--{name}" in FOREIGN:
        return f"--{name} is an option of slime's. Here it {FOREIGN[f'--{name}'].text}"
    raise UserError(f"{word or repr(word)}: there is no such option.", _near_options([spelt]) or _SEARCH)


_SEARCH = "`relax options WORD` searches."


def _near_options(words: list[str]) -> str:
    for word in words:
        if word in SECTIONS:
            return ""
        if hint := nearest(f"--{word.lstrip('-').replace('_', '-')}", flags()):
            return hint
    return "`relax options` lists all."
