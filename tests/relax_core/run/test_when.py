"""How long a run is, and after which steps it saves."""

from typing import Any

import pytest

from data.errors import UserError
from relax_core.config import RelaxConfig, with_options
from relax_core.run.session import RunSession


def session(rows: int = 100, **options: Any) -> RunSession:
    """A session as far as its schedule goes."""
    run = object.__new__(RunSession)
    run.config = with_options(RelaxConfig(), {"rollout_batch_size": 8, **options})
    run.__dict__["prompts"] = range(rows)
    run.total_steps, run.steps_per_epoch = run._length()
    return run


def saved(run: RunSession) -> list[int]:
    return [step for step in range(run.total_steps) if run.checkpoint_due(step)]


def test_periodic_saves() -> None:
    assert saved(session(num_rollout=10, save_interval=3)) == [2, 5, 8, 9]
    assert saved(session(num_rollout=10)) == [9]


def test_the_last_step_of_an_epoch_is_saved_too() -> None:
    run = session(rows=35, num_epoch=3, save_interval=3)  # 35 prompts, 8 a step: 4 whole steps an epoch
    assert (run.total_steps, run.steps_per_epoch) == (12, 4)
    run.total_steps = 10
    assert saved(run) == [2, 3, 5, 7, 8, 9]
    assert saved(session(rows=35, num_epoch=3)) == [11]


def test_num_rollout_wins_over_epochs() -> None:
    run = session(rows=35, num_epoch=3, num_rollout=10, save_interval=3)
    assert (run.total_steps, saved(run)) == (10, [2, 5, 8, 9])


def test_an_epoch_without_a_whole_step_is_an_error() -> None:
    with pytest.raises(UserError, match="an epoch of 7 prompts has no whole step of --rollout-batch-size 8"):
        session(rows=7, num_epoch=4)


def test_rotation_saves_every_step_and_exports_as_before() -> None:
    run = session(num_rollout=5, save_interval=2, rotate_ckpt=True)
    assert saved(run) == [0, 1, 2, 3, 4]
    assert [step for step in range(5) if run.export_due(step)] == [1, 3, 4]


@pytest.mark.parametrize(
    ("options", "mode", "versions"),
    [
        ({}, "whole", [0, 1, 2]),
        ({"debug_rollout_only": True}, "rollout", [0, 0, 0]),
        ({"load_debug_rollout_data": "x.pt"}, "train", [0, 1, 2]),
        ({"debug_train_only": True}, "train", [0, 1, 2]),
    ],
)
def test_the_part_of_the_loop_decides_the_weights_of_a_step(
    options: dict[str, Any], mode: str, versions: list[int]
) -> None:
    run = session(num_rollout=3, eval_interval=1, **options)
    assert run.mode == mode
    assert [run.base_version(step) for step in range(3)] == versions
    assert run.evaluation_due(0) == (mode == "whole")
