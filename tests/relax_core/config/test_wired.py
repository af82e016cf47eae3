"""No switch is dead: what is marked as honoured is read where it says, and what is read is marked."""

import ast
from functools import cache
from pathlib import Path

import pytest

from relax_core.config.options import OPTIONS, Option, all_options, with_options
from relax_core.config.sections import RelaxConfig
from relax_core.config.wired import honoured, unwired_options, unwired_problems
from relax_core.rewards.registry import builtin_rewards

ROOT = Path(__file__).resolve().parents[3]

WHOLE = {"relax_core/engines/spec.py": "sglang"}
"""Modules that take a section as a whole: its options are read there without being named."""


@cache
def names_in(path: str) -> frozenset[str]:
    """Attributes, and texts that are no docstring, of a module."""
    tree = ast.parse((ROOT / path).read_text())
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    names |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return frozenset(names)


@cache
def reads_of_options() -> frozenset[tuple[str, str]]:
    """(section, name) of every `.section.name` outside the configuration itself."""
    found = set()
    for layer in ("data", "relax_core", "tasks", "flows"):
        for path in (ROOT / layer).rglob("*.py"):
            if "relax_core/config/" in path.as_posix():
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
                    found.add((node.value.attr, node.attr))
    return frozenset(found)


OF_REWARDS = {name for spec in builtin_rewards().values() for name in spec.options}
"""Options that built-in rewards ask for by name: they are read where rewards are configured."""

WIRED = [option for option in OPTIONS.values() if option.effect]


@pytest.mark.parametrize("option", WIRED, ids=lambda option: option.name)
def test_an_honoured_option_is_read_in_the_module_that_it_names(option: Option) -> None:
    assert option.effect is not None
    assert (ROOT / option.effect).is_file()
    if option.effect == "relax_core/rewards/choice.py" and option.name in OF_REWARDS:
        return
    one_value = option.details.honours is not None and len(option.details.honours) == 1
    if one_value or WHOLE.get(option.effect) == option.section:
        return
    assert {option.name, option.flag} & names_in(option.effect)


def test_an_option_that_is_read_is_marked_as_honoured() -> None:
    read = {name for section, name in reads_of_options() if name in OPTIONS and OPTIONS[name].section == section}
    assert not [name for name in sorted(read) if OPTIONS[name].unwired]


def test_options_that_are_passed_through_name_their_constructor() -> None:
    for option in all_options().values():
        if option.passed:
            assert (ROOT / str(option.effect)).is_file(), option.name


def test_a_default_configuration_has_nothing_that_is_not_honoured() -> None:
    assert not list(unwired_problems(RelaxConfig(), {}))
    assert all(honoured(option, option.default) for option in OPTIONS.values())


@pytest.mark.parametrize("option", unwired_options(), ids=lambda option: option.name)
def test_setting_an_option_that_nothing_honours_is_told(option: Option) -> None:
    value = {
        "bool": option.default is not True,
        "int": 7,
        "bytes": 7,
        "float": 0.7,
        "text": "x",
        "choice": next((choice for choice in option.choices if choice != option.default), None),
        "list": ["x"],
        "json": {"x": "y"},
    }[option.kind]
    if value is None or value == option.default:
        pytest.skip("it has one value")
    config = with_options(RelaxConfig(), {option.name: value})
    [problem] = unwired_problems(config, {})
    assert problem.option == option.flag
    assert problem.severity == {"warn": "warning", "refuse": "error"}[str(option.unwired)]
    anyway = with_options(config, {"allow_unwired": True})
    assert [problem.severity for problem in unwired_problems(anyway, {})] == ["warning"]
