import sys
from pathlib import Path

import pytest
from configs import valid_config

from relax_core.config.eval_sets import EvalSet
from relax_core.config.examine import examine
from relax_core.config.function_files import FUNCTIONS, OF_TRAINING, check_function_files
from relax_core.config.options import OPTIONS

SOURCE = """
import json as text
from math import sqrt, pi as number
raise SystemExit("this file was run")
if True:
    def inner(sample): ...
reward = lambda sample: 1.0
async def waits(sample): ...
class Grader:
    def grade(self, sample): ...
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fns.py").write_text(SOURCE)
    Path("pack/below").mkdir(parents=True)
    Path("pack/below/mod.py").write_text("from pack.elsewhere import *\n")
    Path("pack/plain.py").write_text("def reward(sample): ...\n")


def told(tmp_path: Path, **options: object) -> list[str]:
    return [str(problem) for problem in check_function_files(valid_config(tmp_path, **options), "train")]


@pytest.mark.parametrize(
    "path",
    [
        "fns.py:inner",
        "fns.py:reward",
        "fns.py:waits",
        "fns.py:Grader",
        "fns.py:sqrt",
        "fns.py:number",
        "fns.py:text",
        "fns.reward",
        "fns:reward",
        "pack.plain.reward",
        "pack.below.mod.anything",  # what a star brings is known to whoever runs it
        "json.loads",
        "sys.exit",  # has no source
        "relax_core.rewards.judge.group.pairwise",
    ],
)
def test_a_function_that_is_there_is_found_without_running_its_file(tmp_path: Path, path: str) -> None:
    before = set(sys.modules)
    assert told(tmp_path, custom_rm_path=path) == []
    assert not {"fns", "pack"} & (set(sys.modules) - before)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("no.py:reward", "names no file: there is no {folder}/no.py. Check the path."),
        ("fns.py:rewards", "names no function: fns.py has no 'rewards'. Did you mean reward?"),
        ("fns.py:grade", "names no function: fns.py has no 'grade'."),
        ("fns.py", "names a file, and no function in it. Write fns.py:function."),
        ("fns", "names no function. Write file.py:function, or package.module.function."),
        ("fns.py:", "names a file, and no function in it. "),
        ("no_such.reward", "names no module: there is no 'no_such'."),
        ("pack.no.reward", "names no module: there is no 'pack.no'."),
        ("pack.plain.score", "names no function: pack.plain has no 'score'."),
        ("a b.c", "names no function."),
    ],
)
def test_a_function_that_is_not_there_is_told(tmp_path: Path, path: str, text: str) -> None:
    [found] = told(tmp_path, custom_rm_path=path)
    assert found.startswith(f"--custom-rm-path {path}: {text.format(folder=tmp_path)}")


def test_a_file_that_is_no_python_is_told_with_its_line(tmp_path: Path) -> None:
    Path("bad.py").write_text("x = 1\ndef reward(:\n")
    [found] = told(tmp_path, custom_rm_path="bad.py:reward")
    assert found.startswith("--custom-rm-path bad.py:reward: is no Python: bad.py, line 2: ")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_option_of_functions_is_looked_at(tmp_path: Path, name: str) -> None:
    report = examine(valid_config(tmp_path, **{name: "no.py:f"}))
    assert any(str(problem).startswith(f"{OPTIONS[name].flag} no.py:f: names no file") for problem in report.errors)
    evaluated = check_function_files(valid_config(tmp_path, **{name: "no.py:f"}), "evaluate")
    assert bool(evaluated) == (name not in OF_TRAINING)


def test_no_option_of_functions_is_forgotten() -> None:
    functions = {name for name, option in OPTIONS.items() if option.help.startswith("Your function")}
    honoured = {name for name in functions if OPTIONS[name].unwired is None}
    assert honoured <= set(FUNCTIONS)


def test_a_function_of_an_evaluation_set_is_told_with_the_set(tmp_path: Path) -> None:
    sets = [EvalSet(name="sums", path="prompts.jsonl", custom_rm_path="no.py:f")]
    [found] = told(tmp_path, eval_datasets=sets)
    assert found.startswith("--eval-datasets no.py:f (evaluation set sums): names no file")
