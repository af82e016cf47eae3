"""The processes of reward functions belong to the run: kept over its steps, ended with it."""

import time
from pathlib import Path

from effect_probes import report_of, rollout_table
from effect_probes_run import opened

from relax_core.config.sections import RelaxConfig
from relax_core.rewards.score import score_table


def config_of(folder: Path, kind: str) -> RelaxConfig:
    path = folder / "pid_reward.py"
    path.write_text(f"import os\n{kind} reward(sample):\n    return os.getpid()\n")
    options = {"custom_rm_path": f"{path}:reward", "rm_type": None, "reward_num_workers": 1}
    return report_of(folder / kind.replace(" ", "-"), options).config


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_they_are_kept_for_all_steps_and_end_with_the_run(tmp_path: Path) -> None:
    for kind in ("def", "async def"):
        config = config_of(tmp_path, kind)
        with opened(config) as run:
            pids = {
                int(score)
                for _ in range(3)
                for score in score_table(rollout_table(), run.config, run.reward_pools)["reward"].to_pylist()
            }
            assert len(pids) == 1
            assert runs(*pids)
        for _ in range(100):
            if not runs(*pids):
                break
            time.sleep(0.05)
        assert not runs(*pids)


def test_a_run_that_needs_none_has_none(tmp_path: Path) -> None:
    with opened(config_of(tmp_path, "def")) as run:
        pass
    assert "reward_pools" not in run.__dict__
