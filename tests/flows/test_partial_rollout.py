"""Steps that begin more prompts than they need: what is left over goes on in the next step, through a kill as well.

Fake engine and trainer, real flow and files. Each step begins five groups of two samples and needs three. The engine
holds samples of two of them back until they are stopped, so that it is known which groups are the step's.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fakes import FakeBackend, Killed

from data.errors import UserError
from data.store import RunStore
from relax_core.config import RelaxConfig
from relax_core.config.options import with_options
from relax_core.rollout.scores import GroupScores
from relax_core.tracking.events import read_events

pytestmark = pytest.mark.usefixtures("prefect_server")

STEPS, LONGEST = 4, 8

HELD = (
    *("000000-0001-001", "000000-0003"),
    *("000001-0000", "000001-0002-000"),
    *("000002-0000-001", "000002-0001"),
    *("000003-0001", "000003-0002"),
)
TRAINED = [
    ["000000-0000", "000000-0002", "000000-0004"],
    ["000000-0001", "000000-0003", "000001-0001"],
    ["000001-0000", "000001-0002", "000002-0002"],
    ["000002-0000", "000002-0001", "000003-0000"],
]
"""Step 0 draws five prompts; each later one takes the two groups that are left and draws three."""


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "rows.jsonl"
    path.write_text("".join(json.dumps({"input": f"{n} + 1 =", "label": str(n + 1)}) + "\n" for n in range(40)))
    return path


def config(folder: Path, model: Path, prompts: Path, **options: Any) -> RelaxConfig:
    values = {
        "run_dir": str(folder / "run"),
        "hf_checkpoint": str(model),
        "prompt_data": str(prompts),
        "label_key": "label",
        "num_rollout": STEPS,
        "rollout_batch_size": 3,
        "over_sampling_batch_size": 5,
        "n_samples_per_prompt": 2,
        "rollout_max_response_len": 2 * LONGEST,
        "rm_type": "random",
        "partial_rollout": True,
        "save_interval": 1,
        **options,
    }
    return with_options(RelaxConfig(), values)


def held_from(step: int) -> list[str]:
    """What an engine that is started for ``step`` holds back: it does not know of earlier requests."""
    return [name for name in HELD if int(name[:6]) >= step]


def backend(*held: str) -> FakeBackend:
    made = FakeBackend()
    made.engine.pace, made.engine.longest, made.engine.until_aborted = 0.001, LONGEST, held
    return made


def train(settings: RelaxConfig, engines: FakeBackend) -> dict[str, Any]:
    from flows.train import train

    return train(settings, backend=engines)


def table(settings: RelaxConfig, step: int, name: str = "rollout") -> pa.Table:
    store = RunStore(str(settings.run.run_dir))
    return store.read_table(store.step_path(step, f"{name}.parquet"))


def groups(rows: pa.Table) -> list[str]:
    return list(dict.fromkeys(rows["group_id"].to_pylist()))


def rows_of(settings: RelaxConfig, step: int, name: str = "rollout") -> dict[str, dict[str, Any]]:
    return {row["sample_id"]: row for row in table(settings, step, name).to_pylist()}


def drawn(settings: RelaxConfig, steps: int = STEPS) -> Counter[str]:
    """How often each prompt is in a rollout or in the last buffer, in groups."""
    parts = [table(settings, step) for step in range(steps)] + [table(settings, steps - 1, "buffer")]
    found = {(row["group_id"], row["prompt_id"]) for part in parts for row in part.to_pylist()}
    return Counter(prompt for _, prompt in found)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, prefect_server: None, tiny_model: Path, prompts: Path) -> Any:
    settings = config(tmp_path_factory.mktemp("whole"), tiny_model, prompts)
    engines = backend(*HELD)
    return settings, engines, train(settings, engines)


def test_every_prompt_is_trained_on_or_left_once_and_a_group_keeps_its_ids(whole: Any) -> None:
    settings, _, _ = whole
    assert [groups(table(settings, step)) for step in range(STEPS)] == TRAINED
    assert groups(table(settings, STEPS - 1, "buffer")) == ["000003-0001", "000003-0002"]
    assert drawn(settings) == Counter({f"{row:08d}": 1 for row in range(14)})  # 5 + 3 x 3
    store = RunStore(str(settings.run.run_dir))
    assert [store.read_manifest(step)["cursor"]["groups"] for step in range(STEPS)] == [5, 8, 11, 14]
    for step in range(STEPS):
        rows = table(settings, step)
        assert rows["index"].to_pylist() == sorted(rows["index"].to_pylist())
        assert set(rows["step"].to_pylist()) == {step}
        assert rows.num_rows == 6


def test_a_stopped_response_goes_on_where_it_was(whole: Any) -> None:
    """The sample that was held back had some tokens of version 0; the rest of its budget is asked for in step 1."""
    settings, engines, _ = whole
    left, now = rows_of(settings, 0, "buffer"), rows_of(settings, 1)
    before, after = left["000000-0001-001"], now["000000-0001-001"]
    count = before["response_length"]
    assert 0 < count < after["response_length"]
    assert after["tokens"][: len(before["tokens"])] == before["tokens"]
    assert after["rollout_log_probs"][:count] == before["rollout_log_probs"]
    assert after["token_versions"] == [0] * count + [1] * (after["response_length"] - count)
    assert after["weight_versions"] == [0, 1]
    assert set(after["loss_mask"]) == {1}
    assert (before["abort_count"], after["abort_count"]) == (1, 1)
    assert json.loads(after["metadata"])["start_rollout_id"] == 0
    # the other sample of the group was finished, and is not asked for again
    assert now["000000-0001-000"]["tokens"] == left["000000-0001-000"]["tokens"]
    assert sum(rid.startswith("000000-0001-000") for rid in engines.engine.asked) == 1


def test_the_metrics_and_the_timeline_tell_of_what_is_left(whole: Any) -> None:
    settings, _, result = whole
    metrics = result["metrics"]
    assert metrics["rollout/groups_begun"] == 5
    assert metrics["rollout/groups_from_buffer"] == metrics["rollout/groups_to_buffer"] == 2
    assert metrics["rollout/partial_samples"] == 4  # both groups of step 2 and all their samples
    assert metrics["rollout/aborted"] == 4
    assert metrics["rollout/lost_tokens"] == 0
    [event] = read_events(RunStore(str(settings.run.run_dir)), step=0, kind="groups_carried")
    assert (event["finished"], event["stopped"], event["left"]) == (0, 2, 0)


def test_a_run_that_is_killed_while_it_generates_ends_with_the_same_groups_and_pays_for_no_sample_twice(
    whole: Any, tmp_path: Path, tiny_model: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(tmp_path, tiny_model, prompts)
    wants, left = GroupScores.want, [2 * 3 + 2]

    def dies(self: GroupScores, ids: Any) -> None:
        left[0] -= 1
        if left[0] == 0:  # the second group of step 2 is accepted
            raise Killed
        wants(self, ids)

    monkeypatch.setattr(GroupScores, "want", dies)
    with pytest.raises(Killed):
        train(settings, backend(*HELD))
    monkeypatch.setattr(GroupScores, "want", wants)
    store = RunStore(str(settings.run.run_dir))
    [folder] = store.ls("steps/000002/generate.parts")
    parts = [
        f"steps/000002/generate.parts/{folder}/{name}" for name in store.ls(f"steps/000002/generate.parts/{folder}")
    ]
    kept = [sample_id for part in parts for sample_id in store.read_table(part)["sample_id"].to_pylist()]
    assert kept
    engines = backend(*held_from(2))
    train(settings, engines)
    asked = {rid.rsplit(".", 2)[0] for rid in engines.engine.asked}
    assert not asked & set(kept)
    assert [groups(table(settings, step)) for step in range(STEPS)] == TRAINED
    assert drawn(settings) == Counter({f"{row:08d}": 1 for row in range(14)})
    [event] = read_events(store, step=2, kind="samples_reused")
    assert event["samples"] == len(kept)


def test_a_kill_between_steps_loses_nothing(
    whole: Any, tmp_path: Path, tiny_model: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the generation is recorded, and after the commit: the buffer comes from the record, or the manifest."""
    from fakes import Stopper

    settings = config(tmp_path, tiny_model, prompts)
    for step, stage, leave, first in ((1, "reward", False, 0), (2, "commit", True, 2)):
        Stopper(monkeypatch, step, stage, leave)
        with pytest.raises(Killed):
            train(settings, backend(*held_from(first)))
        monkeypatch.undo()
    (tmp_path / "run/steps/000002/stages/generate.json").unlink()
    train(settings, backend(*held_from(3)))
    assert [groups(table(settings, step)) for step in range(STEPS)] == TRAINED


