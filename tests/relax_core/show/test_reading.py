"""What a run has stored of a sample, as far as it has got."""

from pathlib import Path

import pyarrow as pa
import pytest
from handmade_run import IDS, RESPONSES, STEP, batch, reward, rollout, write_run
from recorded_runs import files

from data.errors import UserError
from data.schema import EVAL, FORWARD, SCHEMA_KEY
from data.schema import table as make_table
from data.store import RunStore
from relax_core.show.evaluations import read_eval
from relax_core.show.reading import NO_GAP, read_step, step_of


def test_tables_meet_by_id_whatever_their_order(tmp_path: Path) -> None:
    samples = {sample.sample_id: sample for sample in read_step(write_run(tmp_path), STEP).samples}
    assert list(samples) == IDS
    assert [samples[one].reward for one in IDS] == [1.0, 0.0, None, 0.5]
    assert [samples[one].advantage for one in IDS] == [1.0, -1.0, 0.0, 0.5]
    assert [samples[one].response for one in IDS] == RESPONSES
    assert samples[IDS[0]].parts == {"format": 0.5}
    assert samples[IDS[2]].outcome == "no_score"


def test_the_gap_is_the_trainers_log_prob_less_the_engines_over_trained_tokens(tmp_path: Path) -> None:
    # -1.2 - -1, -0.9 - -1 and 0 for the tokens that are trained on: mean of 0.2, 0.1 and 0; the others are not counted
    sample = read_step(write_run(tmp_path), STEP).samples[0]
    assert sample.gap is not None
    assert sample.gap.tolist() == pytest.approx([-0.2, 0.1, 0, 0, 0], abs=1e-6)
    assert sample.gap_mean == pytest.approx(0.1, abs=1e-6)
    assert sample.gap_max == pytest.approx(0.2, abs=1e-6)
    assert sample.versions is not None
    assert sample.versions.tolist() == [3, 4, 4, 4, 4]


def test_a_step_that_goes_on_says_what_is_missing(tmp_path: Path) -> None:
    store = RunStore(str(tmp_path))
    store.write_table(store.step_path(STEP, "rollout.parquet"), rollout())
    shown = read_step(store, STEP)
    assert [one.partition(":")[0] for one in shown.missing] == ["no rewards yet", "no advantages and loss masks yet"]
    assert {sample.reward for sample in shown.samples} == {None}
    assert shown.samples[0].trained is None
    # the rollout's own mask stands until the batch has one
    assert shown.samples[0].mask is not None
    assert shown.samples[0].mask.tolist() == [1, 1, 1, 1, 1]


def test_a_step_without_a_rollout_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no rollout of step 4 yet"):
        read_step(RunStore(str(tmp_path)), STEP)


def test_samples_without_a_row_are_counted_and_are_not_trained_on(tmp_path: Path) -> None:
    store, made = RunStore(str(tmp_path)), rollout()
    store.write_table(store.step_path(STEP, "rollout.parquet"), made)
    store.write_table(store.step_path(STEP, "reward.parquet"), reward(IDS[1:], [0.0, 1.0, 1.0]))
    store.write_table(store.step_path(STEP, "batch.parquet"), batch(made).slice(2))
    shown = read_step(store, STEP)
    assert "no reward row of 1 samples" in shown.missing
    assert [sample.trained for sample in shown.samples] == [False, False, True, True]
    assert [sample.reward for sample in shown.samples] == [None, 0.0, 1.0, 1.0]


def test_log_probs_that_a_run_did_not_store_may_come_from_a_replay(tmp_path: Path) -> None:
    store, made = RunStore(str(tmp_path)), rollout()
    store.write_table(store.step_path(STEP, "rollout.parquet"), made)
    store.write_table(store.step_path(STEP, "batch.parquet"), batch(made, old_log_probs=[None] * 4))
    shown = read_step(store, STEP)
    assert NO_GAP in shown.missing
    assert shown.samples[0].gap is None
    names = ("sample_id", "group_id", "response_length")
    lengths = made["response_length"].to_pylist()
    forward = make_table(
        FORWARD, {**{name: made[name] for name in names}, "old_log_probs": [[-1.5] * n for n in lengths]}
    )
    replayed = read_step(store, STEP, forward.take([3, 1, 0, 2]))
    assert NO_GAP not in replayed.missing
    assert [sample.gap_max for sample in replayed.samples] == [0.5] * 4


def test_columns_of_another_length_than_the_response_are_left_out(tmp_path: Path) -> None:
    """A user's function may turn samples into others that are trained on."""
    store = RunStore(str(tmp_path))
    store.write_table(store.step_path(STEP, "rollout.parquet"), rollout())
    store.write_table(store.step_path(STEP, "batch.parquet"), batch(rollout(responses=["longer than it was"] * 4)))
    assert read_step(store, STEP).samples[0].gap is None


def test_tables_of_an_older_version_are_read(tmp_path: Path) -> None:
    store = RunStore(str(tmp_path))
    old = rollout().drop_columns(["token_versions"]).replace_schema_metadata({SCHEMA_KEY: b"rollout/1"})
    store.write_table(store.step_path(STEP, "rollout.parquet"), old)
    assert read_step(store, STEP).samples[0].versions is None


def test_samples_that_wait_for_the_next_step_are_told(tmp_path: Path) -> None:
    store = write_run(tmp_path)
    store.write_table(store.step_path(STEP, "buffer.parquet"), rollout().slice(0, 3))
    assert any(one.startswith("3 further samples") for one in read_step(store, STEP).missing)


def evaluation(rewards: list[float]) -> pa.Table:
    made = rollout()
    found = reward(rewards=rewards).drop_columns(["sample_id", "group_id"])
    columns = {name: made[name] for name in made.column_names} | {name: found[name] for name in found.column_names}
    return make_table(EVAL, columns)


def test_the_newest_results_of_an_evaluation_set_are_shown(tmp_path: Path) -> None:
    store = RunStore(str(tmp_path))
    store.write_table("steps/000000/eval_before/sums.parquet", evaluation([0.0] * 4))
    store.write_table("steps/000000/eval/sums.parquet", evaluation([0.25] * 4))
    store.write_table("steps/000010/eval/sums.parquet", evaluation([0.5] * 4))
    shown = read_eval(store, "sums")
    assert (shown.title, shown.samples[0].reward) == ("evaluation sums of step 10", 0.5)
    assert read_eval(store, "sums", 0).title == "evaluation sums of step 0"
    store.write_table("evaluations/000003/sums.parquet", evaluation([1.0] * 4))  # of older weights
    assert read_eval(store, "sums").title == "evaluation sums of step 10"
    store.write_table("evaluations/000011/sums.parquet", evaluation([1.0] * 4))
    assert read_eval(store, "sums").title == "evaluation sums of weights 11"
    with pytest.raises(UserError, match="no results") as error:
        read_eval(store, "products")
    assert "sums" in error.value.fix


def test_the_step_of_an_id_is_found_also_where_the_sample_was_broken_off_before(tmp_path: Path) -> None:
    store = write_run(tmp_path)
    store.write_table(store.step_path(5, "rollout.parquet"), rollout(ids=["000004-0007-000"], responses=["A"]))
    assert step_of(store, IDS[0]) == step_of(store, "000004-0001") == STEP
    assert step_of(store, "000004-0007-000") == 5
    assert step_of(store, "000006-0000-000") is step_of(store, "nonsense") is None


def test_nothing_of_the_run_is_changed(tmp_path: Path) -> None:
    store = write_run(tmp_path)
    before = files(tmp_path)
    read_step(store, STEP)
    assert files(tmp_path) == before
