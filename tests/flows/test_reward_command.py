"""``relax reward``: one case, a recorded rollout, the list."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from effect_probes import reward_table, rollout_table
from transformers import AutoTokenizer

from data.store import RunStore
from flows.cli.main import main
from relax_core.config.options import with_options
from relax_core.config.run_file import dump
from relax_core.config.sections import RelaxConfig
from relax_core.rewards.registry import builtin_rewards


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """What the command prints."""
    assert main(["reward", *words]) == code
    seen = capsys.readouterr()
    return seen.out if code < 2 else seen.err


def shown(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    return json.loads(told(capsys, *words, "--json", code=code))


def test_one_case_has_score_outcome_decision_and_time(capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, "--rm-type", "gsm8k", "--label", "5", "--response", "so #### 5")
    lines = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert lines | {"seconds": ""} == {
        "score": "1",
        "outcome": "scored",
        "reward": "gsm8k",
        "decision": "explicit",
        "seconds": "",
    }
    found = shown(capsys, "--rm-type", "gsm8k", "--label", "5", "--response", "so #### 6")
    assert (found["score"], found["outcome"], found["error"]) == (0, "scored", None)


FUNCTION = """
def reward(sample):
    if sample.response == "hang":
        while True:
            pass
    if sample.response == "fail":
        raise KeyError("no")
    return {"score": sample.label["a"] + sample.metadata.get("b", 0), "length": sample.response_length,
            "cut": float(sample.status == "truncated"), "asked": sample.prompt}
