"""Every option of the specification's table is there, with its type, default and choices.

``flags.tsv`` is a copy of the table without its descriptions.
"""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from relax_core.config.options import OPTIONS, SECTIONS
from relax_core.config.parser import parse_arguments
from relax_core.config.sizes import parse_bytes

TABLE = list(csv.DictReader(Path(__file__).with_name("flags.tsv").open(encoding="utf-8"), delimiter="\t"))

WITHOUT_A_ROW = (
    "custom_dataset_class",
    "custom_dataset_class_path",
    "loss_scale",
    "sft_async_prepack",
    "sft_invalid_multimodal_strategy",
    "sft_max_in_flight_steps",
    "task_type",
)
"""Options that the specification's text mentions and its table does not have."""

SECTION_OF = {
    "集群与资源配置": "cluster",
    "训练后端与模式": "backend",
    "检查点配置": "checkpoint",
    "数据配置": "data",
    "Rollout 配置": "rollout",
    "批处理配置": "batch",
    "并行配置": "parallel",
    "优化器配置": "optimizer",
    "算法配置": "algorithm",
    "参数冻结与选择性训练": "freeze",
    "SFT 配置": "sft",
    "评估配置": "eval",
    "Reward 配置": "reward",
    "GenRM（生成式奖励模型）": "genrm",
    "On-Policy Distillation（OPD）": "opd",
    "容错配置": "fault_tolerance",
    "弹性扩缩容配置": "scaling",
    "日志与监控配置": "tracking",
    "Router 配置": "router",
    "其他训练参数": "training",
    "调试与性能分析参数": "debug",
}

KINDS = {
    "flag": {"bool"},
    "bool": {"bool"},
    "int": {"int", "bytes"},
    "float": {"float"},
    "str": {"text", "choice"},
    "json": {"json"},
    "int (列表)": {"list"},
    "str (列表)": {"list"},
    # the FP16 rows state no type
    "": {"bool", "float"},
}

# A default in the table -> the default here, where it is no plain value. None: not set, and then what the table says.
NOT_PLAIN: dict[str, Any] = {
    "rollout_batch_size": None,  # required
    "initial_loss_scale": None,  # 2**32 is Megatron's own, 32768 the FP16 fallback
    "min_loss_scale": None,
    "use_precision_aware_optimizer": None,
    "store_param_remainders": None,
    "train_memory_margin_bytes": 1024**3,
    "scale_weight_sync_precheck_min_free_bytes": 512 * 1024**2,
    "profile_target": ["train_overall"],
    "slime_router_middleware_paths": [],
}


def name_of(flag: str) -> str:
    """The option of a row; `RELAX_X` is the environment variable of the option x."""
    return flag.split(" / ")[0].removeprefix("--").removeprefix("RELAX_").replace("-", "_").lower()


def default_of(row: dict[str, str]) -> Any:
    name, text = name_of(row["flag"]), row["default"]
    if name in NOT_PLAIN:
        return NOT_PLAIN[name]
    if text == "None":
        return None
    if row["type"] in ("int", "float") and text != "-":
        return parse_bytes(text) if OPTIONS[name].kind == "bytes" else json.loads(text)
    if row["type"] in ("flag", "bool"):
        return text == "True"
    return json.loads(text) if text[:1] in ("{", "[") else text


def test_the_copy_of_the_table_is_whole() -> None:
    assert len(TABLE) == 301  # 290 options, some of them twice
    assert len({name_of(row["flag"]) for row in TABLE}) == 296


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["flag"])
def test_a_row_is_an_option(row: dict[str, str]) -> None:
    option = OPTIONS[name_of(row["flag"])]
    assert option.kind in KINDS[row["type"]]
    # a dash: the table leaves the default to Megatron, SGLang or the reader
    if row["default"] != "-":
        assert option.default == default_of(row)
    if row["choices"] not in ("", "-"):
        stated = row["choices"].partition("当前为")[2] or row["choices"]
        assert set(stated.replace("、", ",").replace(" ", "").split(",")) <= set(option.choices)
    home = SECTION_OF[row["section"]]
    in_other_section = {"critic_load": "checkpoint", "critic_save": "checkpoint"}
    wanted = in_other_section.get(option.name, "sglang" if option.name.startswith("sglang_") else home)
    assert option.section == wanted


def test_options_that_only_the_text_mentions_are_there() -> None:
    assert not [name for name in WITHOUT_A_ROW if name not in OPTIONS]
    assert parse_arguments(["--no-scale-weight-sync-precheck"]) == {"scale_weight_sync_precheck": False}


def test_a_real_boolean_is_read() -> None:
    # bool("False") is true in Python
    assert parse_arguments(["--polling-mode", "False"]) == {"polling_mode": False}


def test_every_section_of_the_specification_is_a_model() -> None:
    assert set(SECTION_OF.values()) <= set(SECTIONS)


@pytest.mark.parametrize("option", list(OPTIONS.values()), ids=list(OPTIONS))
def test_every_option_is_described_in_both_languages(option) -> None:  # type: ignore[no-untyped-def]
    assert option.help.endswith((".", "`"))
    assert any("\u4e00" <= character <= "\u9fff" for character in option.help_zh)


@pytest.mark.parametrize("option", list(OPTIONS.values()), ids=list(OPTIONS))
def test_every_number_has_a_range_that_its_default_is_in(option) -> None:  # type: ignore[no-untyped-def]
    if option.kind in ("int", "float", "bytes"):
        assert option.range is not None
    if option.range is not None and option.default is not None:
        assert option.range.holds(option.default)
