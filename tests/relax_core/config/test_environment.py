from pathlib import Path

import pytest

from data.errors import UserError
from relax_core.config.environment import read_environment_file
from relax_core.config.parser import read_config


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_variable_sets_its_option_and_is_named_as_the_source() -> None:
    config, sources, _ = read_config([], {"RELAX_LR": "1e-5", "RELAX_ROLLOUT_STOP": "'a b' c", "HOME": "/"})
    assert config.optimizer.lr == 1e-5
    assert config.rollout.rollout_stop == ["a b", "c"]
    assert sources["lr"] == "environment RELAX_LR"
    assert sources["seed"] == "default"


def test_the_order_is_default_file_environment_command_line_custom_configuration() -> None:
    Path("run.yaml").write_text("optimizer: {lr: 1, min_lr: 1, adam_eps: 1, weight_decay: 1}\n")
    Path("custom.yaml").write_text("weight_decay: 4\n")
    environ = {"RELAX_MIN_LR": "2", "RELAX_ADAM_EPS": "2", "RELAX_WEIGHT_DECAY": "2"}
    argv = ["--config", "run.yaml", "--adam-eps", "3", "--weight-decay", "3", "--custom-config-path", "custom.yaml"]
    config, sources, _ = read_config(argv, environ)
    options = config.optimizer
    assert (options.lr, options.min_lr, options.adam_eps, options.weight_decay, options.clip_grad) == (1, 2, 3, 4, 1.0)
    assert [sources[name] for name in ("lr", "min_lr", "adam_eps", "weight_decay", "clip_grad")] == [
        "file run.yaml",
        "environment RELAX_MIN_LR",
        "command line",
        "custom config custom.yaml",
        "default",
    ]


def test_variables_of_the_specification_are_options() -> None:
    environ = {"RELAX_SFT_TQ_SHARDS": "2", "RELAX_SCALE_WEIGHT_SYNC_PRECHECK_MIN_FREE_BYTES": "536870912"}
    config, _, _ = read_config([], environ)
    assert config.sft.sft_tq_shards == 2
    assert config.scaling.scale_weight_sync_precheck_min_free_bytes == 512 * 1024**2


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"RELAX_LR": "fast"}, "RELAX_LR fast: expects a finite number."),
        ({"RELAX_ROLLOUT_STOP": "'a"}, "A quote is not closed."),
        ({"RELAX_RESOURCE": "{actor"}, "RELAX_RESOURCE {actor: expects a JSON object"),
    ],
)
def test_a_bad_variable_is_an_error(environ: dict[str, str], text: str) -> None:
    with pytest.raises(UserError) as caught:
        read_config([], environ)
    assert text in str(caught.value)


def test_a_variable_that_names_no_option_is_told_with_the_nearest() -> None:
    _, _, notes = read_config([], {"RELAX_ROLLOUT_BACH_SIZE": "8", "RELAX_HOME": "/x"})
    assert [str(note) for note in notes] == [
        "RELAX_ROLLOUT_BACH_SIZE: names no option, so that it has no effect. Did you mean RELAX_ROLLOUT_BATCH_SIZE?"
    ]
    assert notes[0].severity == "warning"


def test_the_environment_file_is_read_where_it_is_expected_and_its_options_count_below_the_environment() -> None:
    Path("configs").mkdir()
    Path("configs/env.yaml").write_text('env_vars:\n  NCCL_DEBUG: "WARN"\n  RELAX_LR: 3\n  RELAX_SEED: "5"\n')
    assert read_environment_file(None)[0] == {"NCCL_DEBUG": "WARN", "RELAX_LR": "3", "RELAX_SEED": "5"}
    config, sources, _ = read_config([], {"RELAX_SEED": "7"})
    assert (config.optimizer.lr, config.optimizer.seed) == (3, 7)
    assert sources["lr"] == "environment RELAX_LR of the environment file"
    assert sources["seed"] == "environment RELAX_SEED"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("env_vars: {A: true}", 'env_vars.A in FILE true: expects text. Write "true" or "1", quoted.'),
        ("env_vars: {A: [1]}", "env_vars.A in FILE 1: expects text."),
        ("env_vars: {1A: x}", "env_vars.1A in FILE: is no name of an environment variable."),
        ("pip: [torch]", "pip in FILE: is not read"),
        ("env_vars: x", "env_vars in FILE x: expects NAME: value below it"),
        ("- a", "--env-file FILE: holds no `env_vars:`."),
        ("env_vars: {", "--env-file FILE: is no valid YAML in line 1"),
    ],
)
def test_a_wrong_environment_file_is_an_error(content: str, text: str) -> None:
    Path("env.yaml").write_text(content)
    with pytest.raises(UserError) as caught:
        read_config(["--env-file", "env.yaml"], {})
    assert text.replace("FILE", "env.yaml") in str(caught.value)


