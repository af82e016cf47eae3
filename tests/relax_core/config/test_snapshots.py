"""The snapshots of Megatron's and SGLang's options against the installed packages, and how they are read."""

import argparse
import enum
import json
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Literal, Optional, Tuple, Union  # noqa: UP035 (as Megatron writes them)

import pytest
import torch

from relax_core.config.passthrough import read_snapshot
from relax_core.engines import introspect as sglang
from relax_core.training import introspect as megatron
from relax_core.training import introspect_tables as tables

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    "section",
    [
        pytest.param("megatron", marks=pytest.mark.megatron),
        pytest.param("sglang", marks=pytest.mark.sglang),
    ],
)
def test_the_snapshot_is_what_is_installed(section: str):
    pytest.importorskip({"megatron": "megatron.core.package_info", "sglang": "sglang.version"}[section])
    command = [sys.executable, "docs/snapshots.py", "--check", section]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"run `python docs/snapshots.py`\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


@pytest.mark.megatron
def test_constructors_get_their_arguments_as_they_want_them():
    values = {
        "main_grads_dtype": "fp32",
        "autocast_dtype": "fp16",
        "moe_aux_loss_coeff": [0.5],
        "cp_comm_type": ["p2p", "a2a"],
        "fp8_param_gather": True,
        "bucket_size": 7,
        "hidden_size": 64,  # describes the model
        "params_dtype": "bf16",  # Relax decides
    }
    code = (
        "import json, sys\n"
        "from relax_core.training.introspect import constructor_arguments\n"
        "from relax_core.training.megatron import DistributedDataParallelConfig, OptimizerConfig, TransformerConfig\n"
        f"values = {values!r}\n"
        "given = {t: constructor_arguments(t, values) for t in ('transformer', 'optimizer', 'ddp')}\n"
        "TransformerConfig(num_layers=2, hidden_size=8, num_attention_heads=2,\n"
        "    **{k: v for k, v in given['transformer'].items() if k in ('autocast_dtype', 'moe_aux_loss_coeff')})\n"
        "OptimizerConfig(**given['optimizer'])\n"
        "DistributedDataParallelConfig(**given['ddp'])\n"
        "print('GIVEN', json.dumps(given, default=str))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.split("GIVEN ")[1]) == {
        "transformer": {
            "autocast_dtype": "torch.float16",
            "moe_aux_loss_coeff": 0.5,
            "cp_comm_type": ["p2p", "a2a"],
            "fp8_param": True,
        },
        "optimizer": {"main_grads_dtype": "torch.float32"},
        "ddp": {"fp8_param_gather": True, "bucket_size": 7},
    }


def test_the_tables_name_fields_that_exist():
    named = {one.name for one in read_snapshot("megatron").options}
    for table in (tables.FLAGS, tables.MORE_FLAGS, tables.NEGATIONS, tables.CHOICES, tables.SHAPE, tables.OWNED):
        assert set(table) <= named
    assert not tables.SHAPE & set(tables.OWNED)
    assert set(sglang.OWNED) <= {one.field for one in read_snapshot("sglang").options}


class Colour(enum.Enum):
    red = 1
    blue = 2


class Thing:
    pass


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (int, megatron.Written("int")),
        (Optional[float], megatron.Written("float", optional=True)),  # noqa: UP045
        (str | None, megatron.Written("text", optional=True)),
        (Literal["a", "b"], megatron.Written("choice", choices=("a", "b"))),
        (Optional[Literal["a"]], megatron.Written("choice", choices=("a",), optional=True)),  # noqa: UP045
        (Literal[None, 2, 3], megatron.Written("int", choices=(2, 3), optional=True)),
        (List[int], megatron.Written("list", item="int")),  # noqa: UP006
        (Tuple[int, int], megatron.Written("list", item="int", converts="tuple")),  # noqa: UP006
        (Union[float, List[float]], megatron.Written("list", item="float", converts="one")),  # noqa: UP006, UP007
        (int | list[int] | None, megatron.Written("json", optional=True)),
        (str | list | Thing | None, megatron.Written("text", optional=True)),
        (Dict[str, Any], megatron.Written("json")),  # noqa: UP006
        (torch.dtype, megatron.Written("choice", choices=("fp32", "bf16", "fp16"), converts="dtype")),
        (Colour, megatron.Written("choice", choices=("red", "blue"), converts="enum")),
        (Callable[[int], int], None),
        (Thing | None, None),
        (int | float, None),
        (Literal["a", 2], None),
        ("a name that only a type checker knows", None),
        (None, None),
    ],
)
def test_types_of_fields(annotation: Any, expected: megatron.Written | None):
    assert megatron.written(annotation) == expected


