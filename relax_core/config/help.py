"""Help for people: the list of all options, one option in full, and the search for options.

Guarantee: no line is wider than 100 columns; each option shows what it takes, what it does, its choices and its
default, and whether anything honours it yet.
"""

import re
import textwrap
from collections.abc import Iterable

from relax_core.config.options import OPTIONS, SECTIONS, Option, section_title

WIDTH = 100
_INDENT = 34
_TAKES = {
    "bool": "[true|false]",
    "int": "N",
    "bytes": "SIZE",
    "float": "X",
    "text": "TEXT",
    "list": "ITEM ...",
    "json": "JSON",
}
_PASSED = {
    "megatron": "Every other option of Megatron-core is taken too: `relax options megatron WORD` finds them.",
    "sglang": "Every argument of SGLang's server is taken with this prefix: `relax options sglang WORD` finds them.",
}


def takes(option: Option) -> str:
    """What is written behind the flag."""
    return "{" + ",".join(option.choices) + "}" if option.kind == "choice" else _TAKES[option.kind]


def options_help(sections: tuple[str, ...] | None = None) -> str:
    """The options of these sections (default: of all), a block per section."""
    blocks = [
        "Run file\n"
        + _entry("--config FILE", "YAML file with options below the names of their sections. The command line wins.")
    ]
    for section in sections or tuple(SECTIONS):
        entries = [option_help(option) for option in OPTIONS.values() if option.section == section]
        if section in _PASSED:
            entries += textwrap.wrap(_PASSED[section], WIDTH, initial_indent="  ", subsequent_indent="  ")
        blocks.append(f"{section_title(section)} ({section})\n" + "\n".join(entries))
    return "\n\n".join(blocks)


def option_help(option: Option) -> str:
    """The lines of one option."""
    text = option.help
    # what an option that is not set means is often told by its text
    if option.default is not None:
        text += f" (default: {option.show(option.default)})"
    elif not re.search(r"Default:|required", text) and option.passed is None:
        text += " (default: not set)"
    if option.unwired:
        text += " [not honoured yet]"
    head = f"{option.flag} {takes(option)}"
    if len(head) > WIDTH - 2:
        head, text = f"{option.flag} NAME", f"{text} One of {', '.join(option.choices)}."
    return _entry(head, text)


def search(words: Iterable[str], options: Iterable[Option]) -> list[Option]:
    """The options whose name, section, help or Chinese help contains every word; those named so come first."""
    wanted = [word.lower().lstrip("-").replace("-", "_") for word in words]
    found = []
    for option in options:
        text = f"{option.name} {option.section} {option.help} {option.help_zh}".lower()
        text += f" {text.replace('-', '_')}"
        if all(word in text for word in wanted):
            found.append(option)
    return sorted(found, key=lambda option: not all(word in option.name for word in wanted))


def _entry(head: str, text: str) -> str:
    lines = textwrap.wrap(
        text, WIDTH, initial_indent=" " * _INDENT, subsequent_indent=" " * _INDENT, break_on_hyphens=False
    )
    head = f"  {head}"
    if len(head) <= _INDENT - 2 and lines:
        return "\n".join([head.ljust(_INDENT) + lines[0].lstrip(), *lines[1:]])
    return "\n".join([head, *lines])
