"""Distillation in the loop: a teacher in the trainer, on a server, and in the samples themselves.

Fake engine and trainer, a stand-in for the teacher's server; real flow and files.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeBackend, Killed, Stopper
from passes import config, forwards, rows, train
from teachers import Server, log_prob, teacher_server

from data.errors import UserError
from data.store import RunStore
from relax_core.engines import teacher

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def other(tiny_model: Path, tmp_path: Path) -> Path:
    """Another model of the same shape."""
    folder = tmp_path / "other"
    shutil.copytree(tiny_model, folder)
    return folder


@pytest.fixture
def server() -> Iterator[Server]:
    with teacher_server() as made:
        made.vocabulary = 512
        yield made


TEACHER = {"use_opd": True, "opd_type": "megatron", "opd_kl_coef": 0.5}


def test_distilling_from_the_trainers_teacher_alone_scores_0_and_learns(
    tmp_path: Path, tiny_model: Path, other: Path, sums: Path
) -> None:
    """A_t = 0 - 0.5 (student - teacher) in every group, all of them without a spread."""
    backend, folder = FakeBackend(), tmp_path / "run"
    options = {**TEACHER, "opd_teacher_load": str(other), "rm_type": None, "num_rollout": 2}
    result = train(config(folder, tiny_model, sums, **options), backend)
    assert backend.events == [f"trainer {what} {step}" for step in range(2) for what in ("forward", "train")]
    assert {row["reward"] for row in rows(folder, 1, "reward")} == {0.0}
    gaps = []
    for row in rows(folder, 1, "batch"):
        assert row["ref_log_probs"] is None
        assert all(row["loss_mask"])
        own = [a - b for a, b in zip(row["old_log_probs"], row["teacher_log_probs"], strict=True)]
        assert row["advantages"] == pytest.approx([-0.5 * gap for gap in own], abs=1e-6)
        gaps += own
    assert any(gaps)
    assert result["metrics"]["opd_reverse_kl"] == pytest.approx(sum(gaps) / len(gaps), rel=1e-5)
    assert result["metrics"]["reward/mean"] == 0
    for changed in ({"opd_kl_coef": 0.1}, {"opd_teacher_load": str(tiny_model)}):
        with pytest.raises(UserError, match="made by another configuration"):
            train(config(folder, tiny_model, sums, **{**options, **changed, "num_rollout": 3}), FakeBackend())


def served(server: Server, **options: Any) -> dict[str, Any]:
    return {"use_opd": True, "opd_type": "sglang", "rm_url": f"{server.url}/generate", **options}


def test_a_teacher_on_a_server_scores_what_was_generated(
    tmp_path: Path, tiny_model: Path, sums: Path, server: Server
) -> None:
    """With rewards both add up: A_t = the group's - 1 x (student - teacher)."""
    backend, folder = FakeBackend(), tmp_path / "run"
    train(config(folder, tiny_model, sums, **served(server), num_rollout=1), backend)
    rollout = {row["sample_id"]: row for row in rows(folder, 0, "rollout")}
    groups: dict[str, list[float]] = {}
    for row in rows(folder, 0, "reward"):
        groups.setdefault(row["group_id"], []).append(row["reward"])
    scores = {row["sample_id"]: row["reward"] for row in rows(folder, 0, "reward")}
    for row in rows(folder, 0, "batch"):
        tokens, n = rollout[row["sample_id"]]["tokens"], row["response_length"]
        wanted = [log_prob(tokens, len(tokens) - n + t, 1.0) for t in range(n)]
        assert row["teacher_log_probs"] == pytest.approx(wanted, rel=1e-5)
        one, two = groups[row["group_id"]]
        # the unbiased deviation of two scores is their distance over the square root of 2
        reward = (scores[row["sample_id"]] - (one + two) / 2) / (abs(one - two) / 2**0.5 + 1e-6) if one != two else 0.0
        gaps = [a - b for a, b in zip(row["old_log_probs"], row["teacher_log_probs"], strict=True)]
        assert row["advantages"] == pytest.approx([reward - gap for gap in gaps], rel=1e-4)
    assert forwards(backend) == ["trainer forward 0"]
    assert {body["sampling_params"]["temperature"] for body in server.asked[1:]} == {1.0}


def test_a_teacher_that_dies_loses_no_rollout(
    tmp_path: Path, tiny_model: Path, sums: Path, server: Server, monkeypatch: Any
) -> None:
    monkeypatch.setattr(teacher, "PATIENCE", 0.0)
    settings, backend = config(tmp_path / "run", tiny_model, sums, **served(server), num_rollout=2), FakeBackend()
    answer = server.spoil
    server.spoil = lambda entries: answer(entries) if len(entries) > 30 else entries[:-1]  # the trial text is longer
    with pytest.raises(UserError, match=r"Sample 000000-.* at the teacher's server .* of \d response tokens"):
        train(settings, backend)
    assert backend.engine.generate_calls == 6
    before = RunStore(str(tmp_path / "run")).read_bytes("steps/000000/rollout.parquet")
    server.spoil = answer
    train(settings, backend)
    assert backend.engine.generate_calls == 12
    assert RunStore(str(tmp_path / "run")).read_bytes("steps/000000/rollout.parquet") == before