@dataclass
class First:
    epsilon: float = field(default=1, metadata={"argparse_meta": {"arg_names": ["--norm-epsilon"]}})
    bias: bool = field(default=True, metadata={"argparse_meta": {"arg_names": ["--disable-bias"]}})
    overlap: bool = True
    dtype: torch.dtype = torch.bfloat16
    colour: Colour = Colour.blue
    odd: int | Thing | bytes = 3
    hook: Callable[[], None] | None = None
    _inner: int = 3
    fp8_param: bool = False


@dataclass
class Second:
    overlap: bool = False
    bucket_size: int | None = None
    fp8_param_gather: bool = False


def test_dataclasses_become_options():
    options, left_out = megatron.options_of([("transformer", First), ("ddp", Second)])
    named = {one.name: one for one in options}
    assert list(named) == ["epsilon", "bias", "overlap", "dtype", "colour", "fp8_param_gather", "bucket_size"]
    assert left_out == {"odd": "an object: int | Thing | bytes", "hook": "a function", "_inner": "internal"}
    assert (named["epsilon"].flag, named["epsilon"].aliases) == ("--norm-epsilon", ("--epsilon",))
    assert repr(named["epsilon"].default) == "1.0"
    bias = named["bias"]
    assert (bias.flag, bias.negation, bias.negation_aliases) == ("--bias", "--disable-bias", ("--no-bias",))
    overlap = named["overlap"]
    assert overlap.targets == ("transformer", "ddp")
    assert (overlap.negation, overlap.negation_aliases) == ("--no-overlap", ("--disable-overlap",))
    assert (named["dtype"].default, named["colour"].default) == ("bf16", "blue")
    assert named["bucket_size"].flag == "--ddp-bucket-size"
    both = named["fp8_param_gather"]
    assert (both.field_of("transformer"), both.field_of("ddp")) == ("fp8_param", "fp8_param_gather")
    # without the second class the first one's own name stays
    assert [one.name for one in megatron.options_of([("transformer", First)])[0]][-1] == "fp8_param"


def test_two_meanings_of_a_flag_are_an_error():
    @dataclass
    class Clash:
        epsilon: float = field(default=1.0, metadata={"argparse_meta": {"arg_names": ["--other"]}})
        other: int = 1

    with pytest.raises(ValueError, match="--other"):
        megatron.options_of([("ddp", Clash)])


def test_arguments_of_a_parser_become_options():
    def odd(text: str) -> str:
        return text

    parser = argparse.ArgumentParser()
    parser.add_argument("--tp-size", "--tensor-parallel-size", "-tp", type=int, default=1)
    parser.add_argument("--on", action="store_true")
    parser.add_argument("--maybe", action=argparse.BooleanOptionalAction)
    parser.add_argument("--level", type=int, choices=[0, 1], default=0)
    parser.add_argument("--mode", choices={"b", "a"})
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--extra", type=json.loads)
    parser.add_argument("--watchdog", type=float, default=300)
    parser.add_argument("--file", dest="backend_file")
    parser.add_argument("--old-file", dest="backend_file")
    parser.add_argument("--odd", type=odd, default=3)
    parser.add_argument("--fast", dest="speed", action="store_const", const=9)
    parser.add_argument("--config")
    fields: dict[str, Any] = dict.fromkeys(("tp_size", "level", "on", "mode", "sizes", "extra", "odd", "hook"), int)
    fields |= {"maybe": bool | None, "speed": int, "watchdog": float, "backend_file": str | None}
    options, left_out = sglang.options_of(parser._actions, fields)
    named = {one.name: one for one in options}
    assert named["sglang_tp_size"].aliases == ("--sglang-tensor-parallel-size",)
    assert (named["sglang_on"].negation, named["sglang_on"].negation_aliases) == ("--no-sglang-on", ())
    assert named["sglang_maybe"].negation_aliases == ("--sglang-no-maybe",)
    assert (named["sglang_level"].kind, named["sglang_level"].choices) == ("int", (0, 1))
    assert (named["sglang_mode"].kind, named["sglang_mode"].choices) == ("choice", ("a", "b"))
    assert (named["sglang_sizes"].kind, named["sglang_sizes"].item) == ("list", "int")
    assert named["sglang_extra"].kind == "json"
    assert repr(named["sglang_watchdog"].default) == "300.0"
    assert (named["sglang_file"].field, named["sglang_file"].aliases) == ("backend_file", ("--sglang-old-file",))
    assert (named["sglang_odd"].kind, named["sglang_odd"].default) == ("text", None)
    assert left_out == {
        "-h": "no field of its own",
        "--fast": "stands for one value, 9",
        "--config": "no field of its own",
        "hook": "no argument of the command line",
    }
