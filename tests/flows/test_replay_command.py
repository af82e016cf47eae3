"""``relax replay`` and ``relax diff`` on recorded runs: real flow, tables, records and checkpoints, fake models."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from recorded_runs import ESTIMATORS, copied, fake_trainer, files, read, record, with_value, write

from data.errors import UserError
from data.ragged import Ragged
from data.store import RunStore
from flows.cli.main import main
from relax_core.config.forward import forward_needs
from relax_core.replay.columns import EXACT, Tolerance
from relax_core.replay.compare import Difference
from relax_core.replay.recorded import recorded_config
from relax_core.replay.replay import Replay
from relax_core.replay.report import Report

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, prefect_server: None, tiny_model: Path, sums: Path) -> Any:
    """Estimator -> its run, recorded when first asked for."""
    folder, made = tmp_path_factory.mktemp("recorded"), dict[str, Path]()

    def run(estimator: str = "grpo") -> Path:
        if estimator not in made:
            made[estimator] = record(folder / estimator, tiny_model, sums, estimator)
        return made[estimator]

    return run


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without a standing Prefect server."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """What the command prints."""
    capsys.readouterr()  # a run that was recorded first has told of itself
    assert main(list(words)) == code
    seen = capsys.readouterr()
    return seen.err if code == 2 else seen.out


def replayed(run: Path, step: int = 1, **options: Any) -> Report:
    return Replay(str(run), step, make_trainer=fake_trainer, **options).run()


def states(report: Report) -> dict[str, str]:
    return {stage.stage: stage.state for stage in report.stages}


# -- what was recorded comes out again ------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("step", [0, 1, 2])
def test_every_stage_of_every_estimator_gives_what_was_recorded(estimator: str, step: int, runs: Any) -> None:
    run = runs(estimator)
    before = files(run)
    report = replayed(run, step, last="train", tolerance=EXACT)
    config, _ = recorded_config(RunStore(str(run)))
    expected = ["reward", *(["forward"] if forward_needs(config) else []), "advantage"]
    expected += [*(["train_critic"] if estimator == "ppo" else []), "train"]
    assert states(report) == dict.fromkeys(expected, "same")
    assert report.equal
    assert report.first is None
    assert files(run) == before


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_without_a_model_the_recorded_passes_are_taken(estimator: str, runs: Any) -> None:
    def none(config: Any, role: str) -> Any:
        raise AssertionError("a trainer was started")

    report = Replay(str(runs(estimator)), 1, make_trainer=none).run()
    config, _ = recorded_config(RunStore(str(runs(estimator))))
    assert states(report) == {
        "reward": "same",
        **({"forward": "recorded"} if forward_needs(config) else {}),
        "advantage": "same",
    }
    assert report.equal


def test_a_step_between_checkpoints_is_reached_on_stored_batches(runs: Any) -> None:
    """Checkpoints are of steps 1 and 2: step 1 begins with version 1, which only the batch of step 0 gives."""
    report = replayed(runs(), 1, first="train")
    assert report.equal
    assert any("again on the stored batch of step 0" in note for note in report.notes)
    assert not any("again" in note for note in replayed(runs(), 2, first="train").notes)


def test_the_command_says_so_in_a_few_lines(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys, "replay", str(runs()), "--step", "1").splitlines()
    assert lines == [f"{runs()}, step 1", "", "reward     same", "advantage  same", "", "Nothing differs."]
    found = json.loads(told(capsys, "replay", str(runs()), "--step", "1", "--json"))
    assert (found["equal"], found["first"], found["stages"][0]["state"]) == (True, None, "same")


def test_the_flow_in_prefect_does_the_same(runs: Any) -> None:
    from flows.replay import replay

    report = replay(Replay(str(runs("ppo")), 1, last="train", make_trainer=fake_trainer))
    assert list(states(report)) == ["reward", "forward", "advantage", "train_critic", "train"]
    assert report.equal


def test_slices_that_were_trained_on_ahead_are_those_that_were_recorded(
    tmp_path: Path, tiny_model: Path, sums: Path
) -> None:
    """The second group was the first that finished."""
    resource = {"actor": (1, 1), "rollout": (1, 1)}
    options = {"fully_async": True, "rollout_batch_size": 4, "num_iters_per_train_update": 2, "resource": resource}
    run = record(tmp_path / "run", tiny_model, sums, **options)
    batch = read(run, 1, "batch")
    numbers = batch["slice"].to_pylist()
    assert set(numbers) == {0, 1}
    place = batch.schema.get_field_index("slice")
    other = batch.set_column(place, batch.schema.field(place), pa.array([1 - n for n in numbers], pa.int32()))
    write(run, 1, "batch", other)
    assert states(replayed(run, 1))["advantage"] == "same"


def test_without_a_model_nothing_heavy_is_imported(runs: Any, tmp_path: Path) -> None:
    code = (
        "import sys\nfrom flows.cli.main import main\n"
        f"assert main(['replay', {str(runs('ppo'))!r}, '--step', '1']) == 0\n"
        f"assert main(['diff', {str(runs())!r}, {str(runs())!r}]) == 0\n"
        "heavy = {'torch', 'transformers', 'ray', 'prefect', 'megatron', 'sglang'} & set(sys.modules)\n"
        "print('heavy:', sorted(heavy))\n"
    )
    env = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    env["RELAX_HOME"] = str(tmp_path)  # without a standing server, in which a replay would be shown
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1:] == ["heavy: []"], done.stderr


def test_a_run_on_recorded_samples_is_replayed_with_the_scores_that_they_carry(
    runs: Any, tiny_model: Path, sums: Path, tmp_path: Path
) -> None:
    samples = str(tmp_path / "{rollout_id}.parquet")
    record(tmp_path / "first", tiny_model, sums, num_rollout=2, save_debug_rollout_data=samples)
    run = record(tmp_path / "run", tiny_model, sums, num_rollout=2, load_debug_rollout_data=samples, rm_type="dummy")
    scores = read(run, 1, "reward")["reward"].to_pylist()
    assert scores == read(tmp_path / "first", 1, "reward")["reward"].to_pylist()
    assert any(scores)
    assert states(replayed(run, last="train")) == {"reward": "same", "advantage": "same", "train": "same"}


# -- what differs is named -------------------------------------------------------------------------------------------

COLUMNS = {
    "rollout": ("tokens", "loss_mask", "rollout_log_probs"),
    "reward": ("reward",),
    "forward": ("old_log_probs", "ref_log_probs"),
    "batch": ("tokens", "loss_mask", "advantages", "returns", "old_log_probs"),
}
STAGE = {"rollout": "generate", "reward": "reward", "forward": "forward", "batch": "advantage"}


@st.composite
def places(draw: Any) -> tuple[str, str, int, float]:
    """A table, a column, a row and where in a list, as a share of its length."""
    name = draw(st.sampled_from(sorted(COLUMNS)))
    return name, draw(st.sampled_from(COLUMNS[name])), draw(st.integers(0, 5)), draw(st.floats(0, 0.999))


@pytest.fixture(scope="module")
def altered(runs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(runs("reinforce_plus_plus"), tmp_path_factory.mktemp("altered") / "run")


def alter(run: Path, place: tuple[str, str, int, float], table: pa.Table) -> Difference:
    """Change one value of a table of step 1; returns what a comparison of A, the run as it was, with it must name."""
    name, column, row, share = place
    values = table[column].to_pylist()[row]
    token = int(share * len(values)) if isinstance(values, list) else None
    old = values if token is None else values[token]
    new: Any = 1 - old if column == "loss_mask" else old + 1
    new = new if isinstance(old, int) else float(np.float32(new))
    write(run, 1, name, with_value(table, column, row, token, new))
    return Difference(STAGE[name], column, table["sample_id"][row].as_py(), token, old, new)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=places())
def test_one_changed_value_of_a_run_is_named_exactly(place: Any, runs: Any, altered: Path) -> None:
    from relax_core.replay.runs import diff_runs

    table = read(altered, 1, place[0])
    try:
        expected = alter(altered, place, table)
        found = diff_runs(str(runs("reinforce_plus_plus")), str(altered))
        assert found.first is not None
        assert (found.first.step, found.first.difference) == (1, expected)
        assert [stage.stage for stage in found.stages if stage.same < stage.compared] == [expected.stage]
    finally:
        write(altered, 1, place[0], table)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=places().filter(lambda place: place[0] in ("reward", "batch")))
def test_one_changed_value_of_a_recorded_table_is_named_by_a_replay(place: Any, altered: Path) -> None:
    table = read(altered, 1, place[0])
    try:
        expected = alter(altered, place, table)
        first = replayed(altered).first
        # the recorded value is the changed one
        wanted = Difference(
            expected.stage, expected.column, expected.sample_id, expected.token, expected.new, expected.old
        )
        assert first == wanted
    finally:
        write(altered, 1, place[0], table)


def test_the_first_difference_has_a_line_of_its_own(runs: Any, tmp_path: Path, capsys: Any) -> None:
    run = copied(runs(), tmp_path / "run")
    table = read(run, 1, "batch")
    sample, length = table["sample_id"][2].as_py(), table["response_length"][2].as_py()
    write(run, 1, "batch", with_value(table, "advantages", 2, length - 1, 5.0))
    text = told(capsys, "replay", str(run), "--step", "1", code=1)
    was = Ragged.from_arrow(table["advantages"])[2][-1]
    assert f"First difference: stage advantage, sample {sample}, advantages of response token {length - 1}: 5.0" in text
    assert f"{float(was)!r} now" in text
    assert "note: batch.parquet is not the file that the step's manifest names" in text
    text = told(capsys, "diff", str(runs()), str(run), code=1)
    assert f"First difference: step 1, stage advantage, sample {sample}, advantages of response token" in text
    assert "5.0 in B" in text


def test_another_function_or_option_than_was_recorded_is_said_to_be_the_reason(
    tiny_model: Path, sums: Path, tmp_path: Path
) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def reward(sample):\n    return 1.0\n")
    run = record(tmp_path / "run", tiny_model, sums, num_rollout=1, custom_rm_path=f"{path}:reward", rm_type=None)
    assert replayed(run, 0).equal
    path.write_text("def reward(sample):\n    return 2.0\n")
    report = replayed(run, 0)
    assert states(report) == {"reward": "differs", "advantage": "differs"}
    assert report.stages[0].note.startswith("it was recorded with other options, or with another source")
    assert report.first is not None
    assert (report.first.stage, report.first.column, report.first.old, report.first.new) == ("reward", "reward", 1, 2)


def test_samples_are_matched_by_id_and_missing_ones_named(runs: Any, tmp_path: Path, capsys: Any) -> None:
    run = copied(runs(), tmp_path / "run")
    table = read(run, 1, "reward")
    write(run, 1, "reward", table.take(pa.array([5, 3, 1, 0, 2, 4])))
    assert replayed(run).equal
    write(run, 1, "reward", table.take(pa.array([5, 3, 1, 0, 2])))
    first = replayed(run).first
    assert first == Difference("reward", "sample_id", table["sample_id"][4].as_py(), None, "absent", first.new)
    assert f"sample {table['sample_id'][4].as_py()}: absent in B" in told(capsys, "diff", str(runs()), str(run), code=1)


def test_another_update_is_named_by_its_metric(runs: Any, tmp_path: Path) -> None:
    run = copied(runs(), tmp_path / "run")
    path = run / "steps/000001/train.json"
    content = json.loads(path.read_text())
    loss = content["metrics"]["loss"]
    content["metrics"]["loss"] = loss + 0.5
    path.write_text(json.dumps(content))
    first = replayed(run, first="train").first
    assert first == Difference("train", "loss", None, None, loss + 0.5, loss)
    assert replayed(run, first="train", tolerance=Tolerance(atol=1.0)).equal


# -- what is not there -----------------------------------------------------------------------------------------------


def test_a_model_that_is_gone_is_said_and_the_rest_is_replayed(runs: Any) -> None:
    def gone(config: Any, role: str) -> Any:
        raise UserError("--hf-checkpoint /gone: there is no model.", "Give --model.")

    report = Replay(str(runs("reinforce_plus_plus")), 1, last="train", make_trainer=gone).run()
    assert states(report) == {"reward": "same", "forward": "left out", "advantage": "same", "train": "left out"}
    assert "there is no model" in report.stages[1].note
    assert not report.equal
    assert report.first is None


def test_batches_that_are_gone_are_said(runs: Any, tmp_path: Path) -> None:
    run = copied(runs(), tmp_path / "run")
    (run / "steps/000000/batch.parquet").unlink()
    report = replayed(run, 1, first="train")
    assert states(report) == {"train": "left out"}
    assert "The batch of step 0 is missing" in report.stages[0].note


def test_a_table_that_was_not_recorded_is_made(runs: Any, tmp_path: Path) -> None:
    run = copied(runs(), tmp_path / "run")
    (run / "steps/000001/batch.parquet").unlink()
    report = replayed(run, out=str(tmp_path / "out"))
    assert states(report) == {"reward": "same", "advantage": "new"}
    assert (tmp_path / "out/batch.parquet").read_bytes() == (runs() / "steps/000001/batch.parquet").read_bytes()
    assert json.loads((tmp_path / "out/replay.json").read_text())["equal"] is False


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{run}", "--step", "7"], "has no step 7. It has 0 to 2."),
        (["nowhere", "--step", "0"], "holds no steps of a run"),
        (["{run}", "--step", "0", "--from", "train", "--to", "reward"], "--to reward comes before --from train"),
        (["{run}", "--step", "0", "--out", "{run}/x"], "is in the run directory, which a replay does not touch"),
        (["{run}", "--step", "0", "--set", "gamma"], "--set gamma: is no OPTION=VALUE"),
        (["{run}", "--step", "0", "--set", "gama=1"], "--gama: no such option. Did you mean --gamma?"),
        (["{run}", "--step", "0", "--set", "kl_coef=x"], "--kl-coef x: expects a finite number"),
        (["{run}", "--step", "0", "--set", "kl_coef=0.1"], "has no effect with --advantage-estimator grpo"),
        (["{run}", "--step", "0", "--set", "rollout_temperature=0.5"], "changes what is generated, and a replay takes"),
        (["{run}", "--step", "0", "--set", "n_samples_per_prompt=4"], "changes what is generated"),
        (["{run}", "--step", "0", "--set", "log_passrate=true"], "changes the output of no stage"),
        (["{run}", "--step", "0", "--set", "lr=1e-3"], "matters to train, which is not repeated. Add --to"),
        (["{run}", "--step", "0", "--set", "gamma=0.5"], "--gamma has no effect beside the other options"),
        (["{run}", "--step", "0", "--from", "advantage", "--set", "rm_type=dummy"], "taken as it was recorded. Add"),
        (["{run}", "--step", "0", "--set", "rm_type=sum"], "--rm-type sum"),
        (["{run}", "--step", "0", "--rtol", "-1"], "--rtol -1.0: must be 0 or more"),
    ],
)
def test_a_mistake_is_told_before_anything_is_done(words: list[str], message: str, runs: Any, capsys: Any) -> None:
    assert message in told(capsys, "replay", *(word.format(run=runs()) for word in words), code=2)


# -- with other options ----------------------------------------------------------------------------------------------


def test_other_options_are_shown_side_by_side(runs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = runs()
    before = files(run)
    words = ["replay", str(run), "--step", "1", "--set", "rm_type=dummy", "--set", "--no-score-policy=zero"]
    found = json.loads(told(capsys, *words, "--json", code=1))
    rewards, scores = found["rewards"], read(run, 1, "reward")["reward"].to_pylist()
    assert (rewards["samples"], rewards["new_mean"]) == (6, 0)
    assert [row["old"] for row in rewards["changed"]] == [score for score in scores if score != 0]
    assert found["advantages"]["new"]["max"] == found["advantages"]["new"]["min"] == 0
    assert found["advantages"]["shared"] == found["advantages"]["old"]["tokens"]
    assert {change["flag"] for change in found["changes"]} == {"--rm-type", "--no-score-policy"}
    text = told(capsys, *words, code=1)
    assert "  with --rm-type dummy (recorded with random)" in text
    assert "tokens changed" in text
    assert files(run) == before


def test_advantages_under_another_estimator_option(runs: Any) -> None:
    """Without the division by the standard deviation the sign stays, and each group's advantages are (r - mean)."""
    report = replayed(runs(), changes=["disable_grpo_std_normalization=true"])
    scores = dict(zip(*(read(runs(), 1, "reward")[name].to_pylist() for name in ("sample_id", "reward")), strict=True))
    groups = {name.rpartition("-")[0] for name in scores}
    means = {g: np.mean([s for name, s in scores.items() if name.startswith(g)]) for g in groups}
    largest = max(s - means[name.rpartition("-")[0]] for name, s in scores.items())
    assert report.advantages["new"]["max"] == pytest.approx(largest, rel=1e-5)
    assert report.advantages["turned"] == 0
    assert not report.equal