def test_without_partial_rollout_prompts_come_again_and_their_tokens_are_given_up(
    tmp_path: Path, tiny_model: Path, prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = config(tmp_path, tiny_model, prompts, partial_rollout=False)
    engines = backend(*HELD)
    metrics = train(settings, engines)["metrics"]
    assert [groups(table(settings, step)) for step in range(STEPS)] == TRAINED
    assert drawn(settings) == Counter({f"{row:08d}": 1 for row in range(14)})
    left, now = rows_of(settings, 0, "buffer"), rows_of(settings, 1)
    assert {row["response_length"] for row in left.values()} == {0}
    assert {name: now[name]["seed"] for name in left} == {name: row["seed"] for name, row in left.items()}
    assert set(now["000000-0001-001"]["token_versions"]) == {1}
    assert "start_rollout_id" not in json.loads(now["000000-0001-001"]["metadata"])
    assert metrics["rollout/lost_tokens"] > 0
    assert "unfinished responses are given up, and their prompts come again" in capsys.readouterr().out


def test_older_tokens_are_not_trained_on_where_they_are_masked(tmp_path: Path, tiny_model: Path, prompts: Path) -> None:
    settings = config(tmp_path, tiny_model, prompts, num_rollout=2, mask_offpolicy_in_partial_rollout=True)
    train(settings, backend(*HELD))
    left, now = rows_of(settings, 0, "buffer"), rows_of(settings, 1)
    for name, row in left.items():
        before, after = row["response_length"], now[name]["response_length"]
        assert now[name]["loss_mask"] == [0] * before + [1] * (after - before)
    assert set(now["000001-0001-000"]["loss_mask"]) == {1}
    assert set(now["000000-0001-000"]["loss_mask"]) == {0}  # it was finished in step 0


def test_a_sample_that_was_stopped_often_enough_is_left_to_finish(
    tmp_path: Path, tiny_model: Path, prompts: Path
) -> None:
    """With a limit of 0 nobody is stopped: what is not needed is finished and kept."""
    settings = config(tmp_path, tiny_model, prompts, num_rollout=1, partial_rollout_max_aborted_count=0)
    metrics = train(settings, backend())["metrics"]
    assert metrics["rollout/aborted"] == 0
    left = table(settings, 0, "buffer")
    assert left.num_rows == 4
    assert set(left["status"].to_pylist()) == {"completed"}


FILTER = """
import pathlib

def keep(args, group):
    \"\"\"Of each three prompts the third is left out.\"\"\"
    assert len(group) == args.n_samples_per_prompt
    assert all(sample.reward is not None for sample in group)
    return group[0].group_index % 3 != 2, "third"

def newest(args, rollout_id, buffer, num_samples):
    return buffer[::-1][:num_samples]

def fails(args, group):
    raise ValueError("no")
"""

REWARD = """
import os, pathlib

def reward(sample):
    descriptor = os.open(pathlib.Path(__file__).parent / "called", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, (sample.sample_id + "\\n").encode())
    os.close(descriptor)
    return float(sample.index)
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(FILTER)
    (tmp_path / "score.py").write_text(REWARD)
    return tmp_path / "mine.py"


def filtered(folder: Path, model: Path, prompts: Path, mine: Path, name: str = "keep", **options: Any) -> RelaxConfig:
    own = {
        "dynamic_sampling_filter_path": f"{mine}:{name}",
        "custom_rm_path": f"{mine.parent}/score.py:reward",
        "rm_type": None,
        "over_sampling_batch_size": None,
        "partial_rollout": False,
    }
    return config(folder, model, prompts, **{**own, **options})


def test_groups_that_the_filter_leaves_out_are_replaced_and_no_reward_is_called_twice(
    tmp_path: Path, tiny_model: Path, prompts: Path, mine: Path
) -> None:
    """Of the groups 0, 1, 2 two are kept; of 3, 4, 5 the first that is finished is the step's third."""
    settings = filtered(tmp_path, tiny_model, prompts, mine, num_rollout=1)
    metrics = train(settings, backend())["metrics"]
    assert metrics["rollout/dynamic_filter/drop_third"] >= 1
    trained = table(settings, 0)
    assert trained.num_rows == 6
    assert not any(index % 3 == 2 for index in trained["group_index"].to_pylist())
    called = Counter((tmp_path / "called").read_text().split())
    assert set(called.values()) == {1}
    assert set(trained["sample_id"].to_pylist()) <= called.keys()
    store = RunStore(str(settings.run.run_dir))
    [event] = read_events(store, step=0, kind="groups_dropped")
    assert "000000-0002" in event["groups"]


def test_a_filter_that_fails_names_the_group_and_costs_no_sample(
    tmp_path: Path, tiny_model: Path, prompts: Path, mine: Path
) -> None:
    settings = filtered(tmp_path, tiny_model, prompts, mine, "fails", num_rollout=1)
    engines = backend()
    with pytest.raises(UserError, match=r"mine.py:fails failed on group 000000-000\d: ValueError: no"):
        train(settings, engines)
    before = set(engines.engine.asked)
    mine.write_text(FILTER.replace('raise ValueError("no")', "return True"))
    train(settings, engines)
    parts = {rid.rsplit(".", 2)[0] for rid in before}
    assert len(parts) == 6
    again = [rid.rsplit(".", 2)[0] for rid in engines.engine.asked if rid not in before]
    assert len(set(again) & parts) < len(parts)  # what was finished is there


def test_the_buffer_filter_chooses_which_groups_go_on(
    tmp_path: Path, tiny_model: Path, prompts: Path, mine: Path
) -> None:
    """Of three groups two are too many in step 0: step 1 begins with both, the newest first, and draws one."""
    settings = config(
        tmp_path,
        tiny_model,
        prompts,
        num_rollout=2,
        rollout_batch_size=1,
        over_sampling_batch_size=3,
        buffer_filter_path=f"{mine}:newest",
        partial_rollout_max_aborted_count=0,
    )
    train(settings, backend())
    left = groups(table(settings, 0, "buffer"))
    assert len(left) == 2
    assert groups(table(settings, 1))[0] in left
    everything = {*groups(table(settings, 0)), *groups(table(settings, 1)), *groups(table(settings, 1, "buffer"))}
    assert len(everything) == 3 + 1


def test_a_step_that_begins_what_it_needs_has_no_buffer(tmp_path: Path, tiny_model: Path, prompts: Path) -> None:
    """And asks for what it would ask for without the options."""
    one = config(tmp_path / "one", tiny_model, prompts, num_rollout=2, over_sampling_batch_size=3)
    two = config(
        tmp_path / "two", tiny_model, prompts, num_rollout=2, over_sampling_batch_size=None, partial_rollout=False
    )
    for settings in (one, two):
        train(settings, backend())
    for step in range(2):
        assert table(one, step).equals(table(two, step))
        store = RunStore(str(one.run.run_dir))
        assert not store.exists(store.step_path(step, "buffer.parquet"))


def test_steps_that_overlap_leave_groups_to_each_other(tmp_path: Path, tiny_model: Path, prompts: Path) -> None:
    """Each step takes what the one before has left, though that has not trained yet."""
    asynchronous = {"fully_async": True, "max_staleness": 1, "resource": {"actor": (1, 1), "rollout": (1, 1)}}
    settings = config(
        tmp_path, tiny_model, prompts, num_rollout=3, mask_offpolicy_in_partial_rollout=True, **asynchronous
    )
    engines = backend("000000-0001-001", "000000-0003")
    train(settings, engines)
    assert drawn(settings, 3) == Counter({f"{row:08d}": 1 for row in range(drawn(settings, 3).total())})
    assert groups(table(settings, 0)) == TRAINED[0]
    left, now = rows_of(settings, 0, "buffer"), rows_of(settings, 1)
    continued = [name for name, row in left.items() if row["response_length"] and name in now]
    for name in continued:
        before = left[name]["response_length"]
        assert now[name]["token_versions"][:before] == left[name]["token_versions"]
        assert now[name]["loss_mask"][:before] == [0] * before
