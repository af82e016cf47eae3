"""The form of the deployments, as a JSON Schema, without a server."""

from typing import Any

import pytest
from jsonschema import Draft202012Validator
from prefect.utilities.callables import parameter_schema

from flows.deployed.form import SubmittedConfig, given_options
from flows.deployed.train import train
from relax_core.config import RelaxConfig
from relax_core.config.options import OPTIONS


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """What Prefect makes of the flow's signature."""
    return parameter_schema(train).model_dump()


def fields(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    sections = schema["definitions"]["SubmittedConfig"]["properties"].values()
    names = [(section.get("$ref") or section["allOf"][0]["$ref"]).rsplit("/", 1)[1] for section in sections]
    return {key: one for name in names for key, one in schema["definitions"][name]["properties"].items()}


def test_every_option_is_in_the_form_under_its_flag_with_its_help(schema: dict[str, Any]) -> None:
    shown = fields(schema)
    assert set(shown) == set(OPTIONS)
    for name, field in shown.items():
        assert field["title"] == OPTIONS[name].flag
        assert field["description"].startswith(" ".join(OPTIONS[name].help.split()))


def test_nothing_is_filled_in_before_a_person_does(schema: dict[str, Any]) -> None:
    # the interface sends defaults as if they were given, and false for a switch
    shown = fields(schema)
    assert not [name for name, field in shown.items() if "default" in field or field.get("type") == "boolean"]
    assert "Default: 600." in shown["engine_start_timeout"]["description"]
    assert shown["debug"]["enum"] == [True, False]


def test_an_option_that_may_be_unset_has_one_kind_of_field(schema: dict[str, Any]) -> None:
    assert fields(schema)["run_dir"]["type"] == "string"  # not a choice between text and nothing


@pytest.mark.parametrize(
    "config",
    [
        {"rollout": {"rollout_batch_size": 0}},  # its range begins with 1
        {"rollout": {"rollout_batch_size": "many"}},
        {"rolout": {}},  # no such section
        {"run": {"rundir": "x"}},
        {"algorithm": {"advantage_estimator": 3}},
        {"run": {"debug": "perhaps"}},
    ],
)
def test_what_no_option_can_be_is_refused_by_the_schema(schema: dict[str, Any], config: dict[str, Any]) -> None:
    document = {**schema, "$defs": schema["definitions"]}
    assert list(Draft202012Validator(document).iter_errors({"config": config}))


def test_only_what_was_given_is_given() -> None:
    config = SubmittedConfig.model_validate({"optimizer": {"lr": 1e-6}, "megatron": {"deterministic_mode": True}})
    assert given_options(config) == {"optimizer": {"lr": 1e-6}, "megatron": {"deterministic_mode": True}}
    assert given_options(SubmittedConfig()) == {}


def test_the_schema_of_the_run_file_is_as_before() -> None:
    assert "default" in RelaxConfig.model_json_schema()["$defs"]["RunSection"]["properties"]["run_dir"]