"""


def test_a_function_of_ones_own_gets_all_of_the_case(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FUNCTION)
    words = ["--custom-rm-path", f"{path}:reward", "--reward-key", "score", "--label-json", '{"a": 1}']
    more = ["--metadata", '{"b": 2}', "--prompt", "q", "--response-length", "7", "--truncated"]
    found = shown(capsys, *words, *more, "--response", "x")
    assert (found["score"], found["decision"], found["reward"]) == (3, "custom", f"{path}:reward")
    assert found["components"] == {"length": 7, "cut": 1, "asked": "q"}
    assert "failed on sample 1: KeyError" in told(capsys, *words, "--response", "fail", code=2)
    late = shown(capsys, *words, "--response", "hang", "--reward-timeout", "0.5", code=1)
    assert (late["outcome"], late["score"], late["error"]) == ("failed", None, "it took longer than 0.5 s")


def test_the_response_may_come_from_standard_input() -> None:
    words = [sys.executable, "-m", "flows.cli.main", "reward", "--rm-type", "exact_number", "--label", "5"]
    done = subprocess.run([*words, "--response", "-"], input="It is 5.", capture_output=True, text=True, check=True)
    assert done.stdout.startswith("score      1\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there is nothing to score"),
        (["--response", "x"], "has no reward: neither its metadata.rm_type nor --rm-type"),
        (["--response", "x", "--rm-type", "gsm"], "no reward named 'gsm'"),
        (["--response", "x", "--rm-typ", "gsm8k"], "--rm-typ: no such option. Did you mean --rm-type?"),
        (["--response", "x", "--metadata", "{"], "--metadata {: is no JSON"),
        (["--response", "x", "--metadata", "[]"], "is no JSON object"),
        (["--response", "x", "--label", "a", "--label-json", "1"], "both given"),
        (["--response", "x", "--step", "1"], "--step does not go with a single case"),
        (["--run", "r", "--response", "x"], "--response does not go with --run"),
        (["--run", "no-such-run"], "There is no run in no-such-run: it has no folder steps."),
        (["--run", "no-such-run", "--step", "3"], "There is no run in no-such-run"),
        (["--rm-type", "math", "--response", "5"], "Sample 1 has no label to compare with. Give --label TEXT"),
        (["--rm-type", "gsm8k", "--response", "5"], "Sample 1 has no label to compare with. Give --label TEXT"),
        (["--rm-type", "judge", "--response", "5"], "This command starts none: start a server of SGLang and name it"),
        (
            ["--rm-type", "mix", "--reward-mix", '{"length": {"target": 5, "width": 2}}', "--response", "ab"],
            "its reward needs it. Give --response-length N, or --hf-checkpoint, whose tokenizer counts.",
        ),
    ],
)
def test_a_mistake_is_one_paragraph(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, *words, code=2)
    assert message in text
    assert len(text.splitlines()) == 1


def test_a_model_folder_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--rm-type", "gsm8k", "--label", "5", "--response", "5", "--hf-checkpoint", "models/nope"]
    assert "--hf-checkpoint models/nope: there is no such folder" in told(capsys, *words, code=2)


def test_a_score_of_nan_is_null_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def reward(sample):\n    return float('nan')\n")
    words = ["--custom-rm-path", f"{path}:reward", "--response", "x"]
    text = told(capsys, *words, "--json", code=1)
    assert "NaN," not in text  # which is no JSON
    found = json.loads(text)
    assert (found["score"], found["raw"], found["outcome"]) == (None, None, "nan")
    assert found["error"] == "the reward returned NaN"
    assert told(capsys, *words, code=1).startswith("score      NaN\n")


def test_the_length_is_counted_by_the_tokenizer_of_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_model: Path
) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def reward(sample):\n    return sample.response_length\n")
    words = ["--custom-rm-path", f"{path}:reward", "--response", "one two three"]
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    count = len(tokenizer("one two three", add_special_tokens=False)["input_ids"])
    found = shown(capsys, *words, "--hf-checkpoint", str(tiny_model))
    assert (found["score"], found["response_length"]) == (count, count)
    assert shown(capsys, *words, "--hf-checkpoint", str(tiny_model), "--response-length", "9")["score"] == 9
    assert shown(capsys, *words)["response_length"] is None
    assert "length     the function got 0 tokens, as the length is not known." in told(capsys, *words)
    path.write_text("def reward(sample):\n    return 1.0\n")
    assert "is not known" not in told(capsys, *words)  # it does not ask for it


def test_every_built_in_is_listed_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys, "--list").splitlines()
    assert [line.split()[0] for line in lines[: len(builtin_rewards())]] == list(builtin_rewards())
    assert all(len(line.split()) > 2 for line in lines[: len(builtin_rewards())])
    assert shown(capsys, "--list")["dummy"] == "Always 0."


def test_the_command_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom flows.cli.main import main\n"
        "assert main('reward --rm-type gsm8k --label 5 --response 5'.split()) == 0\n"
        "assert main(['reward', '--list']) == 0\n"
        "heavy = {'torch', 'transformers', 'ray', 'prefect', 'megatron', 'sglang'} & set(sys.modules)\n"
        "print('heavy:', sorted(heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy: []"


@pytest.fixture
def run(tmp_path: Path) -> str:
    """A run whose step 0 has four samples: responses 2, it is 3, 3, 2 to the label 2, scored 1, 0, 0.5, 0.5."""
    url = str(tmp_path / "run")
    store = RunStore(url)
    for name, table in (("rollout", rollout_table()), ("reward", reward_table())):
        store.write_table(store.step_path(0, f"{name}.parquet"), table)
    config = with_options(RelaxConfig(), {"rm_type": "exact_number", "custom_rm_path": None})
    store.write_bytes("config.yaml", dump(config, {"rm_type": "command line"}).encode())
    store.write_manifest(0, {"step": 0})
    return url


def files(url: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(url).rglob("*") if path.is_file()}


def test_a_recorded_rollout_is_scored_again_by_the_runs_own_reward_and_not_changed(
    run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(run)
    text = told(capsys, "--run", run, "--step", "0")
    # 1, 0, 0.5, 0.5 -> 1, 0, 0, 1: the mean stays 0.5
    assert text.splitlines() == [
        f"{run}, step 0: 4 samples, scored by exact_number (explicit) 4",
        "changed 2 (1 up, 1 down), failed 0",
        "mean    0.5 -> 0.5",
        "",
        "sample                old       new",
        "000000-0001-000       0.5         0",
        "000000-0001-001       0.5         1",
    ]
    assert files(run) == before


def test_another_reward_may_be_tried_and_all_of_it_written(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "async def reward(completions, **kwargs):\n    return [None if c == '2' else 1.0 for c in completions]\n"
    )
    out = tmp_path / "new.parquet"
    words = ["--run", run, "--custom-rm-path", f"{path}:reward", "--out", str(out)]
    found = shown(capsys, *words)
    assert {name: found[name] for name in ("samples", "changed", "up", "lost", "old_mean", "new_mean")} == {
        "samples": 4,
        "changed": 4,
        "up": 2,
        "lost": 2,
        "old_mean": 0.5,
        "new_mean": 1.0,
    }
    assert [(change["old"], change["new"]) for change in found["changes"]] == [(1, None), (0, 1), (0.5, 1), (0.5, None)]
    table = pq.read_table(out)
    assert table["old_reward"].to_pylist() == [1, 0, 0.5, 0.5]
    assert table["response"].to_pylist() == ["2", "it is 3", "3", "2"]
    assert table["outcome"].to_pylist() == ["no_score", "scored", "scored", "no_score"]


def test_a_built_in_that_is_named_stands_for_the_runs_own_function(
    run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    config = with_options(RelaxConfig(), {"custom_rm_path": "no.such.function"})
    RunStore(run).write_bytes("config.yaml", dump(config, {"custom_rm_path": "command line"}).encode())
    assert "custom_rm_path" in (Path(run) / "config.yaml").read_text()
    assert "no.such" in told(capsys, "--run", run, code=2)
    assert shown(capsys, "--run", run, "--rm-type", "exact_number")["changed"] == 2


def test_a_run_may_be_far_away(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    store = RunStore("memory://a-run")
    for name, table in (("rollout", rollout_table()), ("reward", reward_table())):
        store.write_table(store.step_path(2, f"{name}.parquet"), table)
    found = shown(capsys, "--run", "memory://a-run", "--step", "2", "--rm-type", "dummy")
    assert (found["step"], found["down"], found["new_mean"]) == (2, 3, 0)
    shown(
        capsys, "--run", "memory://a-run", "--step", "2", "--rm-type", "dummy", "--out", "memory://elsewhere/x.parquet"
    )
    assert RunStore("memory://elsewhere").read_table("x.parquet").num_rows == 4


def test_a_step_without_rewards_and_a_failure_are_told(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (Path(run) / "steps/000000/reward.parquet").unlink()
    path = tmp_path / "mine.py"
    path.write_text("def reward(sample):\n    return 1 / (sample.response != '3')\n")
    words = ["--run", run, "--custom-rm-path", f"{path}:reward", "--reward-error-policy", "no_score"]
    text = told(capsys, *words, code=1)
    assert "changed 3 (3 gained), failed 1" in text
    assert "mean    none -> 1" in text
