from pathlib import Path
from typing import Any

import pytest
from configs import configs, thorough, valid_config
from hypothesis import given

from data.errors import UserError
from relax_core.config.options import OPTIONS, with_options
from relax_core.config.parser import mark_derived, read_config
from relax_core.config.resolve import resolve
from relax_core.config.run_file import MAY_CHANGE, differences, dump, load, other_layout, refuse_other_configuration
from relax_core.config.sections import RelaxConfig
from relax_core.config.sources import Source


def all_sources(**sources: Source) -> dict[str, Source]:
    return {**dict.fromkeys(OPTIONS, "default"), **sources}


@thorough
@given(configs)
def test_what_is_written_is_read_back_equal(config: RelaxConfig) -> None:
    sources = all_sources(lr="file run.yaml", seed="command line", eps_clip_high="derived")
    assert load(dump(config, sources)) == (config, sources)


def test_the_file_is_readable_and_names_the_sources() -> None:
    text = dump(RelaxConfig(), all_sources(rollout_batch_size="command line"))
    assert "rollout:\n  num_rollout: null\n" in text
    assert "sources:\n  rollout_batch_size: command line\n" in text


def test_a_runs_file_is_a_run_file_of_what_was_given(tmp_path: Path) -> None:
    argv = ["--rollout-batch-size", "8", "--eval-prompt-data", "x.jsonl", "--moe-router-topk", "2"]
    given_config, sources, _ = read_config(argv, {})
    config = resolve(given_config)
    file = tmp_path / "config.yaml"
    file.write_text(dump(config, mark_derived(given_config, config, sources)))
    again, sources, _ = read_config(["--config", str(file)], {})
    assert resolve(again) == config
    from_file = {name for name, source in sources.items() if source == f"file {file}"}
    assert from_file == {"rollout_batch_size", "eval_prompt_data", "moe_router_topk"}
    # what had been derived from 8 prompts is derived anew, not in the way
    more, _, _ = read_config(["--config", str(file), "--rollout-batch-size", "16"], {})
    assert resolve(more).batch.global_batch_size == 16


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty or cut off"),
        ("rollout: {", "is no valid YAML"),
        ("rollout:\n  gone_option: 1\n", "does not fit this version of Relax: rollout.gone_option"),
    ],
)
def test_a_damaged_file_is_refused(text: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        load(text)


def test_differences_are_named_with_both_values() -> None:
    new = with_options(RelaxConfig(), {"lr": 1.0, "num_rollout": 3})
    assert differences(RelaxConfig(), new) == [("num_rollout", None, 3), ("lr", 1e-6, 1.0)]
    assert differences(RelaxConfig(), RelaxConfig()) == []


def test_another_configuration_is_refused_with_what_differs(tmp_path: Path) -> None:
    old = resolve(valid_config(tmp_path))
    new = resolve(valid_config(tmp_path, lr=1.0, rollout_temperature=0.7, num_rollout=9))
    with pytest.raises(UserError) as caught:
        refuse_other_configuration(old, new)
    text = str(caught.value)
    assert "what differs: --rollout-temperature, --lr." in text
    assert "--lr: the run has 1e-06, now it is 1.0." in text
    assert "--num-rollout" not in text
    assert "--run-dir" in text


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"num_rollout": 9},
        {"num_epoch": 2},
        {"run_dir": "elsewhere", "debug": True},
        {"save_interval": 2, "save_hf": "out"},
        {"eval_interval": 2, "eval_prompt_data": ["x.jsonl"], "eval_temperature": 0.0},
        {"rm_type": "gsm8k"},
        {"resource": {"actor": (1, 2), "rollout": (1, 4)}},
        {"distributed_timeout_minutes": 30, "engine_start_timeout": 10.0},
        {"sglang_log_level": "info", "sglang_mem_fraction_static": 0.5},
    ],
    ids=str,
)
def test_what_may_change_between_restarts(tmp_path: Path, change: dict[str, Any]) -> None:
    refuse_other_configuration(resolve(valid_config(tmp_path)), resolve(valid_config(tmp_path, **change)))


