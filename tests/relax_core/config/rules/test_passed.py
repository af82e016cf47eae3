"""Rules about options of Megatron-core and SGLang that Relax decides itself."""

from pathlib import Path
from typing import Any

import pytest
from rule_cases import Case, check_case, check_names, report_of

from relax_core.config.options import find_option
from relax_core.config.passthrough import pass_throughs
from relax_core.config.rules.passed import INSTEAD, OWNED, RULES, SAME_AS


def _case(option: str, value: Any, text: str, *kept: Any) -> tuple[str, Case]:
    return "relax-decides", Case({option: value}, text, dict.fromkeys([option][: len(kept)], *kept))


CASES: list[tuple[str, Case]] = [
    _case(
        "sglang_tp_size",
        2,
        "--sglang-tp-size 2: is set by Relax itself. Use --rollout-num-gpus-per-engine.",
        1,  # as Relax has it
    ),
    _case(
        "sglang_model_path", "other", "--sglang-model-path other: is set by Relax itself. Use --hf-checkpoint.", None
    ),
    _case("sglang_port", 30000, "--sglang-port 30000: is set by Relax itself. Relax chooses addresses that are free."),
    _case("sglang_pp_size", 2, "--sglang-pp-size 2: is set by Relax itself, to 1.", 1),
    _case("sglang_random_seed", 1, "--sglang-random-seed 1: is set by Relax itself. Use --rollout-seed."),
    _case("params_dtype", "bf16", "--params-dtype bf16: is set by Relax itself. Use --bf16."),
    _case("hidden_dropout", 0.1, "--hidden-dropout 0.1: is set by Relax itself, to 0.0. Leave it out.", 0.0),
    _case("persist_layer_norm", True, "--persist-layer-norm: is set by Relax itself, to false.", False),
]


@pytest.mark.parametrize(("name", "case"), CASES, ids=[f"{name} {next(iter(case.broken))}" for name, case in CASES])
def test_rules(tmp_path: Path, name: str, case: Case) -> None:
    check_case(tmp_path, RULES, name, case)


def test_every_rule_has_a_case() -> None:
    check_names(RULES, CASES)


def test_the_model_of_hf_checkpoint_may_be_named_twice(tmp_path: Path) -> None:
    told = report_of(tmp_path, {"sglang_model_path": "{folder}/model"}).errors
    assert [str(problem) for problem in told] == []


def test_secrets_are_not_shown(tmp_path: Path) -> None:
    for name in ("sglang_api_key", "sglang_admin_api_key", "sglang_ssl_keyfile_password"):
        problems = [str(problem) for problem in report_of(tmp_path, {name: "hunter2"}).problems]
        assert any("***: is set by Relax itself" in problem for problem in problems)
        assert not any("hunter2" in problem for problem in problems)


def test_every_name_is_one_that_relax_decides() -> None:
    assert set(INSTEAD) <= set(OWNED)
    assert set(SAME_AS) <= set(OWNED)


def test_no_value_but_an_agreeing_one_passes(tmp_path: Path) -> None:
    for name in OWNED:
        option, passed = find_option(name), pass_throughs()[name]
        assert option is not None
        values: dict[str, list[Any]] = {
            "bool": [True, False],
            "int": [0, 1, 7],
            "float": [0.0, 0.7],
            "text": ["x"],
            "choice": list(passed.choices),
            "list": [[]],
            "json": [{"x": 1}],
        }
        for value in values[passed.kind]:
            if name in SAME_AS and value == 1:
                continue
            told = [one for one in report_of(tmp_path, {name: value}).problems if "is set by Relax itself" in str(one)]
            assert [one.option for one in told] == ([] if value in passed.agrees else [option.flag])
