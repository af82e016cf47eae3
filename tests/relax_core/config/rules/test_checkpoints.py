from pathlib import Path
from typing import Any

import pytest
from rule_cases import Case, check_case, check_names

from relax_core.config.rules.checkpoints import RULES

OPD: dict[str, Any] = {"use_opd": True, "opd_type": "megatron"}
PPO: dict[str, Any] = {"advantage_estimator": "ppo", "critic_save": "critic"}


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short one: messages cut long values."""
    return tmp_path_factory.mktemp("t")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Megatron checkpoints of steps 3 (`three`) and 5 (`five`)."""
    for name, step in (("three", 3), ("five", 5)):
        (tmp_path / name / f"iter_{step:07d}").mkdir(parents=True)
        (tmp_path / name / "latest_checkpointed_iteration.txt").write_text(f"{step}\n")
    return tmp_path


CASES: list[tuple[str, Case]] = [
    (
        "rotation-has-landmarks",
        Case(
            {"rotate_ckpt": True, "async_save": True},
            "--rotate-ckpt: needs --save-interval",
            {"rotate_ckpt": True, "async_save": True, "save_interval": 2},
        ),
    ),
    (
        "rotation-in-the-background",
        Case(
            {"rotate_ckpt": True, "save_interval": 2},
            "--rotate-ckpt: needs --async-save",
            {"rotate_ckpt": True, "async_save": True},
        ),
    ),
    (
        "keep-of-several",
        Case(
            {"max_actor_ckpt_to_keep": 2},
            "--max-actor-ckpt-to-keep 2: deletes nothing without --save-interval",
            {"max_actor_ckpt_to_keep": 2, "save_interval": 1},
        ),
    ),
    ("resume-needs-the-optimiser", Case({"no_save_optim": True}, "--no-save-optim: means that this run cannot", {})),
    (
        "export-placeholder",
        Case(
            {"save_hf": "out/{step}"},
            "--save-hf out/{step}: the only placeholder that it may contain is {rollout_id}.",
            {"save_hf": "out/{rollout_id}"},
        ),
    ),
    ("export-placeholder", Case({"save_hf": "out/{"}, "--save-hf out/{: the only placeholder", {"save_hf": "out"})),
    (
        "exports-do-not-meet",
        Case(
            {"save_hf": "out", "save_interval": 1},
            "--save-hf out: is one place for the exports of all checkpoints: each replaces the one before. Put"
            " {rollout_id} into it",
            {"save_hf": "out/{rollout_id:04d}", "save_interval": 1},
        ),
    ),
    ("reference-step-needs-a-reference", Case({"ref_ckpt_step": 3}, "--ref-ckpt-step 3: needs --ref-load", {})),
    (
        "a-model-has-no-steps",
        Case(
            {"ref_load": "{folder}/model", "ref_ckpt_step": 5},
            "--ref-ckpt-step 5: chooses among checkpoints, and --ref-load {folder}/model is one model.",
            {"ref_load": "{folder}/three", "ref_ckpt_step": 3},
        ),
    ),
    (
        "teacher-step-needs-a-teacher",
        Case({**OPD, "opd_teacher_ckpt_step": 3}, "--opd-teacher-ckpt-step 3: needs --opd", {}),
    ),
    (
        "a-teacher-model-has-no-steps",
        Case(
            {**OPD, "opd_teacher_load": "{folder}/model", "opd_teacher_ckpt_step": 5},
            "--opd-teacher-ckpt-step 5: chooses among checkpoints, and --opd-teacher-load {folder}/model is one model.",
            {**OPD, "opd_teacher_load": "{folder}/three", "opd_teacher_ckpt_step": 3},
        ),
    ),
    (
        "load-starts-at-step-0",
        Case(
            {"load": "{folder}/three"},
            "--load {folder}/three: gives this run its first weights, without optimiser state; its steps are counted",
            {"ref_load": "{folder}/three"},  # the reference, where the actor starts too
        ),
    ),
    (
        "steps-remain",
        Case(
            {"start_rollout_id": 3},
            "--start-rollout-id 3: leaves none of --num-rollout 3 steps, which are counted from 0.",
            {"start_rollout_id": 2},
        ),
    ),
    (
        "critic-of-the-same-step",
        Case(
            {**PPO, "load": "{folder}/three", "critic_load": "{folder}/five"},
            "--critic-load {folder}/five: is at step 5, and --load {folder}/three at step 3",
            {**PPO, "load": "{folder}/three"},
        ),
    ),
    (
        "critic-and-actor-begin-together",
        Case(
            {**PPO, "load": "{folder}/model", "critic_load": "{folder}/five"},
            "--critic-load {folder}/five: the critic has a checkpoint of step 5, and the actor has none",
            {**PPO, "load": "{folder}/model", "critic_load": "{folder}/model"},
        ),
    ),
    (
        "critic-and-actor-begin-together",
        Case(
            {**PPO, "load": "{folder}/three", "critic_load": "{folder}/model"},
            "--critic-load {folder}/model: the actor has a checkpoint of step 3, and the critic has none",
            {**PPO, "load": "{folder}/five"},
        ),
    ),
    (
        "saves-do-not-meet",
        Case({**PPO, "save": "critic/"}, "--critic-save critic: is where the actor is saved", {**PPO, "save": "actor"}),
    ),
    (
        "saves-do-not-meet",
        Case(
            {
                **PPO,
                "run_dir": "{folder}/run",
                "save": "file://{folder}/./run/critic-checkpoints/",
                "critic_save": None,
            },
            "is where the actor is saved too: the critic's checkpoints",
            {**PPO, "run_dir": "{folder}/run", "save": "{folder}/run/other", "critic_save": None},
        ),
    ),
    (
        "critic-of-the-same-step",
        Case(
            {**PPO, "load": "{folder}/three/iter_0000002", "critic_load": "{folder}/three"},
            "--critic-load {folder}/three: is at step 3, and --load {folder}/three/iter_0000002 at step 2",
            {**PPO, "load": "{folder}/three/iter_0000005", "critic_load": "{folder}/five"},
        ),
    ),
    (
        "saves-do-not-meet",
        Case(
            {**PPO, "run_dir": "{folder}/run", "critic_save": "{folder}/run/checkpoints"},
            "--critic-save {folder}/run/checkpoints: is where the actor is saved too",
            {**PPO, "run_dir": "{folder}/run", "critic_save": "{folder}/run/critic-checkpoints"},
        ),
    ),
    (
        "weights-have-a-transport",
        Case(
            {"checkpoint_engine_backend": "mpi"},
            "--checkpoint-engine-backend mpi: is no transport of weights. Use nccl or gloo.",
            {"checkpoint_engine_backend": "gloo"},
        ),
    ),
]


def test_every_rule_has_a_case() -> None:
    check_names(RULES, CASES)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_rule_tells_what_breaks_it_and_nothing_else(folder: Path, name: str, case: Case) -> None:
    check_case(folder, RULES, name, case)
