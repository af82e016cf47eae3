"""The commands that answer questions about options; nothing heavy is imported for them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from configs import model_folder

from data.errors import UserError
from flows.cli.main import main
from relax_core.algorithms.recipes import RECIPES
from relax_core.config import prepare
from relax_core.config.options import OPTIONS, SECTIONS, BadValueError, all_options
from relax_core.config.parser import read_config
from relax_core.config.run_file import dump
from relax_core.config.schema import run_file_schema
from relax_core.config.secrets import redact, redact_text
from relax_core.config.variables import insert_variables


@pytest.fixture
def good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options of a run over files in an empty folder, in which nothing is wrong."""
    monkeypatch.chdir(tmp_path)
    model_folder(tmp_path / "model")
    Path("prompts.jsonl").write_text('{"input": "1+1=", "label": "2"}\n' * 16)
    text = (
        "--hf-checkpoint model --prompt-data prompts.jsonl --label-key label --rollout-batch-size 8"
        " --n-samples-per-prompt 4 --rollout-max-response-len 64 --num-rollout 3 --rm-type gsm8k"
    )
    return text.split()


def doctor(*words: str) -> int:
    return main(["doctor", *words])


def test_a_right_configuration_has_a_plan(good: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(*good) == 0
    text = capsys.readouterr().out
    assert text.startswith("This configuration can run.")
    assert "--global-batch-size 32" in text
    assert "8 prompts x 4 samples = 32 samples a rollout step" in text
    assert max(map(len, text.splitlines())) <= 100


def test_the_plan_is_compared_with_the_gpus_of_this_machine(
    good: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 81920, 79000\necho 81920, 1024\n")  # MiB: in all, free
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert doctor(*good) == 0
    text = capsys.readouterr().out
    assert "Memory of a device, estimated; the fullest GPU of this machine has 1.0 GiB free" in text
    assert "MiB: fits" in text
    doctor("--json", *good)
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert plan["device"] == {"total": 80.0, "free": 1.0}
    assert [part["fits"] for part in plan["memory"]] == [True, True]


def test_mistakes_of_the_words_and_of_the_whole_come_together(
    good: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor(*good, "--lrr", "1", "--global-batch-size", "12", "--rollout-top-p", "2") == 2
    text = capsys.readouterr().out
    assert text.startswith("This configuration cannot run: 3 errors.")
    for part in (
        "--lrr: no such option. Did you mean --lr",
        "--rollout-top-p 2.0 (command line): must be",
        "--global-",
    ):
        assert part in text


def test_a_misspelt_required_option_is_told_once(good: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    words = [word.replace("--rollout-batch-size", "--rollout_batch_size") for word in good]
    assert doctor(*words) == 2
    text = capsys.readouterr().out
    assert "cannot run: 1 error." in text
    assert "is required" not in text


def test_warnings_have_their_own_exit_code(good: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor(*good, "--use-clearml") == 1
    text = capsys.readouterr().out
    assert "This configuration can run, with 1 warning." in text
    assert "--use-clearml (command line): has no effect in this version." in text


def test_what_is_not_honoured_is_refused_unless_it_is_said_to_go_on(
    good: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert doctor(*good, "--squared-relu") == 2
    assert "--squared-relu (command line): is not supported by this version." in capsys.readouterr().out
    assert doctor(*good, "--squared-relu", "--allow-unwired") == 1
    capsys.readouterr()


def test_json_says_the_same(good: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor("--json", *good, "--rollout-top-p", "2", "--use-clearml") == 2
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "errors"
    [error], [warning] = report["errors"], report["warnings"]
    assert (error["option"], error["value"], error["origin"]) == ("--rollout-top-p", 2.0, "command line")
    assert warning["option"] == "--use-clearml"
    assert report["options"]["rollout_batch_size"] == 8
    assert report["derived"]["global_batch_size"] == 32
    assert report["sources"]["global_batch_size"] == "derived"


def test_an_evaluation_is_checked_as_one(good: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor("evaluate", *good) == 2
    assert "--eval-prompt-data: is required." in capsys.readouterr().out
    assert doctor("evaluate", *good, "--eval-prompt-data", "set", "prompts.jsonl") == 0
    capsys.readouterr()


def test_secrets_are_hidden(good: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    secrets = [
        *("--http-proxy", "http://me:hunter2@proxy:1"),
        *("--train-env-vars", '{"HF_TOKEN": "hunter2"}'),
        *("--notify-urls", "slack://hunter2/hunter2"),
        *("--rm-url", "me:hunter2@host"),
    ]
    doctor(*good, *secrets[:6])
    doctor("--json", *good, *secrets[:6])
    out = capsys.readouterr().out
    assert "hunter2" not in out
    assert "***" in out


def test_redaction() -> None:
    assert redact("http_proxy", "http://me:pw@host:1/x") == "http://***@host:1/x"
    assert redact("notify_urls", "slack://a/b,mailto://c") == "slack://***,mailto://***"
    assert redact("train_env_vars", {"API_KEY": "a", "NCCL_DEBUG": "b"}) == {"API_KEY": "***", "NCCL_DEBUG": "b"}
    assert redact("input_key", "question") == "question"
    assert redact_text("no secret") == "no secret"
    assert redact_text('{"API_KEY": "a b", X: 1}').startswith('{"API_KEY": "***')


def test_options_are_found_by_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options", "rollout", "temperature"]) == 0
    assert "--rollout-temperature X" in capsys.readouterr().out
    assert main(["options", "采样温度"]) == 0
    assert "--rollout-temperature X" in capsys.readouterr().out
    assert main(["options", "rope", "fusion"]) == 0
    assert "--apply-rope-fusion" in capsys.readouterr().out
    assert main(["options", "nothing-like-this"]) == 2
    assert "No option matches nothing-like-this." in capsys.readouterr().err


def test_unwired_options_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options", "--unwired"]) == 0
    text = capsys.readouterr().out
    listed = {line.split()[0] for line in text.splitlines() if line.startswith("  --")}
    assert listed == {option.flag for option in OPTIONS.values() if option.unwired}


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("--lr", ["Learning rate.", "1e-06", "relax_core/training/optimizer.py", "train", "RELAX_LR=", "must be 0"]),
        ("kl_loss_coef", ["Rules that read it", "use-kl-loss"]),
        ("--norm-epsilon", ["layernorm_epsilon", "must agree with the model's config.json"]),
        ("--sglang-schedule-policy", ["Passed to SGLang as `schedule_policy`"]),
        ("--use-clearml", ["nowhere yet: a run says so and goes on"]),
        ("--squared-relu", ["nowhere yet: a run that sets it is refused"]),
        ("--eval-top-p", ["not set; then rollout_top_p counts"]),
    ],
)
def test_one_option_is_explained(word: str, parts: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", word]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert not [part for part in parts if part not in text]


def test_every_option_can_be_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", *(option.flag for option in OPTIONS.values())]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 140


def test_explaining_what_is_no_option_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--lrr"]) == 2
    assert "--lrr: there is no such option. Did you mean --lr" in capsys.readouterr().err


def test_the_schema_accepts_run_files_and_refuses_unknown_keys(capsys: pytest.CaptureFixture[str]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    check = jsonschema.Draft202012Validator(schema)
    good = yaml.safe_load(
        "base: [a.yaml]\nx-y: {z: 1}\noptimizer: {lr: '{env:LR}', seed: 1}\nmegatron: {deterministic_mode: true}\n"
        "sglang: {sglang_schedule_policy: fcfs}\ncluster: {resource: {actor: [1, 2]}}\n"
        "rollout: {update_weight_buffer_size: 512MB, rollout_top_k: -1}\n"
    )
    assert not list(check.iter_errors(good))
    for bad in ("optimizer: {lrr: 1}", "megatron: {no_such: 1}", "rollout: {rollout_top_p: 2}", "rolout: {}"):
        assert list(check.iter_errors(yaml.safe_load(bad))), bad
    assert set(SECTIONS) <= set(schema["properties"])


def test_the_doctor_imports_nothing_heavy(good: list[str]) -> None:
    code = (
        "import sys; from flows.cli.main import main\n"
        f"main(['doctor', *{good!r}])\n"
        "heavy = {'torch', 'ray', 'prefect', 'transformers', 'numpy', 'pyarrow', 'sglang', 'megatron'}\n"
        "print('heavy', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy []"


def test_a_launch_script_becomes_a_run_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text(
        "#!/bin/bash\nset -ex\n"
        'MODEL=${MODEL:-"models/qwen"}\n'
        "export HF_TOKEN=secret NCCL_DEBUG=WARN\n"
        "ROLLOUT_ARGS=(\n   --rollout-batch-size 8 # prompts\n   --n-samples-per-prompt 4\n)\n"
        "PERF_ARGS=(--tensor-model-parallel-size 2 --norm-epsilon 1e-6 --sglang-mem-fraction-static 0.7)\n"
        'ray job submit --address="http://127.0.0.1:8265" \\\n   -- python3 train.py --hf-checkpoint ${MODEL} \\\n'
        "   ${ROLLOUT_ARGS[@]} ${PERF_ARGS[@]} --use-wandb --no-such-option 3\n"
    )
    assert main(["import-args", "run.sh", "-o", "run.yaml"]) == 1
    notes = capsys.readouterr().err
    assert "--no-such-option: no such option." in notes
    text = Path("run.yaml").read_text()
    assert yaml.safe_load(text) == {
        "checkpoint": {"hf_checkpoint": "models/qwen"},
        "rollout": {"rollout_batch_size": 8, "n_samples_per_prompt": 4},
        "sglang": {"sglang_mem_fraction_static": 0.7},
        "parallel": {"tensor_model_parallel_size": 2},
        "backend": {"bf16": True},
        "megatron": {"layernorm_epsilon": 1e-6},
    }
    assert "--use-wandb" in text  # as a comment: what was not taken over
    assert "NCCL_DEBUG" in text
    assert "secret" not in text


def test_what_slime_does_without_being_told_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.sh").write_text("python3 train_async.py --rollout-batch-size 8\n")
    assert main(["import-args", "run.sh"]) == 1
    text = capsys.readouterr().out
    assert yaml.safe_load(text) == {
        "backend": {"bf16": True, "fully_async": True},
        "rollout": {"rollout_batch_size": 8},
    }
    assert "# " in text
    assert "unless --fp16 is given" in text
    Path("run.sh").write_text("relax train --rollout-batch-size 8\n")
    assert main(["import-args", "run.sh"]) == 0
    assert "bf16" not in capsys.readouterr().out


def test_a_run_that_cannot_go_on_under_other_options_is_told(
    good: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    config = prepare(read_config([*good, "--run-dir", "runs/a"], {}).config)
    Path("runs/a/steps").mkdir(parents=True)
    Path("runs/a/config.yaml").write_text(dump(config, {}))
    assert doctor(*good, "--run-dir", "runs/a", "--num-rollout", "9") == 0
    assert doctor(*good, "--run-dir", "runs/a", "--lr", "1") == 2
    text = " ".join(capsys.readouterr().out.split())
    assert "what differs: --lr. --lr: the run has 1e-06, now it is 1.0." in text


def test_a_script_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["import-args", "no.sh"]) == 2
    assert "no.sh cannot be read: No such file or directory." in capsys.readouterr().err


def test_every_option_has_one_spelling_of_its_own() -> None:
    flags = [option.flag for option in all_options().values()]
    assert len(flags) == len(set(flags))


def test_unknown_commands_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["docter"]) == 2
    assert "Did you mean `relax doctor`?" in capsys.readouterr().err
    assert isinstance(UserError("x"), Exception)


def test_every_way_to_write_a_value_is_valid_against_the_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    check = jsonschema.Draft202012Validator(run_file_schema())
    monkeypatch.setenv("X", "1")
    written = [
        *(None, True, 0, 1, -1, 0.5, 1e-6, "1", "-1", "+1", ".5", "1e-6", " 1 ", "Yes", "off", "512MB", "text", ""),
        *(["1"], [1], ["a"], [1.5], [], {}, {"a": 1}, {"a": "b"}, {"actor": ["1", 1.0]}, {"actor": ["{env:X}", 1]}),
        *('{"a": "b"}', '{"actor": [1, 1]}', '[{"name": "a", "path": "b"}]', "{env:X}", ["{env:X}"], "fcfs", "none"),
        [{"name": "a", "path": "b", "stop": "x", "stop_token_ids": 3, "temperature": "{env:X}", "top_k": "5"}],
    ]
    for option in all_options().values():
        for value in written:
            inserted = insert_variables(value)
            try:
                as_text = option.kind == "json" and isinstance(inserted, str)
                typed = option.convert_text(inserted) if as_text else option.convert(inserted)
            except BadValueError:
                continue
            if typed is None or option.range is None or option.range.holds(typed):
                assert check.is_valid({option.section: {option.name: value}}), (option.name, value)


@pytest.mark.parametrize(
    ("word", "part"),
    [
        ("optimizer.lr", "Learning rate."),
        ("RELAX_LR", "Learning rate."),
        ("\u2013\u2013lr", "Learning rate."),
        ("--ROLLOUT_BATCH_SIZE", "Prompts a step"),
        ("--config", "A run file: options in YAML"),
        ("--use-wandb", "--use-wandb is an option of slime's. Here it has no effect"),
    ],
)
def test_an_option_is_found_however_it_is_spelt(word: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", word]) == 0
    assert part in capsys.readouterr().out


def test_flags_are_words_to_search_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["options", "--rollout-temperature"]) == 0
    assert "--rollout-temperature X" in capsys.readouterr().out
    assert main(["options", "--nothing-like-this"]) == 2
    assert "No option matches --nothing-like-this." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["schema", "-o", "a\0b"], "a\\x00b cannot be written: is no path."),
        (["import-args", "a\0b"], "a\\x00b cannot be read: is no path."),
        (["import-args", "run.sh", "--set", "X"], "--set X: expects NAME=VALUE."),
        (["TRAIN"], "Did you mean `relax train`?"),
        (["explain", "\x1b[31m"], "\\x1b[31m: there is no such option."),
    ],
)
def test_a_mistake_is_one_line_that_a_terminal_prints(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    told = capsys.readouterr().err
    assert text in told
    assert told.removesuffix("\n").isprintable()


def test_help_and_version_may_be_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help"]) == main(["version"]) == 0
    assert "usage: relax COMMAND" in capsys.readouterr().out


def test_a_terminal_without_unicode_gets_something(tmp_path: Path) -> None:
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PATH": os.environ["PATH"]}
    command = [sys.executable, "-m", "flows.cli.main", "explain", "--lr"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert "Learning rate." in done.stdout


SECRETS = [
    ["--http-proxy", "me:hunter2@proxy:1"],
    ["--rm-url", "https://host/path?api_key=hunter2"],
    ["--rm-url", "http://me:hunter2@host"],
    ["--train-env-vars", '{"hf_token": "hunter2"}'],
    ["--train-env-vars", "HF_TOKEN=hunter2"],
    ["--train-env-vars", '{"HF_TOKEN": ["hunter2"]}'],
    ["--custom-args", '{"judge": {"apiKey": "hunter2", "headers": {"Authorization": "Bearer hunter2"}}}'],
    ["--genrm-engine-config", '{"api_key": "hunter2"}'],
    ["--sglang-api-key", "a", "hunter2"],
    ["--notify-urls", "hunter2"],
    ["--wandb-key", "a", "hunter2"],
    ["--lr", "http://me:hunter2@host"],
    ["http://me:hunter2@host"],
    ["--eval-config", "eval.yaml"],
    ["--config", "run.yaml"],
    ["--env-file", "env.yaml"],
]


@pytest.mark.parametrize("words", SECRETS, ids=" ".join)
def test_no_output_shows_a_secret(
    words: list[str], good: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("eval.yaml").write_text(
        "datasets: [{name: a, path: 's3://k:hunter2@b/x', metadata_overrides: {api_key: hunter2}, top_k: u:hunter2@x}]"
    )
    Path("run.yaml").write_text(
        "base: foo://k:hunter2@b/x\ntraining: HF_TOKEN=hunter2\nsglang: {sglang_api_key: {a: hunter2}}\n"
        "tracking: {notify_urls: [slack://hunter2]}\noptimizer: {lr: {API_KEY: hunter2}, seed: '{env:MINE}'}\n"
    )
    Path("env.yaml").write_text("env_vars: {HF_TOKEN: [hunter2], RELAX_MY_TOKEN: hunter2, RELAX_SEED: 'u:hunter2@x'}\n")
    monkeypatch.setenv("MINE", "hunter2")
    doctor(*good, *words)
    doctor("--json", *good, *words)
    assert main(["train", *good, "--seed", "-1", *words]) == 2
    told = capsys.readouterr()
    assert "hunter2" not in told.out + told.err


def test_an_evaluation_is_checked_with_the_options_of_its_run(
    good: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    given = read_config([*good, "--eval-prompt-data", "set", "prompts.jsonl"], {})
    Path("run").mkdir()
    Path("run/config.yaml").write_text(dump(given.config, given.sources))
    assert doctor("evaluate", "--run-dir", "run") == 0
    assert doctor("evaluate", "--run-dir", "run", "--top-k", "x") == 2
    assert "--top-k: no such option." in capsys.readouterr().out


def test_the_rules_of_an_option_say_what_stands_for_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--resource", "--use-kl-loss"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--resource <value>: gives no devices to the role <role>." in text
    assert "..." not in text
    assert "{" not in text.partition("Rules that read it")[2].partition("section")[0]


def test_recipes_name_no_option_that_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    refused = {option.flag for option in OPTIONS.values() if option.unwired == "refuse"}
    told = ""
    for recipe in RECIPES:
        assert main(["algorithms", recipe.name]) == 0
        told += capsys.readouterr().out
    assert not refused & set(re.findall(r"--[a-z][a-z0-9-]+", told))