def test_an_option_that_needs_a_pass_that_was_not_made_asks_for_the_trainer(runs: Any) -> None:
    changes = [
        "advantage_estimator=reinforce_plus_plus",
        "normalize_advantages=true",
        "kl_coef=0.05",
        "kl_loss_type=k1",
    ]
    with pytest.raises(UserError, match=r"need old_log_probs, ref_log_probs.*Add --to train"):
        replayed(runs(), changes=changes)
    report = replayed(runs(), changes=changes, last="train")
    assert states(report) == {"reward": "same", "forward": "new", "advantage": "differs", "train": "differs"}


def test_passes_that_the_other_options_do_not_need_are_left_out(runs: Any) -> None:
    """Under grpo the batch has no columns of passes, also where the run recorded them."""
    names = ("advantage_estimator=grpo", "kl_coef=0", "normalize_advantages=false")
    report = replayed(runs("reinforce_plus_plus"), changes=names)
    assert [stage.stage for stage in report.stages] == ["reward", "advantage"]
    changed = {change.name for change in report.stages[1].comparison.changes}  # type: ignore[union-attr]
    assert {"old_log_probs", "ref_log_probs", "advantages"} <= changed


def test_an_estimator_with_a_critic_needs_a_run_that_has_one(runs: Any) -> None:
    with pytest.raises(UserError, match="--resource: has no role critic"):
        replayed(runs(), changes=["advantage_estimator=ppo"], last="train")


