"""Values by themselves: from YAML, from JSON and from Python; and hints at what happened to them."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from relax_core.config.mistyped import likely_cause, pasted, plain_dashes
from relax_core.config.options import BadValueError, find_option
from relax_core.config.plain import NotPlainError, read_json
from relax_core.config.sections import RelaxConfig


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1, "a": 2}', 'The key "a" is given twice.'),
        ('{"a": NaN}', "NaN is no finite number."),
        ('{"a": -Infinity}', "-Infinity is no finite number."),
        ("[" * 100_000, "It is nested more than 50 deep."),
        ("9" * 5000, "A number in it has too many digits."),
        ('{"a": 1,\n}', "at character 1 of line 2."),
    ],
)
def test_json_that_is_not_plain(text: str, reason: str) -> None:
    with pytest.raises(NotPlainError, match=reason.replace(".", r"\.")):
        read_json(text)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("seed", True, "expects a whole number."),
        ("seed", 10**30, "It needs more than 64 bits."),
        ("lr", float("inf"), "expects a finite number."),
        ("run_dir", 3, "expects text. Quote it."),
        ("run_dir", False, "YAML reads yes, no, on and off as true and false."),
        ("kl_loss_type", False, "YAML reads yes, no, on and off as true and false."),
        ("run_dir", "a\0b", "The character NUL may not be in it."),
        ("run_dir", "a\udcff", "Its bytes are no UTF-8 text."),
        ("resource", {"actor": [1, True]}, "true and false are no numbers."),
        ("resource", {1: [1, 1]}, "The key 1 is no text."),
        ("custom_args", {"a": float("nan")}, "nan is no finite number."),
        ("custom_args", {"a": {1, 2}}, "set is no type of JSON."),
        ("update_weight_buffer_size", "9" * 20 + "TB", "It needs more than 64 bits."),
        ("update_weight_buffer_size", "9" * 400 + ".5TB", "expects a size in bytes"),
        ("sglang_log_requests_level", 9, "each one of 0, 1, 2, 3."),
        ("moe_router_load_balancing_type", ["nope"], "each one of aux_loss"),
        ("sglang_json_model_override_args", "{bad", "expects the text of a JSON object."),
    ],
)
def test_no_option_takes(name: str, value: Any, reason: str) -> None:
    option = find_option(name)
    assert option is not None
    with pytest.raises(BadValueError) as caught:
        option.convert(value)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("section", "values", "reason"),
    [
        ("optimizer", {"seed": True}, "true and false are no numbers"),
        ("optimizer", {"seed": 10**30}, "It needs more than 64 bits"),
        ("run", {"run_dir": "a\0"}, "The character NUL"),
        ("run", {"custom_args": {"a": float("nan")}}, "nan is no finite number"),
        ("cluster", {"resource": {"actor": [1, True]}}, "true and false are no numbers"),
    ],
)
def test_python_may_say_no_more_than_a_run_file(section: str, values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        RelaxConfig.model_validate({section: values})


def test_errors_of_python_show_no_values() -> None:
    for values in ({"debug": {"http_proxy": ["hunter2"]}}, {"sglang": {"sglang_api_key": ["hunter2"]}}):
        with pytest.raises(ValidationError) as caught:
            RelaxConfig.model_validate(values)
        assert "hunter2" not in str(caught.value)


def test_an_assigned_value_is_checked_too() -> None:
    config = RelaxConfig()
    with pytest.raises(ValidationError):
        config.optimizer.seed = True
    config.optimizer.seed = 3
    assert RelaxConfig().optimizer.seed != 3


def test_a_configuration_survives_json() -> None:
    config = RelaxConfig.model_validate(
        {"run": {"custom_args": {"a": [1, None, {"b": 0.5}]}}, "megatron": {"moe_router_topk": 2}}
    )
    assert RelaxConfig.model_validate(json.loads(config.model_dump_json())) == config


def test_what_a_page_makes_of_a_dash() -> None:
    assert pasted("1e\u22126") == "It has the character U+2212, as pasted text does, where - is meant."
    assert pasted("\u201ca\u201d").endswith('where a straight " is meant.')
    assert pasted("plain") == ""
    assert plain_dashes("\u2013\u2013lr\u200b") == "--lr"


@pytest.mark.parametrize(
    ("words", "kind", "hint"),
    [
        (["'1e-6'"], "float", "The quotes are a part of the value here: leave them out."),
        (["1e-6,"], "float", "Leave the comma out."),
        (["None"], "int", "Write none to unset it."),
        (["[1,", "2]"], "list", "Items are words of their own: 1 2."),
        (["1,2"], "list", "Items are words of their own: 1 2."),
        (["{'a': 1}"], "json", "JSON takes double quotes inside"),
        (["{a: 1}"], "json", "put single quotes round the whole value."),
        (["$HOME"], "float", "A variable of the environment is written {env:NAME}"),
        (["fast"], "float", ""),
    ],
)
def test_what_happened_to_a_value(words: list[str], kind: str, hint: str) -> None:
    assert hint in likely_cause(words, kind, unsets=True)
    assert bool(hint) == bool(likely_cause(words, kind, unsets=True))