def test_a_missing_environment_file_is_an_error_only_when_it_was_named() -> None:
    assert read_environment_file(None) == ({}, [])
    with pytest.raises(UserError, match=r"--env-file no.yaml: cannot be read: No such file"):
        read_config(["--env-file", "no.yaml"], {})


@pytest.mark.parametrize(
    ("variable", "fix"),
    [
        ("relax_lr", "Names are in capitals: RELAX_LR."),
        ("RELAX_lr", "Names are in capitals: RELAX_LR."),
        ("RELAX-LR", "Names are in capitals: RELAX_LR."),
        ("RELAX_CONFIG", "A run file is named on the command line: --config FILE."),
        ("RELAX_NO_COLOCATE", "Write RELAX_COLOCATE=false."),
        ("RELAX_NORM_EPSILON", "Write RELAX_LAYERNORM_EPSILON."),
        ("RELAX_SCHEDULE_POLICY", "Did you mean RELAX_SGLANG_SCHEDULE_POLICY?"),
        ("RELAX_ZZZZZZ", "Unset it if it is meant for something else."),
    ],
)
def test_a_name_that_is_nearly_an_option_is_told_without_its_value(variable: str, fix: str) -> None:
    config, _, [note] = read_config([], {variable: "hunter2"})
    assert str(note) == f"{variable}: names no option, so that it has no effect. {fix}"
    assert config.optimizer.lr == 1e-6


def test_a_variable_of_somebody_else_is_not_told() -> None:
    assert read_config([], {"relax_logs": "x", "RELAXED": "y"}).notes == []


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"RELAX_LR": ""}, 'RELAX_LR "": expects a finite number. Unset it where nothing is meant.'),
        ({"RELAX_ROLLOUT_STOP_TOKEN_IDS": "1,2"}, "Items are words of their own: 1 2."),
        ({"RELAX_TRAIN_ENV_VARS": "HF_TOKEN=hunter2"}, "RELAX_TRAIN_ENV_VARS HF_TOKEN=***: expects a JSON object"),
    ],
)
def test_what_a_variable_cannot_hold(environ: dict[str, str], text: str) -> None:
    with pytest.raises(UserError) as caught:
        read_config([], environ)
    assert text in str(caught.value)


def test_a_number_in_the_file_reaches_the_processes_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", "/data")
    Path("env.yaml").write_text(
        "x-note: 1\nenv_vars: {A: 1.50, B: 0123, C: 0x1F, D: 1e6, E: 2024-01-01, F: '{env:WHERE}/x'}\n"
    )
    read, problems = read_environment_file("env.yaml")
    assert read == {"A": "1.50", "B": "0123", "C": "0x1F", "D": "1e6", "E": "2024-01-01", "F": "/data/x"}
    assert problems == []


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("env_vars: false", "env_vars in env.yaml false: expects NAME: value below it"),
        ("env_vars: {A: null}", "env_vars.A in env.yaml null: expects text."),
        ("env_vars: {HF_TOKEN: [hunter2]}", "env_vars.HF_TOKEN in env.yaml ***: expects text."),
        ('env_vars: {A: "a\\0b"}', "The character NUL may not be in it."),
        ("env_vars: {RELAX_ENV_FILE: x}", "env_vars.RELAX_ENV_FILE in env.yaml: has no effect"),
        ("env_vars: {RELAX_LR: abc}", "RELAX_LR abc (environment file): expects a finite number."),
        ("env_vars: {A: '{env:NO_SUCH}'}", "the environment variable NO_SUCH is not set."),
    ],
)
def test_a_wrong_entry_of_the_file(content: str, text: str) -> None:
    Path("env.yaml").write_text(content)
    with pytest.raises(UserError) as caught:
        read_config(["--env-file", "env.yaml"], {})
    assert text in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_folder_where_the_file_is_expected_is_told() -> None:
    Path("configs/env.yaml").mkdir(parents=True)
    with pytest.raises(UserError, match=r"--env-file configs/env.yaml: cannot be read: Is a directory."):
        read_config([], {})