def test_an_update_under_other_options_starts_from_the_recorded_weights(runs: Any) -> None:
    """Version 1 is that of the run's own options: it is made under them, saved aside, and loaded under the others."""
    made = []

    def trainer(config: Any, role: str) -> Any:
        made.append(config.optimizer.lr)
        return fake_trainer(config, role)

    report = Replay(str(runs()), 1, first="train", changes=["lr=0.5"], make_trainer=trainer).run()
    own = recorded_config(RunStore(str(runs())))[0].optimizer.lr
    assert made == [own, 0.5]
    assert report.equal  # the fake's update depends on no option: nothing would have changed
    made.clear()
    Replay(str(runs()), 2, first="train", changes=["lr=0.5"], make_trainer=trainer).run()
    assert made == [0.5]  # there is a checkpoint of this very version
    made.clear()
    Replay(str(runs()), 0, first="train", changes=["lr=0.5"], make_trainer=trainer).run()
    assert made == [0.5]


# -- two runs ----------------------------------------------------------------------------------------------------------


def test_a_run_does_not_differ_from_its_copy_and_may_be_far_away(runs: Any, tmp_path: Path, capsys: Any) -> None:
    run = copied(runs(), tmp_path / "run")
    assert "Nothing differs." in told(capsys, "diff", str(runs()), str(run))
    store = RunStore("memory://a-copy")
    for path, content in files(run).items():
        store.write_bytes(path, content)
    found = json.loads(told(capsys, "diff", str(run), "memory://a-copy", "--json"))
    assert (found["equal"], found["steps"], found["options"]) == (True, [0, 1, 2], [])
    replay = Replay("memory://a-copy", 1, last="advantage").run()
    assert replay.equal


