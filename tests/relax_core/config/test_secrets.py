"""What is hidden of a value, and what is not."""

import pytest

from relax_core.config.options import OPTIONS
from relax_core.config.passthrough import pass_throughs
from relax_core.config.problems import Problem
from relax_core.config.secrets import is_secret_name, redact, redact_text


@pytest.mark.parametrize(
    "text",
    [
        "http://me:hunter2@proxy:1",
        "http://me:p@hunter2@proxy",
        "http://me:p/hunter2@proxy",
        "me:hunter2@proxy:1",
        "s3://key:hunter2@bucket/x.jsonl@[0:10]",
        "https://host/path?a=b&api_key=hunter2",
        "https://host/path?X-Amz-Signature=hunter2",
        '{"HF_TOKEN": "hunter2"}',
        '{"HF_TOKEN": ["hunter2"]}',
        '{"HF_TOKEN": "a, hunter2"',
        "{'api_key': 'hunter2'}",
        '{"a": {"headers": {"Authorization": "Bearer hunter2"}}}',
        "{HF_TOKEN: hunter2}",
        "HF_TOKEN=hunter2",
        'Invalid bucket name "key:hunter2@bucket"',
    ],
)
def test_a_secret_does_not_pass(text: str) -> None:
    assert "hunter2" not in redact_text(text)
    assert "hunter2" not in str(Problem("--lr", text, text, text))


@pytest.mark.parametrize(
    "text",
    [
        "prompts.jsonl@[0:10]",
        "s3://bucket/x.jsonl@[0:10]",
        "http://host:80/path@[1:2]",
        "hf://datasets/me/x@main/f.jsonl",
        "file.py:function",
        "--label-key answer: is no column of x.jsonl.",
        "no secret: because",
        '{"eos_token": "</s>", "max_tokens": 5, "input_key": "q"}',
        '"API_KEY": null',
        "TOKENIZERS_PARALLELISM=true",
        "PWD=/tmp",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact_text(text) == text


def test_names() -> None:
    assert [name for name in (*OPTIONS, *pass_throughs()) if is_secret_name(name)] == [
        "sglang_ssl_keyfile_password",
        "sglang_api_key",
        "sglang_admin_api_key",
    ]
    for name in (
        "HF_TOKEN",
        "PGPASS",
        "GH_PAT",
        "api_key",
        "apiKey",
        "auth_token",
        "token",
        "wandb_key",
        "Authorization",
    ):
        assert is_secret_name(name), name
    for name in ("input_key", "max_tokens", "stop_token_ids", "PATH", "PWD", "tokenizer"):
        assert not is_secret_name(name), name


def test_values_of_options() -> None:
    assert redact("sglang_api_key", ["a", "hunter2"]) == "***"
    assert redact("notify_urls", "slack://a/b, hunter2") == "slack://***, ***"
    assert redact("custom_args", {"api_keys": ["x"], "PIN_KEY": 1, "n": 1, "on": True}) == {
        "api_keys": "***",
        "PIN_KEY": "***",
        "n": 1,
        "on": True,
    }
    assert redact("lr", None) is None


@pytest.mark.parametrize("option", ["--wandb-key", "sglang.sglang_api_key in run.yaml", "env_vars.HF_TOKEN in e.yaml"])
def test_a_problem_hides_the_value_of_an_option_that_is_a_secret(option: str) -> None:
    assert str(Problem(option, ["hunter2"], "is wrong.")) == f"{option} ***: is wrong."


@pytest.mark.parametrize("text", ["a-" * 50_000, "http://a:b/" * 10_000, '{"a_key": ' * 10_000, "a:" * 50_000])
def test_a_long_text_takes_no_long_time(text: str) -> None:
    redact_text(text)  # quadratic, it would take minutes
