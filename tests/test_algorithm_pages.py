"""Pages of the algorithms: one for each estimator, linked, with its picture; their command lines can run."""

import re
import shlex
from pathlib import Path

import pytest
from configs import model_folder

from flows.cli.main import main
from relax_core.algorithms.recipes import RECIPES
from relax_core.algorithms.registry import estimator_names

ROOT = Path(__file__).resolve().parents[1]
OVERVIEW = ROOT / "docs/explanation/algorithms.md"
FOLDER = ROOT / "docs/explanation/algorithms"
PAGES = sorted(FOLDER.glob("*.md"))
SECTIONS = ["Formula", "When", "Options", "Metrics", "Pitfalls", "Source"]


def command_lines() -> list[list[str]]:
    lines = [
        line
        for page in PAGES
        for block in re.findall(r"^```bash\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith("relax train")
    ]
    return [[word for word in shlex.split(line)[2:] if word != "..."] for line in lines]


@pytest.mark.parametrize("name", estimator_names())
def test_every_estimator_has_a_page_with_its_picture(name: str) -> None:
    text = (FOLDER / f"{name}.md").read_text()
    assert text.startswith(f"# {name}\n")
    assert f"](../../pictures/algorithms/{name}.svg)" in text
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert [heading for heading in headings if heading in SECTIONS] == SECTIONS
    assert f"--advantage-estimator {name}" in text


def test_the_overview_and_the_index_link_every_page() -> None:
    overview, index = OVERVIEW.read_text(), (ROOT / "docs/index.md").read_text()
    for page in PAGES:
        assert f"](algorithms/{page.name})" in overview
        assert f"](explanation/algorithms/{page.name})" in index
    assert all(f"relax algorithms {recipe.name}" in overview for recipe in RECIPES)


def test_there_is_no_page_of_an_estimator_that_is_gone() -> None:
    assert {page.stem for page in PAGES} - set(estimator_names()) == {"corrections"}


@pytest.mark.parametrize("options", command_lines(), ids=lambda options: " ".join(options)[:60])
def test_command_lines_have_no_error(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model_folder(tmp_path / "models/policy")
    model_folder(tmp_path / "models/teacher")
    (tmp_path / "prompts.jsonl").write_text('{"input": "1+1=", "answer": "2"}\n')
    rest = (
        "--hf-checkpoint models/policy --prompt-data prompts.jsonl --rm-type exact_number --num-rollout 50"
        " --rollout-batch-size 16 --rollout-max-response-len 64 --rollout-max-context-len 256"
    )
    code = main(["doctor", "train", *rest.split(), *options])
    assert code < 2, capsys.readouterr().out
    assert "has no effect" not in capsys.readouterr().out
