import contextlib
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import UserError
from relax_core.config.options import OPTIONS, all_options
from relax_core.config.parser import mark_derived, parse_arguments, read_config, read_words
from relax_core.config.resolve import resolve


def error_of(argv: list[str]) -> str:
    with pytest.raises(UserError) as caught:
        parse_arguments(argv)
    return str(caught.value)


@pytest.mark.parametrize(
    ("argv", "values"),
    [
        ([], {}),
        (["--rollout-batch-size", "8"], {"rollout_batch_size": 8}),
        (["--rollout-batch-size=8"], {"rollout_batch_size": 8}),
        (["--lr", "1e-6"], {"lr": 1e-6}),
        (["--rollout-top-k", "-1"], {"rollout_top_k": -1}),
        (["--system-prompt", "a - b"], {"system_prompt": "a - b"}),
        (["--system-prompt=--x"], {"system_prompt": "--x"}),
        (["--system-prompt="], {"system_prompt": ""}),
        (["--prompt-data=a=b.jsonl@[1:]"], {"prompt_data": "a=b.jsonl@[1:]"}),
        (["--rollout-stop", "a", "b", "--bf16"], {"rollout_stop": ["a", "b"], "bf16": True}),
        (["--rollout-stop-token-ids", "1", "2"], {"rollout_stop_token_ids": [1, 2]}),
        (["--eval-prompt-data=x.jsonl"], {"eval_prompt_data": ["x.jsonl"]}),
        (["--bf16", "false"], {"bf16": False}),
        (["--bf16=True"], {"bf16": True}),
        (["--no-bf16"], {"bf16": False}),
        (["--no-save-optim"], {"no_save_optim": True}),
        (["--no-save-optim", "false"], {"no_save_optim": False}),
        (["--qkv-format", "thd"], {"qkv_format": "thd"}),
        (["--resource", '{"actor":[1,2],"rollout":[1,1]}'], {"resource": {"actor": (1, 2), "rollout": (1, 1)}}),
        (
            ["--apply-chat-template-kwargs", '{"enable_thinking": false}'],
            {"apply_chat_template_kwargs": {"enable_thinking": False}},
        ),
        (["--update-weight-buffer-size", "512MB"], {"update_weight_buffer_size": 512 * 1024**2}),
        (["--update-weight-buffer-size", "1.5 GiB"], {"update_weight_buffer_size": 3 * 512 * 1024**2}),
        (["--update-weight-buffer-size", "1000"], {"update_weight_buffer_size": 1000}),
        (["--save-interval", "none"], {"save_interval": None}),
        (["--rollout-stop", "none"], {"rollout_stop": None}),
        (["--save", "none"], {"save": "none"}),
        (["--lr", "1", "--lr", "2"], {"lr": 2.0}),
        (["--config", "run.yaml"], {"config": "run.yaml"}),
    ],
)
def test_values_are_typed(argv: list[str], values: dict[str, object]) -> None:
    assert parse_arguments(argv) == values


@pytest.mark.parametrize("option", list(OPTIONS.values()), ids=list(OPTIONS))
def test_every_default_can_be_typed_and_is_read_back(option) -> None:  # type: ignore[no-untyped-def]
    if option.default is None:
        assert option.optional
    else:
        shown = option.show(option.default)
        words = shown.split() or [""] if option.kind == "list" else [shown]
        assert parse_arguments([option.flag, *words]) == {option.name: option.default}


def test_a_longer_name_never_sets_a_shorter_option() -> None:
    # `--load-debug-rollout-data x` would be taken for `--load` by a parser that goes by beginnings
    assert parse_arguments(["--load-debug-rollout-data", "x"]) == {"load_debug_rollout_data": "x"}
    assert "--load-debug-rollout-dat: no such option." in error_of(["--load-debug-rollout-dat", "x"])


@pytest.mark.parametrize("flag", ["--rollout-batch", "--hf", "--l"])
def test_no_option_is_known_by_its_beginning(flag: str) -> None:
    assert f"{flag}: no such option." in error_of([flag, "1"])


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--rollout-bach-size", "--rollout-batch-size"),
        ("--rollout_batch_size", "--rollout-batch-size"),
        ("-lr", "--lr"),
        ("--hf-checkpiont", "--hf-checkpoint"),
        ("--no-bf61", "--no-bf16"),
        ("--LR", "--lr"),
    ],
)
def test_the_nearest_name_is_suggested(typed: str, meant: str) -> None:
    text = error_of([typed, "8"])
    assert f"{typed}: no such option." in text
    assert meant in text.split("Did you mean")[1]


