"""Prompt sets: rendering, tokens, labels, metadata, lengths, and the row that is named when something is wrong."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from data.errors import UserError
from data.prompts import PromptDataset, load_prompts

BOS = 1


class WordTokenizer:
    """A token per word, its id the word's length; a start token as its one special token."""

    chat_template: str | None = "chatml"
    calls = 0

    def __call__(self, text: list[str], *, add_special_tokens: bool) -> Mapping[str, Any]:
        self.calls += 1
        start = [BOS] if add_special_tokens else []
        return {"input_ids": [start + [len(word) for word in one.split()] for one in text]}

    def apply_chat_template(self, conversation: list[dict[str, Any]], **kwargs: Any) -> str:
        assert kwargs.pop("tokenize") is False
        tools = kwargs.pop("tools")
        if any(message["role"] == "forbidden" for message in conversation):
            raise RuntimeError("roles must alternate")
        head = [f"tools={json.dumps(tools, sort_keys=True)}"] if tools else []
        body = [f"{message['role']}: {message['content']}" for message in conversation]
        tail = ["assistant:"] if kwargs.pop("add_generation_prompt") else []
        return " | ".join(head + body + tail + [f"{key}={value}" for key, value in sorted(kwargs.items())])


def load(path: Path, rows: list[Any], **options: Any) -> PromptDataset:
    """The rows through a file: JSONL, or Parquet by way of pandas."""
    if path.suffix == ".parquet":
        pd.DataFrame(rows).to_parquet(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    source = str(path) + options.pop("suffix", "")
    return load_prompts(source, tokenizer=options.pop("tokenizer", WordTokenizer()), **options)


@pytest.fixture(params=["x.jsonl", "x.parquet"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / request.param


def test_plain_text_gets_the_tokenizers_special_tokens(path: Path) -> None:
    made = load(path, [{"input": "a bb"}, {"input": "ccc"}])
    assert len(made) == 2
    assert made[0].tokens.tolist() == [BOS, 1, 2]
    assert made[0].tokens.dtype == np.int32
    assert (made[1].text, made[1].prompt_id, made[1].label, made[1].metadata) == ("ccc", "00000001", None, {})
    assert made.dropped == 0


def test_text_becomes_a_user_message_and_a_template_adds_no_special_tokens(path: Path) -> None:
    made = load(path, [{"input": "a bb"}], apply_chat_template=True)
    assert made[0].text == "user: a bb | assistant:"
    assert made[0].tokens.tolist() == [5, 1, 2, 1, 10]


def test_messages_are_rendered_as_they_are(path: Path) -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    made = load(path, [{"m": messages}], input_key="m", apply_chat_template=True)
    assert made[0].text == "system: S | user: U | assistant:"


def test_a_system_prompt_is_put_before_messages_that_have_none(path: Path) -> None:
    rows = [
        {"m": [{"role": "user", "content": "U"}]},
        {"m": [{"role": "system", "content": "own"}, {"role": "user", "content": "U"}]},
    ]
    made = load(path, rows, input_key="m", apply_chat_template=True, system_prompt="S")
    assert made.texts == ["system: S | user: U | assistant:", "system: own | user: U | assistant:"]
    made = load(path, [{"m": "U"}], input_key="m", apply_chat_template=True, system_prompt="S")
    assert made.texts == ["system: S | user: U | assistant:"]


def test_template_arguments_are_passed_on(path: Path) -> None:
    made = load(path, [{"input": "U"}], apply_chat_template=True, template_kwargs={"enable_thinking": False})
    assert made[0].text == "user: U | assistant: | enable_thinking=False"
    made = load(path, [{"input": "U"}], apply_chat_template=True, template_kwargs={"add_generation_prompt": False})
    assert made[0].text == "user: U"


TOOLS = [
    {"name": "add", "parameters": {"a": {"type": "int"}}},
    {"name": "say", "parameters": {"text": {"type": "str"}}},
]


@pytest.mark.parametrize("form", [json.dumps(TOOLS), TOOLS, [json.dumps(tool) for tool in TOOLS]])
def test_tools_as_text_and_as_a_list_render_alike(path: Path, form: Any) -> None:
    # In Parquet both tools have both parameters, one of them null: that must not show.
    made = load(path, [{"input": "U", "tools": form}], apply_chat_template=True)
    assert made[0].text == f"tools={json.dumps(TOOLS, sort_keys=True)} | user: U | assistant:"


@pytest.mark.parametrize("form", [None, "", "[]", []])
def test_no_tools_are_no_tools(tmp_path: Path, form: Any) -> None:
    made = load(tmp_path / "x.jsonl", [{"input": "U", "tools": form}], apply_chat_template=True)
    assert made[0].text == "user: U | assistant:"


def test_jsonl_and_parquet_give_the_same_set(tmp_path: Path) -> None:
    rows = [
        {
            "input": [{"role": "user", "content": f"é {i}"}],
            "label": f"{i}",
            "tools": json.dumps(TOOLS),
            "metadata": {"rm_type": "math", "n": i},
        }
        for i in range(4)
    ]
    a, b = (
        load(tmp_path / name, rows, label_key="label", apply_chat_template=True) for name in ("a.jsonl", "b.parquet")
    )
    assert a.fingerprint == b.fingerprint
    assert a.texts == b.texts
    assert a.metadata == b.metadata == [{"rm_type": "math", "n": i} for i in range(4)]


LABELS = [
    ("7", '"7"'),
    (7, "7"),
    (0.5, "0.5"),
    (["é", 1], '["é", 1]'),
    ({"a": None}, '{"a": null}'),
    (False, "false"),
    (None, None),
]


@pytest.mark.parametrize(("value", "label"), LABELS)
def test_a_label_is_kept_as_json(tmp_path: Path, value: Any, label: str | None) -> None:
    assert load(tmp_path / "x.jsonl", [{"input": "a", "y": value}], label_key="y")[0].label == label


def test_a_label_of_parquet_is_kept_as_json(tmp_path: Path) -> None:
    rows = [{"input": "a", "y": [1, 2]}, {"input": "b", "y": None}]
    assert load(tmp_path / "x.parquet", rows, label_key="y").labels == ["[1, 2]", None]


@pytest.mark.parametrize("form", [{"a": 1}, '{"a": 1}'])
def test_metadata_may_be_an_object_or_json_text(path: Path, form: Any) -> None:
    assert load(path, [{"input": "x", "info": form}], metadata_key="info")[0].metadata == {"a": 1}


def test_missing_and_null_metadata_is_empty(tmp_path: Path) -> None:
    made = load(tmp_path / "x.jsonl", [{"input": "x"}, {"input": "x", "metadata": None}])
    assert made.metadata == [{}, {}]


def test_prompts_that_are_too_long_are_left_out_and_counted(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"input": "w " * n, "label": n} for n in (3, 9, 2, 4)]  # tokens: n and the start token
    with caplog.at_level(logging.WARNING, "data.prompts"):
        made = load(path, rows, max_prompt_len=4, label_key="label")
    assert made.dropped == 2
    assert made.prompt_ids == ["00000000", "00000002"]  # the rows keep their numbers
    assert (made[1].label, made[1].tokens.tolist()) == ("2", [BOS, 1, 1])
    assert made.tokens.lengths.tolist() == [4, 3]
    assert "2 of 4 prompts have over 4 tokens" in caplog.text


def test_prompts_are_found_by_id(path: Path) -> None:
    made = load(path, [{"input": "w " * n} for n in (3, 9, 2)], max_prompt_len=4, suffix="@[1:]")
    assert (len(made), made.dropped) == (1, 1)
    assert made.index("00000002") == 0
    with pytest.raises(UserError, match="has no prompt 00000001"):
        made.index("00000001")


def test_tokens_are_read_only(path: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        load(path, [{"input": "a"}])[0].tokens[0] = 3


def test_the_tokenizer_is_called_on_batches(tmp_path: Path) -> None:
    tokenizer = WordTokenizer()
    made = load(tmp_path / "x.jsonl", [{"input": f"a {'b' * (i % 7)}"} for i in range(3000)], tokenizer=tokenizer)
    assert tokenizer.calls == 3
    assert len(made) == 3000
    assert made[2999].tokens.tolist() == [BOS, 1, 2999 % 7]


def test_the_fingerprint_changes_with_everything_that_can_be_read(tmp_path: Path) -> None:
    rows = [{"input": "a", "label": 1, "metadata": {"k": 1}}, {"input": "b", "label": 2, "metadata": {"k": 2}}]
    path = tmp_path / "x.jsonl"

    def changed(row: int, **change: Any) -> list[dict[str, Any]]:
        return [{**old, **change} if i == row else old for i, old in enumerate(rows)]

    first = load(path, rows, label_key="label").fingerprint
    assert load(path, rows, label_key="label").fingerprint == first
    assert load(path, [{"unread": 1, **row} for row in rows], label_key="label").fingerprint == first
    others = [
        load(path, changed(0, input="c"), label_key="label"),
        load(path, changed(1, label=3), label_key="label"),
        load(path, changed(1, metadata={"k": 3}), label_key="label"),
        load(path, rows[::-1], label_key="label"),
        load(path, rows),
        load(path, rows, label_key="label", suffix="@[1:]"),
        load(path, rows, label_key="label", apply_chat_template=True),
    ]
    assert len({first, *(made.fingerprint for made in others)}) == 8


USER = {"role": "user", "content": "U"}
TEMPLATE = {"apply_chat_template": True}


@pytest.mark.parametrize(
    ("row", "options", "says"),
    [
        ({"question": "a"}, {}, r"line 2: no key 'input' \(--input-key\).*Its keys: question"),
        ({}, {}, "line 2: no key 'input'.*none"),
        ({"input": "a"}, {"label_key": "y"}, r"line 2: no key 'y' \(--label-key\)"),
        ({"input": [USER]}, {}, "line 2: 'input' is a list of messages.*Add --apply-chat-template"),
        ({"input": 3}, {}, "line 2: 'input' is int"),
        ({"input": None}, TEMPLATE, "line 2: 'input' is NoneType"),
        ({"input": {"role": "user"}}, TEMPLATE, "line 2: 'input' is dict"),
        ({"input": []}, TEMPLATE, "line 2: 'input' has no messages"),
        ({"input": ["a"]}, TEMPLATE, "line 2: message 0 of 'input' is not an object with a 'role'"),
        ({"input": [USER, {"content": "a"}]}, TEMPLATE, "line 2: message 1 of 'input'"),
        ({"input": [{"role": "forbidden", "content": ""}]}, TEMPLATE, "line 2: the chat template refuses.*alternate"),
        ({"input": "a", "tools": "[{"}, TEMPLATE, "line 2: 'tools' is text that is not JSON"),
        ({"input": "a", "tools": {"name": "f"}}, TEMPLATE, "line 2: 'tools' is dict"),
        ({"input": "a", "tools": [3]}, TEMPLATE, "line 2: 'tools' holds int"),
        ({"input": "a", "metadata": [1]}, {}, "line 2: 'metadata' is list"),
        ({"input": "a", "metadata": "[1]"}, {}, "line 2: 'metadata' is list"),
        ({"input": "a", "metadata": "x"}, {}, "line 2: 'metadata' is text that is not JSON"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named(tmp_path: Path, row: Any, options: dict[str, Any], says: str) -> None:
    good = {"input": "a", "y": 1}
    with pytest.raises(UserError, match=says):
        load(tmp_path / "x.jsonl", [good, row], **options)


def test_an_empty_prompt_is_named(tmp_path: Path) -> None:
    class Bare(WordTokenizer):
        def __call__(self, text: list[str], *, add_special_tokens: bool) -> Mapping[str, Any]:
            return super().__call__(text, add_special_tokens=False)

    with pytest.raises(UserError, match="line 3: the prompt is empty"):
        load(tmp_path / "x.jsonl", [{"input": "a"}, {"input": "b"}, {"input": ""}], tokenizer=Bare())


def test_a_set_of_prompts_that_are_all_too_long_is_an_error(path: Path) -> None:
    with pytest.raises(UserError, match=r"None of the 2 prompts .* at most 3 tokens; the shortest has 5"):
        load(path, [{"input": "w " * 7}, {"input": "w " * 4}], max_prompt_len=3)


def test_options_that_need_a_template_are_refused_without_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--system-prompt has no effect.*Add --apply-chat-template"):
        load(tmp_path / "x.jsonl", [{"input": "a"}], system_prompt="S")
    bare = WordTokenizer()
    bare.chat_template = None
    with pytest.raises(UserError, match="the tokenizer has none"):
        load(tmp_path / "x.jsonl", [{"input": "a"}], tokenizer=bare, apply_chat_template=True)
    with pytest.raises(UserError, match="sets 'tokenize'"):
        load(tmp_path / "x.jsonl", [{"input": "a"}], apply_chat_template=True, template_kwargs={"tokenize": True})


def test_bad_lines_can_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"input": "a"}\n{"input": \n{"input": "b"}\n')
    with pytest.raises(UserError, match="1 bad line: line 2"):
        load_prompts(str(path), tokenizer=WordTokenizer())
    made = load_prompts(str(path), tokenizer=WordTokenizer(), skip_bad_lines=True)
    assert made.prompt_ids == ["00000000", "00000002"]


def test_a_real_tokenizer_gives_what_it_gives_on_its_own(tiny_model: Path, path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    messages = [[{"role": "user", "content": f"What is {i} + 2?"}] for i in range(5)]
    made = load(path, [{"input": one} for one in messages], tokenizer=tokenizer, apply_chat_template=True)
    for one, prompt in zip(messages, (made[i] for i in range(5)), strict=True):
        whole = tokenizer.apply_chat_template(one, add_generation_prompt=True, tokenize=True, return_dict=False)
        assert prompt.tokens.tolist() == whole  # rendered and tokenised in one go
        assert tokenizer.decode(prompt.tokens) == prompt.text
    plain = load(path, [{"input": "What is 3 + 2?"}], tokenizer=tokenizer)
    assert plain[0].tokens.tolist() == tokenizer.encode("What is 3 + 2?")


SHAREGPT = {"from": "role", "value": "content", "human": "user", "gpt": "assistant"}


def test_a_conversation_map_renames_keys_and_roles_and_leaves_the_text_alone(path: Path) -> None:
    rows = [{"input": [{"from": "human", "value": "the human said gpt"}, {"from": "gpt", "value": "human"}]}]
    made = load(path, rows, apply_chat_template=True, key_map=SHAREGPT)
    # the roles are mapped; "human" and "gpt" inside the text are what they were
    assert made.texts == ["user: the human said gpt | assistant: human | assistant:"]


def test_a_conversation_map_leaves_other_keys_roles_and_plain_text(path: Path) -> None:
    rows = [{"input": [{"role": "tool", "content": "x"}]}]
    assert load(path, rows, apply_chat_template=True, key_map=SHAREGPT).texts == ["tool: x | assistant:"]
    # a role is renamed after its key; the value of another key that looks like a role is not
    rows = [{"input": [{"speaker": "gpt", "content": "gpt", "name": "gpt"}]}]
    made = load(path, rows, apply_chat_template=True, key_map={"speaker": "role", "gpt": "assistant"})
    assert made.texts == ["assistant: gpt | assistant:"]
    assert load(path, [{"input": "human"}], key_map=SHAREGPT).texts == ["human"]


def test_a_conversation_map_that_merges_two_keys_names_the_row(path: Path) -> None:
    rows = [{"input": [{"from": "human", "role": "user", "value": "x"}]}]
    with pytest.raises(UserError, match=r"(line 1|row 0): --conversation-key-map .* one name: from, role, value"):
        load(path, rows, apply_chat_template=True, key_map=SHAREGPT)


def test_a_function_makes_the_prompt_of_all_columns_before_anything_else(path: Path) -> None:
    rows = [{"input": "a", "hint": "bb", "raw": "x"}, {"input": "c", "hint": "dd", "raw": "y"}]
    seen = []

    def convert(prompt: Any, row: dict[str, Any], where: str) -> Any:
        seen.append((prompt, dict(row), where.rsplit(" ", 2)[-2:]))
        row["input"] = "not seen by anybody"
        return [{"from": "human", "value": f"{prompt} {row['hint']}"}]

    made = load(path, rows, apply_chat_template=True, convert=convert, key_map=SHAREGPT)
    assert made.texts == ["user: a bb | assistant:", "user: c dd | assistant:"]
    place = ["line", "1"] if path.suffix == ".jsonl" else ["row", "0"]
    assert seen[0] == ("a", rows[0], place)
    assert made.fingerprint != load(path, rows, apply_chat_template=True).fingerprint


def test_a_function_may_read_a_column_of_bytes(tmp_path: Path) -> None:
    picture = b"\xff\xd8\xff"
    rows = [{"input": "a", "picture": picture}]
    made = load(tmp_path / "x.parquet", rows, convert=lambda prompt, row, where: f"{prompt} {len(row['picture'])}")
    assert made.texts == ["a 3"]