@pytest.mark.parametrize(
    "name",
    [
        "hf_checkpoint",
        "load",
        "save",
        "prompt_data",
        "rollout_seed",
        "lr",
        "bf16",
        "global_batch_size",
        "advantage_estimator",
    ],
)
def test_what_may_not_change_between_restarts(name: str) -> None:
    assert name not in MAY_CHANGE


def test_a_file_that_was_cut_off_is_refused_wherever_it_was_cut(tmp_path: Path) -> None:
    lines = dump(RelaxConfig(), all_sources(seed="command line")).splitlines(keepends=True)
    file = tmp_path / "config.yaml"
    for count in range(1, len(lines), 7):
        cut = "".join(lines[:count])
        with pytest.raises(UserError, match="is cut off"):
            load(cut)
        file.write_text(cut)
        with pytest.raises(UserError, match="is cut off"):
            read_config(["--config", str(file)], {})
    load("".join(lines).replace("\n", "\r\n"))


def test_what_a_person_changed_in_a_runs_file_counts_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given_config, sources, _ = read_config(["--rollout-batch-size", "8", "--moe-router-topk", "2"], {})
    config = resolve(given_config)
    text = dump(config, mark_derived(given_config, config, sources))
    changed = text.replace("  lr: 1.0e-06", "  lr: 5.0e-06").replace("  moe_router_topk: 2", "  moe_router_topk: 4")
    changed = changed.replace("  rollout_batch_size: command line\n", "")
    file = tmp_path / "config.yaml"
    file.write_text(changed)
    again, sources, notes = read_config(["--config", str(file)], {})
    assert (again.optimizer.lr, again.rollout.rollout_batch_size) == (5e-6, 8)
    assert again.megatron.model_extra == {"moe_router_topk": 4}
    assert sources["lr"] == f"file {file}"
    assert sources["global_batch_size"] == "default"  # derived anew
    [note] = notes
    assert note.severity == "warning"
    assert "was changed after Relax wrote it" in note.reason
    load(changed)
    assert "was changed after Relax wrote it" in caplog.text


@pytest.mark.parametrize(
    ("sources", "reason"),
    [
        ("[a]", "sources in FILE a: expects the source of each option below it."),
        ("{seed: 3}", "sources.seed in FILE 3: is no source."),
        ("{seed: }", "sources.seed in FILE null: is no source."),
    ],
)
def test_sources_that_are_none(tmp_path: Path, sources: str, reason: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"optimizer: {{seed: 9}}\nsources: {sources}\n")
    with pytest.raises(UserError) as caught:
        read_config(["--config", str(file)], {})
    assert reason.replace("FILE", str(file)) in str(caught.value)


def test_a_refusal_shows_no_secret(tmp_path: Path) -> None:
    old = resolve(valid_config(tmp_path, custom_args={"API_KEY": "hunter2"}))
    with pytest.raises(UserError) as caught:
        refuse_other_configuration(old, resolve(valid_config(tmp_path, custom_args={"API_KEY": "hunter3"})))
    assert "--custom-args" in str(caught.value)
    assert "hunter" not in str(caught.value)


def test_another_layout_is_allowed_and_told_where_it_changes_the_trainer() -> None:
    one = RelaxConfig()
    two = with_options(one, {"tensor_model_parallel_size": 2, "resource": {"actor": (1, 2), "rollout": (1, 1)}})
    refuse_other_configuration(one, two)
    text = other_layout(one, two)
    assert "--tensor-model-parallel-size 1 -> 2" in text
    assert "--resource" in text
    assert "nothing is generated again" in text
    more_engines = with_options(one, {"resource": {"actor": (1, 1), "rollout": (1, 4)}})
    assert other_layout(one, more_engines) == other_layout(one, one) == ""