@settings(deadline=None)
@given(st.lists(st.sampled_from([option.flag for option in OPTIONS.values()]) | st.text(max_size=6), max_size=6))
def test_any_words_give_values_or_the_error(argv: list[str]) -> None:
    with contextlib.suppress(UserError):
        assert set(parse_arguments(argv)) <= {*all_options(), "config"}


def test_every_mistake_is_in_one_error_a_paragraph_each() -> None:
    text = error_of(
        ["word", "--lrr", "1", "2", "--rollout-batch-size", "8.5", "--qkv-format", "thb", "--seed", "--bf16", "maybe"]
    )
    first, *rest = text.splitlines()
    assert first == "6 options are wrong."
    assert [line.split(":")[0].split()[0] for line in rest] == [
        "word",
        "--lrr",
        "--rollout-batch-size",
        "--qkv-format",
        "--seed",
        "--bf16",
    ]


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--rollout-batch-size", "eight"], "--rollout-batch-size eight: expects a whole number."),
        (["--rollout-batch-size", "512MB"], "--rollout-batch-size 512MB: expects a whole number."),
        (["--rollout-batch-size"], "--rollout-batch-size: needs a value: a whole number."),
        (["--rollout-batch-size", "8", "9"], "--rollout-batch-size 8 9: takes one value, a whole number."),
        (["--lr", "nan"], "--lr nan: expects a finite number."),
        (["--lr", "inf"], "--lr inf: expects a finite number."),
        (["--bf16", "maybe"], "--bf16 maybe: expects true or false."),
        (["--no-bf16", "true"], "--no-bf16 true: takes no value; --bf16 takes true or false."),
        (["--qkv-format", "thb"], "--qkv-format thb: expects one of thd, bshd. Did you mean thd?"),
        (["--resource", "{actor"], "--resource {actor: expects a JSON object, such as "),
        (["--resource", '{"actor":[1]}'], 'At ["actor"][1]: is missing.'),
        (["--update-weight-buffer-size", "1.5"], "expects a size in bytes, such as 1048576 or 512MB."),
        (["--rollout-stop-token-ids", "1", "x"], "--rollout-stop-token-ids 1 x: expects one or more whole numbers."),
        (["--system-prompt", "two", "words"], "Put quotes round a value with spaces."),
        (["train.jsonl"], "train.jsonl: a word that belongs to no option."),
        (["--config"], "--config: expects the path of one YAML file."),
    ],
)
def test_a_bad_value_says_what_was_expected(argv: list[str], text: str) -> None:
    assert text in error_of(argv)


def test_command_line_wins_over_file_and_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    # YAML reads 1e-6 (no dot) as text; an option that is a number takes it as a number
    file.write_text("rollout:\n  rollout_batch_size: 8\n  n_samples_per_prompt: 4\noptimizer:\n  lr: 1e-6\n")
    config, sources, _ = read_config(["--config", str(file), "--rollout-batch-size", "16"], {})
    assert (config.rollout.rollout_batch_size, config.rollout.n_samples_per_prompt) == (16, 4)
    assert config.optimizer.lr == 1e-6
    assert [sources[name] for name in ("rollout_batch_size", "n_samples_per_prompt", "lr", "seed")] == [
        "command line",
        f"file {file}",
        f"file {file}",
        "default",
    ]


