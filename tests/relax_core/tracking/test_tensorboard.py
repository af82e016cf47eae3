"""Events as TensorBoard reads them."""

import sys
from pathlib import Path
from typing import Any

import pytest

from data.errors import UserError
from relax_core.config import RelaxConfig, with_options
from relax_core.tracking import tensorboard
from relax_core.tracking.tensorboard import check_board, open_board


def config(**options: Any) -> RelaxConfig:
    return with_options(RelaxConfig(), {"use_tensorboard": True, **options})


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_the_metrics_of_each_step_are_there_at_once(tmp_path: Path) -> None:
    board = open_board(config(tb_project_name=str(tmp_path)), "mine-1234", 0)
    assert board is not None
    board.add(0, {"loss": 0.5, "reward/mean": 1.0, "bad": float("nan")})
    board.add(1, {"loss": 0.25})
    assert scalars(tmp_path / "mine-1234") == {"loss": [(0, 0.5), (1, 0.25)], "reward/mean": [(0, 1.0)]}
    board.close()


def test_steps_that_are_made_anew_replace_those_of_a_killed_process(tmp_path: Path) -> None:
    killed = open_board(config(tb_project_name=str(tmp_path)), "mine", 0)
    for step in range(3):
        killed.add(step, {"loss": float(step)})
    again = open_board(config(tb_project_name=str(tmp_path)), "mine", 2)  # the third step was never committed
    again.add(2, {"loss": 9.0})
    assert scalars(tmp_path / "mine") == {"loss": [(0, 0.0), (1, 1.0), (2, 9.0)]}


def test_names_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "variable"))
    assert open_board(config(), "run", 0).folder == f"{tmp_path}/variable/run"
    assert open_board(config(tb_experiment_name="mine"), "run", 0).folder == f"{tmp_path}/variable/mine"
    assert open_board(config(tb_project_name=str(tmp_path / "own")), "run", 0).folder == f"{tmp_path}/own/run"
    monkeypatch.delenv("TENSORBOARD_DIR")
    variables = tmp_path / "env.yaml"
    variables.write_text(f"env_vars: {{TENSORBOARD_DIR: {tmp_path}/file}}\n")
    assert open_board(config(env_file=str(variables)), "run", 0).folder == f"{tmp_path}/file/run"
    assert open_board(RelaxConfig(), "run", 0) is None
    assert open_board(config(load_debug_rollout_data="dump"), "run", 0) is None  # steps of another run


def test_a_missing_package_is_an_error_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    check_board(config())
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"--use-tensorboard: the package tensorboard is not installed.*relax-rl\["):
        check_board(config())
    check_board(RelaxConfig())


def test_torch_is_not_needed() -> None:
    import subprocess

    code = (
        "import sys, tempfile; from relax_core.tracking.tensorboard import TensorBoard\n"
        "TensorBoard(tempfile.mkdtemp(), 0).close()\n"
        "print(sorted({'torch', 'tensorflow'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
