"""The help text: every option, by section.

Guarantee: no line is wider than 100 columns; each option shows what it takes, what it does, its choices and its
default.
"""

import re
import textwrap

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


def options_help(sections: tuple[str, ...] | None = None) -> str:
    """The options of these sections (default: of all), a block per section."""
    blocks = [
        "Run file\n"
        + _entry("--config FILE", "YAML file with options below the names of their sections. The command line wins.")
    ]
    for section in sections or tuple(SECTIONS):
        entries = [option_help(option) for option in OPTIONS.values() if option.section == section]
        blocks.append(f"{section_title(section)} ({section})\n" + "\n".join(entries))
    return "\n\n".join(blocks)


def option_help(option: Option) -> str:
    """The lines of one option."""
    takes = "{" + ",".join(option.choices) + "}" if option.kind == "choice" else _TAKES[option.kind]
    text = option.help
    # what an option that is not set means is often told by its text
    if option.default is not None:
        text += f" (default: {option.show(option.default)})"
    elif not re.search(r"Default:|required", text):
        text += " (default: not set)"
    return _entry(f"{option.flag} {takes}", text)


def _entry(head: str, text: str) -> str:
    lines = textwrap.wrap(
        text, WIDTH, initial_indent=" " * _INDENT, subsequent_indent=" " * _INDENT, break_on_hyphens=False
    )
    head = f"  {head}"
    if len(head) <= _INDENT - 2 and lines:
        return "\n".join([head.ljust(_INDENT) + lines[0].lstrip(), *lines[1:]])
    return "\n".join([head, *lines])
