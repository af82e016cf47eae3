from pathlib import Path

import pytest

from data.errors import UserError
from relax_core.config.parser import read_config


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def error_of(argv: list[str]) -> str:
    with pytest.raises(UserError) as caught:
        read_config(argv, {})
    return str(caught.value)


def test_a_file_overrides_the_files_it_builds_on_in_their_order() -> None:
    Path("sub").mkdir()
    Path("a.yaml").write_text("optimizer: {lr: 1, seed: 1, min_lr: 1}\n")
    Path("sub/b.yaml").write_text("base: ../a.yaml\noptimizer: {seed: 2, min_lr: 2}\n")
    Path("run.yaml").write_text("base: [a.yaml, sub/b.yaml]\noptimizer: {min_lr: 3}\n")
    config, sources, _ = read_config(["--config", "run.yaml"], {})
    assert (config.optimizer.lr, config.optimizer.seed, config.optimizer.min_lr) == (1, 2, 3)
    assert sources["seed"] == "file sub/b.yaml"
    assert sources["min_lr"] == "file run.yaml"


def test_files_that_include_each_other_and_missing_ones_are_errors() -> None:
    Path("a.yaml").write_text("base: b.yaml\n")
    Path("b.yaml").write_text("base: a.yaml\n")
    assert "base in b.yaml a.yaml: is being read already: files include each other." in error_of(["--config", "a.yaml"])
    Path("c.yaml").write_text("base: [no.yaml]\n")
    assert "base no.yaml in c.yaml: cannot be read: No such file" in error_of(["--config", "c.yaml"])
    Path("d.yaml").write_text("base: {x: 1}\n")
    assert "expects a list of paths" in error_of(["--config", "d.yaml"])


def test_anchors_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUN_LR", "2e-6")
    Path("run.yaml").write_text(
        "x-common: &common {adam_beta1: 0.8, adam_beta2: 0.7}\n"
        "optimizer:\n  <<: *common\n  adam_beta2: 0.6\n  lr: '{env:RUN_LR}'\n"
        "checkpoint: {save: 'out/{env:NO_SUCH:-here}', save_hf: 'out/{rollout_id}'}\n"
    )
    config, _, _ = read_config(["--config", "run.yaml"], {})
    assert (config.optimizer.adam_beta1, config.optimizer.adam_beta2, config.optimizer.lr) == (0.8, 0.6, 2e-6)
    assert (config.checkpoint.save, config.checkpoint.save_hf) == ("out/here", "out/{rollout_id}")


def test_a_variable_that_is_not_set_is_an_error() -> None:
    Path("run.yaml").write_text("checkpoint: {save: '{env:NO_SUCH}'}\n")
    text = error_of(["--config", "run.yaml"])
    assert "checkpoint.save in run.yaml {env:NO_SUCH}: the environment variable NO_SUCH is not set." in text
    assert "{env:NO_SUCH:-default}" in text


def test_json_may_be_yaml_or_quoted_json() -> None:
    Path("a.yaml").write_text("cluster: {resource: {actor: [1, 2], rollout: [1, 1]}}\n")
    Path("b.yaml").write_text("""cluster: {resource: '{"actor":[1,2],"rollout":[1,1]}'}\n""")
    a, b = (read_config(["--config", name], {}).config for name in ("a.yaml", "b.yaml"))
    assert a.cluster.resource == b.cluster.resource == {"actor": (1, 2), "rollout": (1, 1)}


def test_options_of_megatron_and_sglang_are_keys_of_their_sections() -> None:
    Path("run.yaml").write_text("megatron: {deterministic_mode: true}\nsglang: {sglang_chunked_prefill_size: 512}\n")
    config, sources, _ = read_config(["--config", "run.yaml", "--sglang-schedule-policy", "fcfs"], {})
    assert config.megatron.deterministic_mode is True  # type: ignore[attr-defined]
    assert config.sglang.model_extra == {"sglang_chunked_prefill_size": 512, "sglang_schedule_policy": "fcfs"}
    assert sources["sglang_schedule_policy"] == "command line"
    Path("run.yaml").write_text("megatron: {deterministic_mod: true}\nsglang: {sglang_chunked_prefill_size: x}\n")
    text = error_of(["--config", "run.yaml"])
    assert "megatron.deterministic_mod in run.yaml: no such option. Did you mean deterministic_mode?" in text
    assert "sglang.sglang_chunked_prefill_size in run.yaml x: expects a whole number." in text


