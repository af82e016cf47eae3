"""One option in full, as ``relax explain`` tells it.

Guarantee: everything that the code knows of an option is here: meaning in both languages, type, default, values, where
it takes effect, what it changes, the rules that read it, and how it is written on a command line, in a run file and in
the environment.
"""

import json
import re
import textwrap
from functools import partial
from typing import Any

from relax_core.config.help import WIDTH, takes
from relax_core.config.options import EXAMPLES, PASSED_TO, Option, find_option, section_title
from relax_core.config.resolve import FOLLOWS
from relax_core.config.rules import RULES
from relax_core.config.run_file import may_change
from relax_core.config.stages import stages_of

_FIELD = re.compile(r"(?<!\{)\{(\w+)\}(?!\})")
wrap = partial(textwrap.wrap, break_on_hyphens=False, break_long_words=False)


def explain(option: Option) -> str:
    """The whole of what is known of an option."""
    lines = [f"{option.flag} {takes(option)}", ""]
    lines += wrap(option.help, WIDTH)
    lines += [*textwrap.wrap(option.help_zh, WIDTH // 2), ""]  # a Chinese character takes two columns
    rows: list[tuple[str, str]] = [
        ("section", f"{option.section} ({section_title(option.section)})"),
        ("value", option.expected),
        ("range", f"must be {option.range.text}" if option.range else ""),
        ("default", _default(option)),
        ("takes effect", _effect(option)),
        ("changes", ", ".join(stages_of(option)) or "no stage's output"),
        ("on resume", "may differ" if may_change(option) else "must be the run's"),
        ("command line", example(option)),
        ("run file", f"{option.section}: {{{option.name}: {json.dumps(_example_value(option), ensure_ascii=False)}}}"),
        ("environment", f"{option.environment_variable}={_example_word(option)}"),
    ]
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        if text:
            lines += wrap(f"{name:{width}}  {text}", WIDTH, subsequent_indent=" " * (width + 2))
    rules = [rule for rule in RULES if option.name in (*rule.reads, rule.option)]
    if rules:
        lines += ["", "Rules that read it"]
        for rule in rules:
            kind = "corrects" if rule.corrects else rule.severity
            told = find_option(option.name if rule.each else rule.option)
            flag = told.flag if told else rule.option
            value = " <value>" if rule.shows and told is not None and told.kind != "bool" else ""
            text = f"{rule.name} ({kind}): {flag}{value}: {_FIELD.sub(_field, rule.message)}"
            lines += wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines)


def _field(match: re.Match[str]) -> str:
    """What stands in a rule's text for a number or a name that only a configuration has."""
    return f"<{match[1].replace('_', ' ')}>"


def example(option: Option) -> str:
    """The option as it may be written on a command line."""
    word = _example_word(option)
    if option.kind == "bool":
        return option.flag if word == "true" else f"{option.flag} false"
    return f"{option.flag} {word}"


def _default(option: Option) -> str:
    if option.passed:
        return f"what {PASSED_TO[option.section]} has: {json.dumps(option.passed.default)}"
    if option.default is not None:
        return option.show(option.default)
    return f"not set; then {FOLLOWS[option.name]} counts" if option.name in FOLLOWS else "not set"


def _effect(option: Option) -> str:
    if option.effect is None:
        met = {"warn": "a run says so and goes on", "refuse": "a run that sets it is refused"}[str(option.unwired)]
        return f"nowhere yet: {met}"
    honours = option.details.honours
    only = f"; only {' or '.join(map(option.show, honours))} is honoured yet" if honours else ""
    return f"{option.effect}{only}"


def _example_value(option: Option) -> Any:
    if option.name in EXAMPLES:
        return json.loads(EXAMPLES[option.name])
    if option.kind == "bool":
        return option.default is not True
    if option.default not in (None, [], {}, ""):
        return option.default
    if option.choices:
        return option.choices[0]
    return {"int": 1, "float": 0.5, "bytes": 1048576, "list": ["a", "b"], "json": {}}.get(option.kind, "text")


def _example_word(option: Option) -> str:
    value = _example_value(option)
    return f"'{json.dumps(value)}'" if option.kind == "json" else option.show(value)
