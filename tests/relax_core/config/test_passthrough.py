"""The options that are passed through, as the shipped snapshots have them. Needs neither Megatron nor SGLang."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from relax_core.config.passthrough import (
    SECTIONS,
    PassThrough,
    Snapshot,
    flag_of,
    parse_snapshot,
    pass_through_flags,
    pass_throughs,
    read_snapshot,
    server_words,
    snapshot_path,
    snapshot_version,
    spelling_clashes,
)

ROOT = Path(__file__).resolve().parents[3]


def option(name: str, kind: str = "int", **values: object) -> PassThrough:
    """A made-up option of SGLang."""
    given = {"section": "sglang", "flag": flag_of(name), "targets": ("server",), "field": name.removeprefix("sglang_")}
    return PassThrough(**{"name": name, "kind": kind, **given, **values})  # type: ignore[arg-type]


@pytest.mark.parametrize("section", SECTIONS)
def test_reading_and_writing_a_snapshot_are_inverse(section: str):
    text = snapshot_path(section).read_text()
    snapshot = parse_snapshot(section, text)
    assert snapshot.text() == text
    assert parse_snapshot(section, snapshot.text()) == snapshot
    # an option a line, so that a new version's differences can be read
    rows = [line for line in text.splitlines() if '"name"' in line]
    assert [json.loads(line.rstrip(","))["name"] for line in rows] == [one.name for one in snapshot.options]


def test_what_follows_from_the_rest_is_not_in_the_file():
    plain = option("sglang_max_prefill", default=3, optional=False)
    assert Snapshot("p", "1", (plain,)).text().splitlines()[4] == (
        '  {"name": "sglang_max_prefill", "kind": "int", "default": 3}'
    )
    switch = option("sglang_x", "bool", default=False, optional=False, negation="--no-sglang-x", renamed=(("a", "b"),))
    assert parse_snapshot("sglang", Snapshot("p", "1", (switch,)).text()).options == (switch,)


def test_every_option_is_complete():
    for one in pass_throughs().values():
        assert (one.kind == "choice") <= bool(one.choices), one
        assert all(isinstance(choice, str) for choice in one.choices) or one.kind == "int", one
        assert (one.kind == "list") == bool(one.item), one
        assert (one.kind == "bool") == (one.negation is not None), one
        assert one.optional or one.default is not None or one.name == "sglang_model_path", one
        assert one.role == "owned" or not one.agrees, one
        if one.default is not None:
            python = {"bool": bool, "int": int, "float": float, "text": str, "choice": str, "list": list}
            assert type(one.default) is python.get(one.kind, type(one.default)), one
        if one.kind == "choice" and one.default is not None:
            assert one.default in one.choices, one
        assert one.section == "sglang" or set(one.targets) <= {"transformer", "optimizer", "ddp"}, one
        assert one.section == "megatron" or (one.targets == ("server",) and one.flag.startswith("--sglang-")), one


def test_no_spelling_belongs_to_two_options():
    assert spelling_clashes(pass_throughs().values()) == {}
    assert spelling_clashes([option("sglang_a"), option("sglang_b", aliases=("--sglang-a",))]) == {
        "--sglang-a": ["sglang_a", "sglang_b"]
    }


@pytest.mark.parametrize(
    ("flag", "name", "on"),
    [
        ("--norm-epsilon", "layernorm_epsilon", True),
        ("--layernorm-epsilon", "layernorm_epsilon", True),
        ("--num-experts", "num_moe_experts", True),
        ("--moe-router-topk", "moe_router_topk", True),
        ("--disable-bias-linear", "add_bias_linear", False),
        ("--add-bias-linear", "add_bias_linear", True),
        ("--no-rope-fusion", "apply_rope_fusion", False),
        ("--no-masked-softmax-fusion", "masked_softmax_fusion", False),
        ("--no-bias-swiglu-fusion", "bias_activation_fusion", False),
        ("--no-bias-gelu-fusion", "bias_activation_fusion", False),
        ("--no-gradient-accumulation-fusion", "gradient_accumulation_fusion", False),
        ("--accumulate-allreduce-grads-in-fp32", "grad_reduce_in_fp32", True),
        ("--ddp-bucket-size", "bucket_size", True),
        ("--main-grads-dtype", "main_grads_dtype", True),
        ("--fp8-param-gather", "fp8_param_gather", True),
        ("--sglang-chunked-prefill-size", "sglang_chunked_prefill_size", True),
        ("--sglang-tensor-parallel-size", "sglang_tp_size", True),
        ("--sglang-fp8-gemm-backend", "sglang_fp8_gemm_backend", True),
        ("--no-sglang-trust-remote-code", "sglang_trust_remote_code", False),
        ("--sglang-no-dllm-fdfo", "sglang_dllm_fdfo", False),
    ],
)
def test_flags_are_those_that_the_packages_use(flag: str, name: str, on: bool):
    found, sense = pass_through_flags()[flag]
    assert (found.name, sense) == (name, on)


def test_one_flag_may_set_differently_named_fields():
    gather = pass_throughs()["fp8_param_gather"]
    assert {target: gather.field_of(target) for target in gather.targets} == {
        "transformer": "fp8_param",
        "ddp": "fp8_param_gather",
    }


def test_roles():
    roles = {name: one.role for name, one in pass_throughs().items()}
    assert roles["hidden_size"] == roles["moe_router_topk"] == roles["q_lora_rank"] == "shape"
    assert roles["params_dtype"] == roles["calculate_per_token_loss"] == roles["sglang_port"] == "owned"
    assert roles["moe_aux_loss_coeff"] == roles["bucket_size"] == roles["sglang_chunked_prefill_size"] == "passed"
    assert pass_throughs()["calculate_per_token_loss"].agrees == (True,)
    assert pass_throughs()["params_dtype"].agrees == ()
    assert set(Counter(roles.values())) == {"passed", "shape", "owned"}


def test_what_a_command_line_cannot_express_is_named_with_the_reason():
    assert read_snapshot("megatron").left_out["activation_func"] == "a function"
    assert "stat_loggers" in read_snapshot("sglang").left_out
    assert all(snapshot_version(section)[0].isdigit() for section in SECTIONS)


@pytest.mark.parametrize(
    ("one", "value", "words"),
    [
        (option("sglang_a_b"), 3, ("--a-b", "3")),
        (option("sglang_a"), None, ()),
        (option("sglang_a", "bool"), True, ("--a",)),
        (option("sglang_a", "bool"), False, ()),
        (option("sglang_a", "bool", negation_aliases=("--sglang-no-a",)), False, ("--no-a",)),
        (option("sglang_a", "list", item="int"), [1, 2], ("--a", "1", "2")),
        (option("sglang_a", "json"), {"b": [1]}, ("--a", '{"b": [1]}')),
        (option("sglang_a", "json"), [1], ("--a", "[1]")),
    ],
)
def test_words_of_the_servers_command_line(one: PassThrough, value: object, words: tuple[str, ...]):
    assert server_words(one, value) == words


def test_reading_is_light():
    """Both snapshots are read when they are first asked for, and by the standard library alone."""
    code = (
        "import importlib.util, sys\n"
        "spec = importlib.util.spec_from_file_location('passthrough', 'relax_core/config/passthrough.py')\n"
        "module = sys.modules['passthrough'] = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "before = module.read_snapshot.cache_info().currsize\n"
        "assert len(module.pass_throughs()) > 700 and before == 0\n"
        "print({name.split('.')[0] for name in sys.modules} - {*sys.stdlib_module_names, '__main__'})\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "{'passthrough'}"