def test_a_custom_configuration_has_options_with_or_without_sections_and_nothing_bypasses_the_check() -> None:
    Path("custom.yaml").write_text("lr: 3\nrollout: {n_samples_per_prompt: 4}\n")
    config, _, _ = read_config(["--custom-config-path", "custom.yaml", "--lr", "1"], {})
    assert (config.optimizer.lr, config.rollout.n_samples_per_prompt) == (3, 4)
    Path("custom.yaml").write_text("lrr: 3\nseed: x\n")
    text = error_of(["--custom-config-path", "custom.yaml"])
    assert "lrr in custom.yaml: no such option. Did you mean lr" in text
    assert "seed in custom.yaml x: expects a whole number." in text


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("lr: 1\noptimizer: {lr: 2}\n", "lr in custom.yaml: is given twice."),
        ("custom_config_path: custom.yaml\n", "custom_config_path in custom.yaml: has no effect here"),
        ("run: {env_file: e.yaml}\n", "env_file in custom.yaml: has no effect here: that file is read before"),
        ("base: a.yaml\n", "base in custom.yaml: is no option: only a run file has it."),
        ("- a\n", "--custom-config-path custom.yaml: holds no options. Write `lr: 1e-6`"),
        ("eval: 1\n", "eval in custom.yaml 1: expects options below it, indented."),
        ("~: 1\n", "null in custom.yaml: no such option."),
    ],
)
def test_a_wrong_custom_configuration(content: str, text: str) -> None:
    Path("custom.yaml").write_text(content)
    assert text in error_of(["--custom-config-path", "custom.yaml"])


def test_anchors_may_stand_in_a_custom_configuration() -> None:
    Path("custom.yaml").write_text("x-a: &a {lr: 3}\noptimizer:\n  <<: *a\n")
    assert read_config(["--custom-config-path", "custom.yaml"], {}).config.optimizer.lr == 3


@pytest.mark.parametrize(
    ("base", "text"),
    [
        ("''", "expects a list of paths, or one path."),
        ("false", "expects a list of paths, or one path."),
        ("[null]", "expects a list of paths, or one path."),
        ("'{env:NO_SUCH}/a.yaml'", "the environment variable NO_SUCH is not set."),
        ('"a\\0b"', "is no path."),
        (".", "cannot be read: Is a directory."),
        ("link.yaml", "files include each other."),
    ],
)
def test_a_wrong_base(base: str, text: str) -> None:
    Path("link.yaml").symlink_to("run.yaml")
    Path("run.yaml").write_text(f"base: {base}\n")
    assert text in error_of(["--config", "run.yaml"])


def test_a_base_may_be_named_by_a_variable_and_chains_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", "sub")
    Path("sub").mkdir()
    Path("sub/a.yaml").write_text("optimizer: {seed: 7}\n")
    Path("run.yaml").write_text("base: '{env:WHERE}/a.yaml'\n")
    assert read_config(["--config", "run.yaml"], {}).config.optimizer.seed == 7
    for number in range(60):
        Path(f"{number}.yaml").write_text(f"base: {number + 1}.yaml\n")
    assert "is the base of more than 50 files" in error_of(["--config", "0.yaml"])


def test_a_mistake_in_a_file_that_two_others_build_on_is_told_once() -> None:
    Path("d.yaml").write_text("optimizer: {sseed: 7}\n")
    for name in "bc":
        Path(f"{name}.yaml").write_text("base: d.yaml\n")
    Path("run.yaml").write_text("base: [b.yaml, c.yaml]\n")
    assert error_of(["--config", "run.yaml"]).startswith("optimizer.sseed in d.yaml: no such option.")


@pytest.mark.parametrize("value", ["{env:}", "{env:A:-{env:B}}", "{env:9}"])
def test_what_begins_like_a_variable_and_is_none(value: str) -> None:
    Path("run.yaml").write_text(f"run: {{run_dir: '{value}'}}\n")
    assert f"run.run_dir in run.yaml {value}: a variable is written {{env:NAME}}" in error_of(["--config", "run.yaml"])


def test_a_bad_value_from_a_variable_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "hunter2")
    Path("run.yaml").write_text("optimizer: {lr: '{env:MINE}'}\n")
    assert error_of(["--config", "run.yaml"]) == "optimizer.lr in run.yaml {env:MINE}: expects a finite number."


def test_variables_of_other_systems_are_told() -> None:
    Path("run.yaml").write_text("run: {run_dir: '${HOME}/x'}\n")
    [note] = read_config(["--config", "run.yaml"], {}).notes
    assert str(note).endswith("has a `${`, which stays as it is. A variable is written {env:NAME}.")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (
            "megatron: {norm_epsilon: 1}",
            "megatron.norm_epsilon in run.yaml: no such option. It is called layernorm_eps",
        ),
        ("tracking: {use_wandb: true}", "It is slime's, and has no effect: there is no Weights & Biases tracker."),
        ("run: {config: a.yaml}", "A run file names others with `base:`."),
        ("optimizer: {lr: [1]}", "optimizer.lr in run.yaml [1]: expects a finite number."),
        ("optimizer: {on: 1}", "optimizer.true in run.yaml: no such option."),
    ],
)
def test_hints(content: str, text: str) -> None:
    Path("run.yaml").write_text(content)
    assert text in error_of(["--config", "run.yaml"])