def test_runs_of_other_options_and_lengths_are_compared_as_far_as_they_go(
    runs: Any, tiny_model: Path, sums: Path, tmp_path: Path, capsys: Any
) -> None:
    other = record(tmp_path / "other", tiny_model, sums, num_rollout=2, disable_grpo_std_normalization=True)
    text = told(capsys, "diff", str(runs()), str(other), code=1)
    assert "  --disable-grpo-std-normalization: false in A, true in B" in text
    assert "steps compared: 0-1" in text
    assert "only A has steps 2" in text
    assert "generate   DIFFERS from step 1 (1 of 2 steps the same)" in text  # step 0 has the same weights
    assert "First difference: step 0, stage advantage, sample" in text
    text = told(capsys, "diff", str(runs()), str(other), "--steps", "1-9", code=1)
    assert "First difference: step 1, stage generate, sample" in text
    assert "Not both runs have a step from 5 to 5" in told(
        capsys, "diff", str(runs()), str(other), "--step", "5", code=2
    )


def test_tables_that_one_run_lacks_are_said(runs: Any, tmp_path: Path, capsys: Any) -> None:
    run = copied(runs(), tmp_path / "run")
    (run / "steps/000001/rollout.parquet").unlink()
    (run / "steps/000002/reward.parquet").write_bytes(b"broken")
    (run / "steps/000002/manifest.json").unlink()
    text = told(capsys, "diff", str(runs()), str(run), code=1)
    assert "only A has it in steps 1" in text
    assert "note: steps/000002/reward.parquet is not compared" in text
    assert "Nothing differs of what both have." in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{run}", "nowhere"], "nowhere holds no steps of a run"),
        (["{run}", "{run}", "--steps", "3"], "--steps 3: is no span of steps"),
    ],
)
def test_a_mistake_in_a_comparison_is_told(words: list[str], message: str, runs: Any, capsys: Any) -> None:
    assert message in told(capsys, "diff", *(word.format(run=runs()) for word in words), code=2)