def test_only_replaced_defaults_count_as_derived() -> None:
    config, sources, _ = read_config(["--eval-prompt-data", "x.jsonl", "--eps-clip", "0.3"], {})
    marked = mark_derived(config, resolve(config), sources)
    assert marked["eps_clip_high"] == "derived"
    assert marked["eval_prompt_data"] == "command line"
    assert marked["adam_eps"] == "default"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("rolout: {rollout_batch_size: 8}", "rolout in FILE: no such section. Did you mean rollout?"),
        ("rollout_batch_size: 8", "rollout_batch_size in FILE: no such section. It belongs below `rollout:`."),
        ("zzz: {}", "zzz in FILE: no such section. Sections: run, cluster,"),
        (
            "rollout: {rollout_bach_size: 8}",
            "rollout.rollout_bach_size in FILE: no such option. Did you mean rollout_batch_size?",
        ),
        ("rollout: {rollout-batch-size: 8}", "Did you mean rollout_batch_size?"),
        ("rollout: {lr: 1}", "rollout.lr in FILE: in the wrong section. It belongs below `optimizer:`."),
        ("rollout: {rollout_batch_size: eight}", "rollout.rollout_batch_size in FILE eight: expects a whole number."),
        ("rollout: {rollout_batch_size: true}", "rollout.rollout_batch_size in FILE true: expects a whole number."),
        ("rollout: {n_samples_per_prompt: null}", "rollout.n_samples_per_prompt in FILE null: expects a whole number."),
        ("optimizer: {lr: .nan}", "optimizer.lr in FILE nan: expects a finite number."),
        ("rollout: [1]", "rollout in FILE 1: expects options below it, indented."),
        ("- a", "--config FILE: holds no sections."),
        ("rollout: {", "--config FILE: is no valid YAML in line 1"),
        ("optimizer:\n  lr: 1\n  lr: 2\n", "--config FILE: is no valid YAML in line 3: lr is given twice."),
    ],
)
def test_a_wrong_file_names_file_and_key(tmp_path: Path, content: str, text: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(content)
    with pytest.raises(UserError) as caught:
        read_config(["--config", str(file)])
    assert text.replace("FILE", str(file)) in str(caught.value)


def test_a_missing_file_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_config(["--config", str(tmp_path / "no.yaml")])


def test_file_and_command_line_are_reported_together(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("rollout: {rollout_bach_size: 8}")
    with pytest.raises(UserError) as caught:
        read_config(["--config", str(file), "--lrr", "1"])
    assert "rollout_bach_size" in str(caught.value)
    assert "--lrr" in str(caught.value)


@pytest.mark.parametrize("content", ["", "rollout:\n", "# nothing\n"])
def test_an_empty_file_or_section_sets_nothing(tmp_path: Path, content: str) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(content)
    config, sources, _ = read_config(["--config", str(file)], {})
    assert config == read_config([], {})[0]
    assert set(sources.values()) == {"default"}


def test_reading_a_command_line_imports_nothing_heavy() -> None:
    code = (
        "import sys; from relax_core.config import parse_arguments, read_config, validate\n"
        "from relax_core.config.help import options_help\n"
        "options_help(); config, _, _ = read_config(['--rollout-batch-size', '8', '--moe-router-topk', '2'])\n"
        "try: validate(config)\n"
        "except Exception: pass\n"
        "heavy = {'torch', 'ray', 'prefect', 'transformers', 'numpy', 'pyarrow', 'sglang', 'megatron', 'fsspec'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["\u2013lr", "1"], "\u2013lr: no such option. Did you mean --lr? It has the character U+2013"),
        (["--seed", "1", "\u2212\u2212lr", "1"], "\u2212\u2212lr: no such option. Did you mean --lr?"),
        (["--rollout\u2011batch\u2011size", "1"], "Did you mean --rollout-batch-size? It has the character U+2011"),
        (["--lr\u200b", "1"], "--lr\\u200b: no such option. Did you mean --lr?"),
        (["--lr", "1e\u22126"], "It has the character U+2212, as pasted text does, where - is meant."),
        (["--lr 1e-6"], "--lr and its value are two words: no quotes round both."),
        (["--lr", "1\r"], "command line: has words that end with a carriage return."),
        (["--lr", "=", "1"], "Write --lr=1 without spaces."),
        (["--lr=", "1"], "Write --lr=1 without spaces."),
        (["--lr="], '--lr "": expects a finite number.'),
        (["--lr", "-inf"], "--lr -inf: expects a finite number."),
        (["-lr=1"], "-lr: no such option. Did you mean --lr?"),
        (["---lr", "1"], "---lr: no such option. Did you mean --lr?"),
        (["--optimizer.lr=1"], "--optimizer.lr: no such option. Did you mean --lr?"),
        (["optimizer.lr=1e-6"], "a word that belongs to no option. An option is written --lr 1e-6."),
        (["--seed", "1", "--"], "--seed 1 --: takes one value, a whole number. Leave the -- out."),
        (["--lr", "1", "\\ "], "A backslash continues a line only as its very last character."),
        (["run.yaml"], "A run file is given with --config run.yaml."),
        ([""], '"": a word that belongs to no option.'),
        (["--config", ""], '--config "": expects the path of one YAML file.'),
        (["--lr", "\x1b[31m1"], "--lr \\x1b[31m1: expects a finite number."),
        (["--actor-num-nodes", "\u00b2"], "--actor-num-nodes \u00b2: expects a whole number, 1 or more."),
        (["--wandb-key", "a", "hunter2"], "--wandb-key ***: takes one value."),
        (["--resource", '{"actor": [1, 1], "actor": [1, 2]}'], 'The key "actor" is given twice.'),
    ],
)
def test_what_is_likely_meant_is_told(argv: list[str], text: str) -> None:
    assert text in error_of(argv)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--sglang-grammar-backend", "none"], "none"),  # a choice of SGLang's, which switches the grammar off
        (["--sglang-mem-fraction-static", "none"], None),
    ],
)
def test_none_unsets_an_option_that_has_no_such_choice(words: list[str], value: str | None) -> None:
    name = words[0].removeprefix("--").replace("-", "_")
    assert read_words(words)[0][name] == value
