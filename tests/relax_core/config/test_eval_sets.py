"""Evaluation sets: reading a file, completing from the options, what is refused."""

import json
from pathlib import Path

import pytest

from relax_core.config.eval_set import FIELDS
from relax_core.config.eval_sets import (
    FALLBACKS,
    EvalSet,
    complete_sets,
    problems_of,
    read_eval_config,
    sets_from_pairs,
)

OPTIONS = {
    "rm_type": "gsm8k",
    "input_key": "question",
    "label_key": "answer",
    "tool_key": "tools",
    "metadata_key": "metadata",
    "reward_key": None,
    "n_samples_per_eval_prompt": 1,
    "rollout_temperature": 1.0,
    "rollout_top_p": 0.9,
    "rollout_top_k": -1,
    "rollout_max_response_len": 64,
    "rollout_max_prompt_len": 255,
    "rollout_max_context_len": 256,
    "rollout_stop": ["END"],
    "rollout_stop_token_ids": [7],
}

VALUES = {  # field -> three values that differ from each other
    "rm_type": ("a", "b", "c"),
    "default_rm_type": ("a", "b", "c"),
    "custom_rm_path": ("a:f", "b:f", "c:f"),
    "reward_key": ("a", "b", "c"),
    "input_key": ("a", "b", "c"),
    "label_key": ("a", "b", "c"),
    "tool_key": ("a", "b", "c"),
    "metadata_key": ("a", "b", "c"),
    "n_samples_per_eval_prompt": (2, 3, 4),
    "temperature": (0.0, 0.5, 0.7),
    "top_p": (0.1, 0.2, 0.3),
    "top_k": (-1, 5, 6),
    "max_response_len": (10, 11, 12),
    "max_prompt_len": (10, 11, 12),
    "max_context_len": (10, 11, 12),
    "min_new_tokens": (0, 1, 2),
    "stop": ([], ["b"], ["c"]),
    "stop_token_ids": ([], [1], [2]),
    "custom_generate_function_path": ("a:f", "b:f", "c:f"),
    "metadata_overrides": ({"k": 1}, {"k": 2}, {"k": 3}),
}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes an evaluation file; the path is relative, as in messages."""
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "eval.yaml") -> str:
        Path(name).write_text(text)
        return name

    return write


def messages(path: str) -> list[str]:
    return [str(problem) for problem in read_eval_config(path)[1]]


def read(path: str) -> list[EvalSet]:
    sets, problems = read_eval_config(path)
    assert problems == []
    return sets


def one_set(**fields) -> str:
    return json.dumps({"datasets": [{"name": "a", "path": "a.jsonl", **fields}]})


def test_a_file_as_people_write_it(write):
    path = write("""
eval:
  defaults:
    n_samples_per_eval_prompt: 4
    temperature: 0.6
  datasets:
    - name: math
      path: /data/math.parquet@[0:100]
      temperature: 0
    - {name: easy, path: easy.jsonl, stop: ["\\n\\n"]}
""")
    math, easy = read(path)
    assert (math.name, math.path) == ("math", "/data/math.parquet@[0:100]")
    assert (math.n_samples_per_eval_prompt, math.temperature, math.stop) == (4, 0, None)
    assert (easy.n_samples_per_eval_prompt, easy.temperature, easy.stop) == (4, 0.6, ["\n\n"])


@pytest.mark.parametrize(
    "text",
    [
        "datasets: [{name: a, path: a.jsonl, top_k: 5}]",
        "datasets: {a: {path: a.jsonl, top_k: 5}}",
        "eval: {datasets: {a: {name: a, path: a.jsonl}}, defaults: {top_k: 5}}",
    ],
)
def test_sets_are_a_list_or_a_mapping_at_the_root_or_below_eval(write, text):
    assert read(write(text)) == [EvalSet(name="a", path="a.jsonl", top_k=5)]


def test_json_with_tabs(write):
    assert read(write('{\n\t"datasets": {\n\t\t"a": {"path": "a.jsonl"}}}', "eval.json"))[0].name == "a"


def test_a_misspelt_default_is_refused_with_the_nearest_name(write):
    text = "eval: {defaults: {temperture: 0.7}, datasets: [{name: a, path: a.jsonl}]}"
    assert messages(write(text)) == [
        "eval.defaults.temperture in eval.yaml: no such field. Did you mean temperature?",
    ]


def test_every_mistake_is_told_with_its_place(write):
    path = write("""
defaults: {max_response_len: long, name: b}
datasets:
  - {name: a, path: a.jsonl, top_k: 0}
  - {name: b, path: b.jsonl, top_p: 1.5, label-key: answer}
  - {name: ../b, path: c.jsonl}
  - {name: a, path: d.jsonl, n_samples_per_eval_prompt: true}
  - {name: e, stop: [""], stop_token_ids: [a], metadata_overrides: [1]}
  - just a path
