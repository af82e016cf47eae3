"""What holds for every rule."""

import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
from configs import _values, configs, model_folder, thorough, valid_config
from hypothesis import given
from hypothesis import strategies as st

from relax_core.config.examine import examine
from relax_core.config.model_files import read_model_folder
from relax_core.config.options import OPTIONS, all_options, find_option, get_option, with_options
from relax_core.config.resolve import resolve
from relax_core.config.rules import RULES
from relax_core.config.rules.base import Rule
from relax_core.config.sections import RelaxConfig
from relax_core.config.values import SIZES, Values

_PASSED = {name: option for name, option in all_options().items() if option.passed}
passed_options = st.lists(
    st.sampled_from(sorted(_PASSED)).flatmap(lambda name: st.tuples(st.just(name), _values(_PASSED[name]))), max_size=20
).map(lambda pairs: {name: value for name, value in pairs if value is not None})
"""Options of Megatron and SGLang with any typed values."""


def judged(rule: Rule, config: RelaxConfig) -> bool:
    """Whether every option that a rule reads is right by itself: else the rule is left out."""
    for name in rule.reads:
        allowed = OPTIONS[name].range if name in OPTIONS else None
        value = get_option(config, name)
        if allowed is not None and value is not None and not allowed.holds(value):
            return False
    return True


def reads_of(rule: Rule, values: Values) -> set[str]:
    """What a rule reads of a configuration; it is told in full."""
    values.read.clear()
    for problem in rule.problems(values, {}):
        assert str(problem).startswith("--"), rule.name
        assert "{" not in problem.reason.replace("{rollout_id}", "").replace("{rank}", ""), rule.name
    if rule.corrects is not None:
        rule.corrects(values)
    return set(values.read)


def test_names_are_unique() -> None:
    names = [rule.name for rule in RULES]
    assert len(names) == len(set(names))
    assert all(set(name) <= set(string.ascii_letters + string.digits + "-'") for name in names)


def test_there_are_enough() -> None:
    assert len(RULES) >= 60


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_is_whole(rule: Rule) -> None:
    assert (rule.broken is None) != (rule.each is None)
    assert find_option(rule.option) is not None
    assert all(find_option(name) is not None for name in rule.reads)
    assert len(rule.reads) == len(set(rule.reads)), "an option is read once"
    if rule.corrects is None:
        assert not rule.name.startswith("corrects")


def test_a_valid_configuration_reads_what_the_rules_say(tmp_path: Path) -> None:
    report = examine(valid_config(tmp_path))
    values = Values(report.config, report.model, frozenset())
    for rule in RULES:
        assert reads_of(rule, values) <= set(rule.reads), rule.name


def _configurations(config: RelaxConfig, folder: Path) -> Iterator[Values]:
    model = read_model_folder(str(model_folder(folder / "model")))
    for given_names in (frozenset(), frozenset(OPTIONS)):
        yield Values(config, model, given_names)
    yield Values(resolve(config, model), model, frozenset())


@thorough
@given(config=configs, passed=passed_options)
def test_any_configuration_reads_what_the_rules_say(
    config: RelaxConfig, passed: dict[str, object], tmp_path: Path
) -> None:
    for values in _configurations(with_options(config, passed), tmp_path):
        for rule in RULES:
            if judged(rule, values.config):
                unsaid = reads_of(rule, values) - set(rule.reads)
                assert not unsaid, f"{rule.name} reads {sorted(unsaid)} too"


@thorough
@given(config=configs)
def test_what_a_rule_corrects_stays_right(config: RelaxConfig, tmp_path: Path) -> None:
    folder = str(model_folder(tmp_path / "model"))
    config = with_options(config, {"hf_checkpoint": folder})
    corrected = examine(config).config
    values = Values(corrected, read_model_folder(folder), frozenset())
    for rule in RULES:
        if rule.corrects is not None and judged(rule, corrected) and list(rule.problems(values, {})):
            assert rule.corrects(values) == {name: get_option(corrected, name) for name in rule.corrects(values)}


def test_texts_name_options_and_sizes_that_exist() -> None:
    for rule in RULES:
        fields = {field for text in (rule.message, rule.fix) for _, field, _, _ in string.Formatter().parse(text)}
        for field in fields - {None}:
            assert field is not None
            known = find_option(field) is not None or field in SIZES
            assert known or rule.each is not None, f"{rule.name}: {field}"


def test_texts_name_flags_that_exist() -> None:
    known = {option.flag for option in all_options().values()}
    known |= {f"--no-{flag[2:]}" for flag in known}
    for rule in RULES:
        for flag in re.findall(r"--[a-z][a-z0-9-]*[a-z0-9]", f"{rule.message} {rule.fix}"):
            assert flag in known, f"{rule.name}: {flag}"


def test_a_rule_is_left_out_where_its_options_are_wrong_already(tmp_path: Path) -> None:
    # 0 devices of an engine divide nothing: that it must be 1 or more is all there is to say
    [problem] = examine(valid_config(tmp_path, rollout_num_gpus_per_engine=0)).errors
    assert str(problem) == "--rollout-num-gpus-per-engine 0: must be 1 or more."