def test_a_teacher_that_is_not_there_is_told_before_anything_is_started(
    tmp_path: Path, tiny_model: Path, sums: Path, server: Server
) -> None:
    backend = FakeBackend()
    settings = config(tmp_path / "run", tiny_model, sums, **served(server, rm_url="http://127.0.0.1:1"))
    with pytest.raises(UserError, match=r"--rm-url http://127\.0\.0\.1:1: no teacher answers there"):
        train(settings, backend)
    short = config(tmp_path / "run", tiny_model, sums, **served(server), rollout_max_context_len=512)
    with pytest.raises(UserError, match="takes samples of up to 100 tokens, and a prompt with its response may have 5"):
        train(short, backend)
    assert (backend.ensured, backend.engine.generate_calls) == (0, 0)


def test_a_server_that_moved_is_asked_anew_in_an_unfinished_step(
    tmp_path: Path, tiny_model: Path, sums: Path, server: Server, monkeypatch: Any
) -> None:
    settings, backend = config(tmp_path / "run", tiny_model, sums, **served(server), num_rollout=2), FakeBackend()
    Stopper(monkeypatch, 1, "advantage")
    with pytest.raises(Killed):
        train(settings, backend)
    with teacher_server() as moved:
        moved.vocabulary = 512
        train(config(tmp_path / "run", tiny_model, sums, **served(moved), num_rollout=2), backend)
        samples = [body["input_ids"] for body in moved.asked if body.get("logprob_start_len", 0) > 0]
        assert len(samples) == 6
    assert backend.engine.generate_calls == 12


def test_another_model_behind_the_same_address_is_told_and_scores_what_is_unfinished(
    tmp_path: Path, tiny_model: Path, sums: Path, server: Server, monkeypatch: Any, capsys: Any
) -> None:
    settings, backend = config(tmp_path / "run", tiny_model, sums, **served(server), num_rollout=2), FakeBackend()
    for place, model in enumerate(("teacher", "teacher", "better", "better")):
        server.serves, before = model, len(server.asked)
        if place < 3:
            Stopper(monkeypatch, 1, "advantage")
            with pytest.raises(Killed):
                train(settings, backend)
            monkeypatch.undo()
        else:
            train(settings, backend)
        asked = [body for body in server.asked[before:] if body.get("logprob_start_len", 0) > 0]
        assert len(asked) == (12, 0, 6, 0)[place]  # both steps, then what is unfinished, where the model is another one
        told = f"serves {model} now, and teacher before" in capsys.readouterr().out
        assert told == (place == 2)
    assert backend.engine.generate_calls == 12


CARRYING = """
from relax_core.rollout.custom import engine

async def generate(args, sample, sampling_params):
    sample.append(await engine().generate(sample.tokens, sampling_params))
    carries = args.always or sample.index % 2
    sample.teacher_log_probs = [-2.5] * sample.response_length if carries else None
    return sample
"""


def test_log_probs_that_the_samples_carry_are_taken_and_nobody_is_asked(
    tmp_path: Path, tiny_model: Path, sums: Path, server: Server, capsys: Any
) -> None:
    (tmp_path / "mine.py").write_text(CARRYING)
    carrying = {"custom_generate_function_path": f"{tmp_path}/mine.py:generate", "num_rollout": 1}
    for name, url in (("gone", "http://127.0.0.1:1"), ("none", None)):
        options = {**served(server, rm_url=url), **carrying, "custom_args": {"always": True}}
        train(config(tmp_path / name, tiny_model, sums, **options), FakeBackend())
        for row in rows(tmp_path / name, 0, "batch"):
            assert row["teacher_log_probs"] == [-2.5] * row["response_length"]
    assert "no teacher answers there" in capsys.readouterr().out
    assert server.asked == []
    some = {**served(server), **carrying, "custom_args": {"always": False}}
    train(config(tmp_path / "some", tiny_model, sums, **some), FakeBackend())
    found = [set(row["teacher_log_probs"]) == {-2.5} for row in rows(tmp_path / "some", 0, "batch")]
    assert found == [False, True] * 3
    none = {**some, "rm_url": None}
    with pytest.raises(UserError, match=r"some samples carry no teacher_log_probs\. Give --rm-url"):
        train(config(tmp_path / "missing", tiny_model, sums, **none), FakeBackend())


def test_without_a_trainer_the_engines_log_probs_are_the_students(
    tmp_path: Path, tiny_model: Path, sums: Path, server: Server
) -> None:
    backend, folder = FakeBackend(), tmp_path / "run"
    own = {**served(server), "debug_rollout_only": True, "num_rollout": 1, "use_rollout_logprobs": True}
    train(config(folder, tiny_model, sums, **own), backend)
    for row in rows(folder, 0, "batch"):
        gaps = [a - b for a, b in zip(row["rollout_log_probs"], row["teacher_log_probs"], strict=True)]
        assert any(gaps)
        assert row["old_log_probs"] is None
    assert forwards(backend) == []