dataset: {}
""")
    assert messages(path) == [
        "defaults.max_response_len in eval.yaml long: expects a whole number.",
        "defaults.name in eval.yaml b: belongs to each set, not to the defaults.",
        "datasets[0].top_k in eval.yaml 0: must be -1 (off) or 1 and more.",
        "datasets[1].top_p in eval.yaml 1.5: must be above 0 and at most 1.",
        "datasets[1].label-key in eval.yaml: no such field. Did you mean label_key?",
        "datasets[2].name in eval.yaml ../b: is no name of an evaluation set. A name has letters, digits, '-', '_' and"
        " '.', at most 100 of them, and begins with no '.'.",
        "datasets[3].n_samples_per_eval_prompt in eval.yaml true: expects a whole number.",
        "datasets[3].name in eval.yaml a: names two sets. Give each set a name of its own.",
        'datasets[4].stop in eval.yaml "": must be at most 32 texts, none of them empty.',
        "datasets[4].stop_token_ids in eval.yaml a: expects a list of whole numbers.",
        "datasets[4].metadata_overrides in eval.yaml 1: expects keys and plain values below it.",
        "datasets[4].path in eval.yaml: is required.",
        "datasets[5] in eval.yaml just a path: expects fields below it, such as `temperature: 0.6`.",
        "dataset in eval.yaml: no such key. Did you mean datasets?",
    ]


def test_what_is_told_once_is_left_out(write):
    sets, problems = read_eval_config(write(one_set(top_p=2, temperature=0.5)))
    assert len(problems) == 1
    assert (sets[0].top_p, sets[0].temperature) == (None, 0.5)
    assert problems_of(complete_sets(sets, OPTIONS)) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "holds no evaluation sets"),
        ("- a", "holds no evaluation sets"),
        ("eval: {defaults: {top_p: 1}}", "holds no evaluation sets"),
        ("datasets: []", "holds no evaluation sets"),
        ("datasets: text", "expects a list of sets"),
        ("datasets: [", "is no valid YAML"),
        ("datasets: {a: {path: x}, a: {path: y}}", "a is given twice"),
        ("datasets: [{name: a, name: b, path: y}]", "name is given twice"),
        ("datasets: {a: {name: b, path: y}}", "is another name than the key above it"),
        ("datasets: [{name: a, path: }]", "is required"),
        ("datasets: [{name: 2024, path: x}]", "expects text"),
        ("datasets: [{name: a, path: x, metadata_overrides: {day: .inf}}]", "expects keys and plain values"),
        ("eval: {datasets: [{name: a, path: x}]}\ndefaults: {top_p: 1}", "It belongs below `eval:`"),
    ],
)
def test_what_is_no_evaluation_file(write, text, reason):
    assert reason in "\n".join(messages(write(text)))


def test_files_that_cannot_be_read(write, tmp_path):
    assert messages("absent.yaml") == ["--eval-config absent.yaml: cannot be read: No such file or directory."]
    assert (
        "is no valid JSON: Expecting property name enclosed in double quotes at character 1 of line 2."
        in messages(write("{\n:}", "eval.json"))[0]
    )
    assert '"a" is given twice' in messages(write('{"datasets": {"a": {}, "a": {}}}', "eval.json"))[0]
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in messages("bytes.yaml")[0]


def test_references_to_the_environment_and_the_file(write, monkeypatch):
    monkeypatch.setenv("EVAL_DATA", "/data")
    monkeypatch.delenv("ABSENT", raising=False)
    path = write("""
x-anchors: [&few 4]
folder: ${oc.env:EVAL_DATA}/sets
numbers: {few: 4}
eval:
  defaults: {n_samples_per_eval_prompt: "${numbers.few}"}
  datasets:
    - {name: a, path: "${folder}/a.jsonl", temperature: "${oc.env:ABSENT,0.5}"}
    - {name: b, path: "${eval.datasets[0].path}", top_k: "${ numbers.few }"}
