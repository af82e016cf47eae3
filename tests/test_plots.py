"""The pictures of the algorithms: one for each estimator, small, what the code gives, and told when they are not."""

import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from programs import program as load_program

pytest.importorskip("matplotlib", reason="the pictures need the extra `plot`")

import matplotlib

from relax_core.algorithms.registry import estimator_names, get_estimator

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs/pictures/algorithms"


@pytest.fixture(scope="module")
def plots() -> ModuleType:
    return load_program("docs/plots.py")


def test_every_estimator_has_a_picture_and_every_picture_is_one(plots: ModuleType) -> None:
    found = {path.stem for path in FOLDER.iterdir()}
    assert set(estimator_names()) <= found
    assert found == set(plots.picture_names())


def test_pictures_are_what_the_code_gives(plots: ModuleType) -> None:
    drawn = re.search(r"Matplotlib v([\w.]+),", (FOLDER / "grpo.svg").read_text())
    assert drawn is not None
    if drawn[1] != matplotlib.__version__:
        pytest.skip(f"they were drawn with matplotlib {drawn[1]}, and this is {matplotlib.__version__}")
    assert [(path.name, what) for path, _, what in plots.outdated(FOLDER)] == []


def test_pictures_are_small_and_the_same_each_time(plots: ModuleType) -> None:
    assert {path.name for path in FOLDER.iterdir() if path.stat().st_size >= 60_000} == set()
    assert plots.svg("kl") == plots.svg("kl")


def test_a_missing_and_an_old_picture_are_told(
    plots: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plots, "picture_names", lambda: ["kl", "corrections"])
    arguments = ["--folder", str(tmp_path)]
    assert plots.main(arguments) == 0
    capsys.readouterr()
    assert plots.main([*arguments, "--check"]) == 0
    assert capsys.readouterr().out == "up to date\n"
    (tmp_path / "kl.svg").unlink()
    with (tmp_path / "corrections.svg").open("a") as file:
        file.write("<!-- by hand -->")
    assert plots.main([*arguments, "--check"]) == 1
    told = capsys.readouterr().out
    assert "kl.svg is missing: run python docs/plots.py." in told
    assert "corrections.svg is out of date: run python docs/plots.py." in told
    assert not (tmp_path / "kl.svg").exists()  # --check writes nothing


def test_the_curves_are_those_of_the_loss(plots: ModuleType) -> None:
    # grpo, A = 1, eps 0.2 and 0.28: -ratio up to 1.28, there -1.28 for good; the push is the ratio, then 0
    loss, push = plots.loss_and_push(get_estimator("grpo"), np.array([0.5, 1.0, 2.0]), 1.0)
    np.testing.assert_allclose(loss, [-0.5, -1.0, -1.28])
    np.testing.assert_allclose(push, [0.5, 1.0, 0.0])
    # A = -1 with a dual clip of 3: no more than 3, and no push there
    loss, push = plots.loss_and_push(get_estimator("grpo"), np.array([0.5, 2.0, 4.0]), -1.0, eps_clip_c=3.0)
    np.testing.assert_allclose(loss, [0.8, 2.0, 3.0])
    np.testing.assert_allclose(push, [0.0, -2.0, 0.0])


def test_an_estimator_that_is_new_gets_its_loss_and_its_push(plots: ModuleType) -> None:
    assert len(plots.panels_of("cispo")) == 2  # it has no panels of its own
    assert len(plots.panels_of("ppo")) == 4
