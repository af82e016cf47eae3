import json
from pathlib import Path
from typing import Any

import pytest
from configs import model_folder, valid_config

from relax_core.config.eval_sets import EvalSet
from relax_core.config.examine import examine
from relax_core.rewards.sandbox import run


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short one: messages cut long values."""
    return tmp_path_factory.mktemp("t")


def told(tmp_path: Path, **options: Any) -> list[str]:
    return [str(problem) for problem in examine(valid_config(tmp_path, **options)).errors]


def test_the_judges_model_must_be_there(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    place = f"{tmp_path}/empty"
    [text] = told(tmp_path, rm_type="judge", genrm_model_path=place)
    assert text.startswith(f"--genrm-model-path {place}: has no model: config.json is missing. Name a local folder")
    [text] = told(tmp_path, rm_type="judge", genrm_model_path="no/such")
    assert text.startswith("--genrm-model-path no/such: is no folder.")
    assert told(tmp_path, rm_type="judge", genrm_model_path=str(model_folder(tmp_path / "judge"))) == []


def test_the_judges_context_is_no_longer_than_its_model(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "judge")
    most = json.loads((model / "config.json").read_text())["max_position_embeddings"]
    judge = {"rm_type": "judge", "genrm_model_path": str(model), "genrm_sampling_config": {"max_response_len": 8}}
    for key in ("max_context_len", "context_length"):
        [text] = told(tmp_path, **judge, genrm_engine_config={key: most + 1})
        start = f"--genrm-engine-config {key} {most + 1}: is more than the {most} positions of the judge"
        assert text.startswith(start)
        assert told(tmp_path, **judge, genrm_engine_config={key: most}) == []


def test_the_judges_template_must_be_one(tmp_path: Path) -> None:
    judge = str(model_folder(tmp_path / "judge"))
    [text] = told(tmp_path, rm_type="judge", genrm_model_path=judge, genrm_template="no.jinja")
    assert text.startswith("--genrm-template no.jinja: it is no template: ")
    assert "one of correctness, pairwise, pointwise, rubric" in text
    template = tmp_path / "own.jinja"
    template.write_text("a\n{% if %}\n")
    [text] = told(tmp_path, rm_type="judge", genrm_model_path=judge, genrm_template=str(template))
    assert text.startswith(f"--genrm-template {template}: line 2: ")
    template.write_text("{{ response }}\n")
    assert told(tmp_path, rm_type="judge", genrm_model_path=judge, genrm_template=str(template)) == []


def test_programs_need_a_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "hindrance", lambda isolated: "unshare: not permitted" if isolated else "")
    sets = [EvalSet(name="programs", path="memory://p.jsonl", rm_type="code")]
    for options, flag in (
        ({"rm_type": "code"}, "--rm-type"),
        ({"rm_type_fallback": "boxed_code"}, "--rm-type-fallback"),
        ({"eval_datasets": sets}, "--eval-datasets"),
    ):
        [text] = told(tmp_path, **options)
        assert text.startswith(
            f"{flag} code: needs a sandbox for programs, which this machine does not give: unshare: "
        )
        assert "--code-sandbox limits" in text
    assert told(tmp_path, rm_type="code", code_sandbox="limits") == []
    assert told(tmp_path, rm_type="math") == []
    monkeypatch.setattr(run, "hindrance", lambda isolated: "Permission denied: '/root/bin/python3'")
    [text] = told(tmp_path, rm_type="code", code_sandbox="limits")
    assert text.startswith(
        "--rm-type code: cannot run programs: Permission denied: '/root/bin/python3'. Programs run as"
    )


def test_a_file_cannot_be_the_folder_of_a_run_or_of_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    file = str(tmp_path / "file")
    for name in ("save", "critic_save", "run_dir"):
        flag = f"--{name.replace('_', '-')}"
        assert told(tmp_path, **{name: file}) == [
            f"{flag} {file}: is a file, and a folder is meant. Name another folder."
        ]
        assert told(tmp_path, **{name: f"{file}/below"}) == [
            f"{flag} {file}/below: cannot be made: {file} is a file. Name another folder."
        ]
        assert told(tmp_path, **{name: str(tmp_path / "new" / "folder")}) == []