""")
    a, b = read(path)
    assert (a.path, a.temperature, a.n_samples_per_eval_prompt) == ("/data/sets/a.jsonl", 0.5, 4)
    assert (b.path, b.top_k) == ("/data/sets/a.jsonl", 4)


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("${oc.env:ABSENT}", "needs the environment variable ABSENT, which is not set."),
        ("${oc.decode:x}", "has a reference of the kind 'oc.decode', which is not known."),
        ("${defaults.tool_kye}", "leads nowhere: no tool_kye. Did you mean tool_key?"),
        ("${datasets[0].input_key}", "leads to itself."),
        ("${.name}", "names no place."),
        ("${a", "has a `${` that does not end"),
        ("${a.${b}}", "one inside another"),
        ("x${defaults}", "is no text or number."),
    ],
)
def test_a_reference_that_leads_nowhere(write, monkeypatch, reference, reason):
    monkeypatch.delenv("ABSENT", raising=False)
    content = {"defaults": {"tool_key": "t"}, "datasets": [{"name": "a", "path": "a", "input_key": reference}]}
    (message,) = messages(write(json.dumps(content)))
    assert message.startswith("datasets[0].input_key in eval.yaml ")
    assert reason in message


def test_every_field_has_a_place_in_the_order():
    assert set(FALLBACKS) | {"name", "path", "rm_type", "metadata_overrides"} == set(FIELDS)
    assert set(VALUES) | {"name", "path"} == set(FIELDS)


@pytest.mark.parametrize("field", VALUES)
def test_a_set_wins_over_the_defaults_and_these_over_the_options(write, field):
    own, default, option = VALUES[field]
    options = {**OPTIONS, **dict.fromkeys(FALLBACKS.get(field, ()), option)}

    def completed(defaults: dict, item: dict) -> object:
        content = {"defaults": defaults, "datasets": [{"name": "a", "path": "a.jsonl", **item}]}
        return getattr(complete_sets(read(write(json.dumps(content))), options)[0], field)

    assert completed({field: default}, {field: own}) == own
    assert completed({field: default}, {}) == default
    assert completed({field: default}, {field: None}) == default  # null: not given
    assert completed({}, {}) == (option if field in FALLBACKS else {} if field == "metadata_overrides" else None)


@pytest.mark.parametrize("field", [name for name, options in FALLBACKS.items() if len(options) == 2])
def test_an_option_of_the_evaluation_wins_over_that_of_the_rollout(field):
    first, second, _ = VALUES[field]
    of_evaluation, of_rollout = FALLBACKS[field]
    a_set = EvalSet(name="a", path="a.jsonl")
    assert getattr(complete_sets([a_set], {of_evaluation: first, of_rollout: second})[0], field) == first
    assert getattr(complete_sets([a_set], {of_evaluation: None, of_rollout: second})[0], field) == second


def test_completing_leaves_the_sets_alone():
    sets = sets_from_pairs(["a", "a.jsonl"])
    (completed,) = complete_sets(sets, {**OPTIONS, "custom_rm_path": "r:f"})
    assert sets == [EvalSet(name="a", path="a.jsonl")]
    assert (completed.default_rm_type, completed.custom_rm_path, completed.min_new_tokens) == ("gsm8k", "r:f", 0)


def test_a_complete_set_still_knows_what_was_given(write):
    sets = read(write(one_set(temperature=0.5, rm_type="math", stop=None)))
    once = complete_sets(sets, OPTIONS)
    assert complete_sets(once, OPTIONS) == once
    others = {**OPTIONS, "rollout_temperature": 0.1, "rollout_top_p": 0.1, "custom_rm_path": "r:f", "rollout_stop": []}
    assert complete_sets(once, others) == complete_sets(sets, others) != once
    assert once[0].model_dump(exclude_unset=True) == {
        "name": "a",
        "path": "a.jsonl",
        "temperature": 0.5,
        "rm_type": "math",
    }


def test_a_changed_list_of_an_option_changes_no_set():
    options = {**OPTIONS, "rollout_stop": ["END"]}
    (completed,) = complete_sets(sets_from_pairs(["a.jsonl"]), options)
    options["rollout_stop"].append("STOP")
    assert completed.stop == ["END"]


def test_a_named_reward_is_not_replaced_by_a_function_from_farther_away(write):
    path = write("{defaults: {custom_rm_path: d:f}, datasets: [{name: a, path: a, rm_type: math}, {name: b, path: b}]}")
    a, b = complete_sets(read(path), {**OPTIONS, "custom_rm_path": "o:f"})
    assert (a.rm_type, a.default_rm_type, a.custom_rm_path) == ("math", "gsm8k", None)
    assert (b.rm_type, b.default_rm_type, b.custom_rm_path) == (None, "gsm8k", "d:f")


def test_pairs():
    assert sets_from_pairs(["x.jsonl"]) == [EvalSet(name="aime", path="x.jsonl")]
    assert [(s.name, s.path) for s in sets_from_pairs(["a", "x", "b", "y"])] == [("a", "x"), ("b", "y")]
    assert sets_from_pairs([]) == []


def test_a_lone_stop_is_a_list_of_one():
    a_set = EvalSet.model_validate({"name": "a", "path": "a", "stop": "END", "stop_token_ids": 2})
    assert (a_set.stop, a_set.stop_token_ids) == (["END"], [2])


def test_problems_of_sets():
    wrong = EvalSet(name="a b", path="x", temperature=-0.1, top_p=0, top_k=0, max_response_len=0, min_new_tokens=-1)
    assert [str(problem).split(":")[0] for problem in problems_of([wrong])] == [
        "evaluation set a b",
        "temperature of the evaluation set a b -0.1",
        "top_p of the evaluation set a b 0.0",
        "top_k of the evaluation set a b 0",
        "max_response_len of the evaluation set a b 0",
        "min_new_tokens of the evaluation set a b -1",
    ]
    greedy = EvalSet(name="a", path="x", temperature=0, min_new_tokens=9, max_response_len=8)
    assert [str(problem) for problem in problems_of([greedy])] == [
        "min_new_tokens of the evaluation set a 9: is above max_response_len 8."
    ]
    twice = sets_from_pairs(["a", "x", "a", "y"])
    assert [str(p) for p in problems_of(twice)] == [
        "evaluation set a: names two sets. Give each set a name of its own."
    ]
