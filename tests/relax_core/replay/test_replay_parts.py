"""What replays are put together from: options, weights, statistics, and runs that may only be read."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from configs import valid_config
from effect_probes import reward_table, rollout_table

from data.errors import UserError
from data.files import FileStore
from data.ragged import Ragged
from data.store import RunStore
from relax_core.config.options import with_options
from relax_core.config.run_file import dump
from relax_core.config.sections import RelaxConfig
from relax_core.replay.changes import changed_config, option_words, pinned_length, refuse_idle, shown_differences
from relax_core.replay.compare import Difference
from relax_core.replay.replay import Replay
from relax_core.replay.report import advantage_changes, reward_changes
from relax_core.replay.text import difference_text, replay_lines
from relax_core.replay.weights import compare_weights
from relax_core.run.advantage import batch_table


def run_of(folder: Path, **options: Any) -> tuple[str, RelaxConfig]:
    """A run with four samples in step 0, recorded with these options and no model."""
    config = with_options(valid_config(folder), {"n_samples_per_prompt": 2, "rollout_batch_size": 2, **options})
    store = RunStore(str(folder / "run"))
    rollout, reward = rollout_table(), reward_table()
    tables = {"rollout": rollout, "reward": reward, "batch": batch_table(rollout, reward, None, config)[0]}
    for name, table in tables.items():
        store.write_table(store.step_path(0, f"{name}.parquet"), table)
    store.write_bytes("config.yaml", dump(config, dict.fromkeys(("rm_type", *options), "command line")).encode())
    return store.url, config


def test_an_option_may_be_written_as_a_name_or_as_a_flag() -> None:
    assert option_words(["kl_coef=0.1", "--kl-coef=0.1", "gamma=a=b"]) == [
        "--kl-coef=0.1",
        "--kl-coef=0.1",
        "--gamma=a=b",
    ]
    for text in ("kl_coef", "=1", "--=1"):
        with pytest.raises(UserError, match="is no OPTION=VALUE"):
            option_words([text])


def test_what_follows_from_an_option_follows(tmp_path: Path) -> None:
    """The upper clip is the lower one where it is not given."""
    url, config = run_of(tmp_path)
    config = with_options(config, {"eps_clip": 0.2, "eps_clip_high": 0.2})
    changed, names = changed_config(url, config, ["eps_clip=0.3"])
    assert (changed.algorithm.eps_clip, changed.algorithm.eps_clip_high, names) == (0.3, 0.3, ["eps_clip"])


def test_what_is_wrong_with_the_run_itself_is_no_mistake_of_the_replay(tmp_path: Path) -> None:
    """Its model and its prompts are gone."""
    url, config = run_of(tmp_path)
    (tmp_path / "model/config.json").unlink()
    (tmp_path / "prompts.jsonl").unlink()
    assert changed_config(url, config, ["eps_clip=0.3"])[0].algorithm.eps_clip == 0.3
    with pytest.raises(UserError, match=r"--eps-clip -1"):
        changed_config(url, config, ["eps_clip=-1"])
    report = Replay(url, 0, first="advantage", last="train").run()
    assert {stage.stage: stage.state for stage in report.stages} == {"advantage": "same", "train": "left out"}


def test_an_option_of_the_evaluation_alone_is_refused() -> None:
    with pytest.raises(UserError, match="matters to evaluate alone, which a replay does not repeat"):
        refuse_idle(RelaxConfig(), RelaxConfig(), ["eval_datasets"], ["reward", "advantage"])


def test_arguments_of_functions_that_do_not_generate_may_change() -> None:
    base = with_options(RelaxConfig(), {"custom_reward_post_process_path": "mine.py:halve"})
    changed = with_options(base, {"custom_args": {"a": 1}})
    refuse_idle(base, changed, ["custom_args"], ["reward", "advantage"])
    generates = with_options(base, {"custom_generate_function_path": "mine.py:generate"})
    with pytest.raises(UserError, match="changes what is generated"):
        refuse_idle(generates, changed, ["custom_args"], ["reward", "advantage"])


def test_the_environment_of_the_person_changes_no_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, config = run_of(tmp_path)
    monkeypatch.setenv("RELAX_EPS_CLIP", "0.9")
    assert changed_config(url, config, ["gamma=0.5"])[0].algorithm.eps_clip == config.algorithm.eps_clip


def test_a_secret_is_not_shown() -> None:
    old, new = (with_options(RelaxConfig(), {"rm_url": f"http://me:{word}@host"}) for word in ("one", "two"))
    [change] = shown_differences(old, new)
    assert "one" not in change.old
    assert "two" not in change.new


def test_a_length_that_a_schedule_needs_and_that_is_not_known_is_asked_for() -> None:
    by_epoch = with_options(RelaxConfig(), {"num_epoch": 2, "lr_decay_style": "linear"})
    with pytest.raises(UserError, match="Say it: --set num_rollout=STEPS"):
        pinned_length(by_epoch, 3)
    constant = with_options(by_epoch, {"lr_decay_style": "constant"})
    assert pinned_length(constant, 3).rollout.num_rollout == 4
    known = with_options(by_epoch, {"num_rollout": 9})
    assert pinned_length(known, 3) is known


def test_a_run_that_may_only_be_read_is_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, _ = run_of(tmp_path)
    write = FileStore.write_bytes

    def refuse(store: FileStore, path: str, data: Any) -> None:
        assert not f"{store.root}/".startswith(f"{url}/"), path
        write(store, path, data)

    monkeypatch.setattr(FileStore, "write_bytes", refuse)
    changes = ["disable_grpo_std_normalization=true"]
    report = Replay(url, 0, first="advantage", changes=changes, out=str(tmp_path / "out")).run()
    assert [stage.state for stage in report.stages] == ["differs"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"batch.parquet", "replay.json"}


def shown(old: Any, new: Any) -> str:
    text = difference_text(Difference("generate", "response", "s", None, old, new), "in A", "in B")
    return text.removeprefix("stage generate, sample s, response: ")


def test_of_long_values_the_part_is_shown_in_which_they_differ() -> None:
    """Texts of 100 x, 1 or 2, 100 y: twenty characters before the first that differs, forty from it on."""
    old, new = ("x" * 100 + digit + "y" * 100 for digit in "12")
    x, y = "x" * 20, "y" * 39
    assert shown(old, new) == f"...{x}1{y}... in A, ...{x}2{y}... in B"
    assert shown("x" * 100, "x" * 101) == f"...{x} in A, ...{x}x in B"
    assert shown("a" + "x" * 99, "b" + "x" * 99) == f"a{'x' * 59}... in A, b{'x' * 59}... in B"
    assert shown(list(range(100)), [*range(99), -1]).count("98, 99] in A") == 1
    assert shown("short", None) == "short in A, null in B"
    assert shown("two\nlines", "two lines ") == "'two\\nlines' in A, 'two lines ' in B"
    assert shown("", "漢字") == "'' in A, 漢字 in B"
    assert shown(0.5, 1 / 3) == "0.5 in A, 0.3333333333333333 in B"


def test_what_options_change_is_apart_from_what_differs_without_them(tmp_path: Path) -> None:
    """Scores were changed by hand, and the option counts from the advantages on."""
    url, _ = run_of(tmp_path)
    store = RunStore(url)
    Replay(url, 0, out=str(tmp_path / "out")).run()  # what this configuration really gives
    for name in ("reward", "batch"):
        store.write_bytes(f"steps/000000/{name}.parquet", (tmp_path / f"out/{name}.parquet").read_bytes())
    changes = ["disable_grpo_std_normalization=true"]
    report = Replay(url, 0, changes=changes).run()
    assert (report.reached, report.first) == ("advantage", None)
    assert report.first_change is not None
    lines = list(replay_lines(report))
    assert [line.split(":")[0] for line in lines if line.startswith("First")] == ["First change"]

    table = store.read_table("steps/000000/reward.parquet")
    scores = pa.array([5.0] * table.num_rows, pa.float32())
    place = table.schema.get_field_index("reward")
    store.write_table("steps/000000/reward.parquet", table.set_column(place, table.schema.field("reward"), scores))
    report = Replay(url, 0, changes=changes).run()
    assert report.first is not None
    assert (report.first.stage, report.first.old) == ("reward", 5.0)
    assert report.first_change is not None
    assert report.first_change.stage == "advantage"
    lines = list(replay_lines(report))
    first = next(place for place, line in enumerate(lines) if line.startswith("First difference: stage reward"))
    assert lines[first + 1].startswith("The options that were set count from stage advantage on")
    assert lines[first + 2].startswith("First change: stage advantage")
    assert any(line.startswith("reward     DIFFERS") for line in lines)
    assert report.to_json()["first_change"]["stage"] == "advantage"


def test_a_step_that_is_not_finished_is_said_to_be_so_with_what_to_do(tmp_path: Path) -> None:
    url, _ = run_of(tmp_path)
    store = RunStore(url)
    report = Replay(url, 0).run()
    assert any("step 0 is not finished" in note and f"--run-dir {url} goes on" in note for note in report.notes)
    store.delete("steps/000000/rollout.parquet")
    with pytest.raises(UserError, match=r"no rollout.parquet of step 0, which is not finished. Let the run finish it"):
        Replay(url, 0).run()


def test_rewards_are_compared_by_sample() -> None:
    def scores(ids: str, *values: float | None) -> pa.Table:
        return pa.table({"sample_id": list(ids), "reward": pa.array(values, pa.float32(), from_pandas=False)})

    old, new = scores("abcde", 1, 0, None, 2, float("nan")), scores("edcba", float("nan"), None, 3, 0, 0)
    # a falls from 1 to 0, b stays, c gains 3, d loses 2, e stays NaN
    found = reward_changes(old, new)
    assert {name: found[name] for name in ("samples", "up", "down", "gained", "lost")} == {
        "samples": 5,
        "up": 0,
        "down": 1,
        "gained": 1,
        "lost": 1,
    }
    assert [(row["sample_id"], row["old"], row["new"]) for row in found["changed"]] == [
        ("d", 2, None),
        ("c", None, 3),
        ("a", 1, 0),
    ]


def test_advantages_are_compared_where_both_train() -> None:
    def batch(ids: str, values: Any, mask: Any) -> pa.Table:
        columns = {
            "advantages": Ragged.from_list(values, np.float32).to_arrow(),
            "loss_mask": Ragged.from_list(mask, np.uint8).to_arrow(),
        }
        return pa.table({"sample_id": list(ids), **columns})

    old = batch("ab", [[1, 1], [-1, -1]], [[1, 1], [1, 0]])
    new = batch("ba", [[1, 5], [1, 3]], [[1, 1], [1, 0]])
    # trained before: 1, 1, -1; now: b 1, 5 and a 1; by both: a's first (1, 1) and b's first (-1, 1)
    assert advantage_changes(old, new) == {
        "old": {
            "tokens": 3,
            "mean": pytest.approx(1 / 3),
            "std": pytest.approx(np.std([1, 1, -1])),
            "min": -1.0,
            "max": 1.0,
        },
        "new": {
            "tokens": 3,
            "mean": pytest.approx(7 / 3),
            "std": pytest.approx(np.std([1, 5, 1])),
            "min": 1.0,
            "max": 5.0,
        },
        "shared": 2,
        "changed": 1,
        "turned": 1,
    }


def test_weights_are_compared_with_a_checkpoint_of_this_history_only(tmp_path: Path) -> None:
    rows = [{"name": "w", "values": 2, "size": 9, "largest": 0.5, "place": 4, "old": 1.0, "new": 1.5}]
    trainer = SimpleNamespace(unlike=lambda url, iteration: rows)
    history: Any = SimpleNamespace(weights_id=lambda version: f"id{version}", checkpoints=str(tmp_path))
    assert compare_weights(trainer, history, 3, "train", strict=True) is None
    marker = {"iteration": 3, "weights_id": "id4", "files": {}}
    RunStore(str(tmp_path)).write_json("iter_0000003/relax_state.json", marker)
    found = compare_weights(trainer, history, 3, "train", strict=True)
    assert found is not None
    assert found.first is not None
    assert (found.first.column, found.first.token, found.first.old, found.first.new) == ("w", 4, 1.0, 1.5)
    loose = compare_weights(trainer, history, 3, "train", strict=False)
    assert loose is not None
    assert loose.same
    assert not loose.exact
    assert compare_weights(SimpleNamespace(), history, 3, "train", strict=True) is None
    other = {**marker, "weights_id": "another history's"}
    RunStore(str(tmp_path)).write_json("iter_0000003/relax_state.json", other)
    assert compare_weights(trainer, history, 3, "train", strict=True) is None
