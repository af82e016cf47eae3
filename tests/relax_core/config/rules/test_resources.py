"""Rules about devices."""

from pathlib import Path

import pytest
from rule_cases import Case, check_case, check_names, report_of

from relax_core.config.rules.resources import RULES

ONE_EACH = {"actor": (1, 1), "rollout": (1, 1)}
FOUR_EACH = {"actor": (1, 4), "rollout": (1, 4)}
JUDGE = {"resource": {"actor": (1, 4), "rollout": (1, 4)}, "genrm_model_path": "judge", "genrm_num_gpus": 4}
EXPANDABLE = "max_split_size_mb:64,expandable_segments:True"

CASES: list[tuple[str, Case]] = [
    (
        "roles-are-known",
        Case(
            {"resource": {**ONE_EACH, "rolout": (1, 1)}},
            "--resource rolout: is no role of this loop. Did you mean rollout?",
            {"resource": ONE_EACH},
        ),
    ),
    (
        "roles-are-known",
        Case(
            {"resource": {**ONE_EACH, "x": (1, 1)}},
            "--resource x: is no role of this loop. Roles: actor, rollout, critic,",
            {"resource": {**ONE_EACH, "genrm": (1, 1)}},
        ),
    ),
    (
        "trainer-and-engines-have-devices",
        Case(
            {"resource": {"actor": (1, 1)}},
            '--resource: gives no devices to the role rollout. Add "rollout":[1,1].',
            {"resource": {"actor": (1, 1)}, "debug_train_only": True},
        ),
    ),
    (
        "trainer-and-engines-have-devices",
        Case(
            {"resource": {"rollout": (1, 1)}},
            "--resource: gives no devices to the role actor.",
            {"resource": {"rollout": (1, 1)}, "debug_rollout_only": True},
        ),
    ),
    (
        "trainer-and-engines-have-devices",
        Case(  # predictions come from engines
            {"resource": {"actor": (1, 1)}, "loss_type": "sft", "sft_predict_interval": 5},
            "--resource: gives no devices to the role rollout.",
            {"resource": {"actor": (1, 1)}, "loss_type": "sft"},
        ),
    ),
    (
        "roles-have-one-replica",
        Case(
            {"resource": {"actor": (2, 1), "rollout": (1, 1)}},
            "--resource actor 2: replicas must be 1. More devices go in the second place.",
            {"resource": {"actor": (1, 2), "rollout": (1, 1)}},
        ),
    ),
    (
        "roles-have-enough-devices",
        Case(
            {"resource": {"actor": (1, 0), "rollout": (1, 1)}},
            "--resource actor 0: devices must be 1 or more.",
            {"resource": {**ONE_EACH, "advantages": (1, 0)}},
        ),
    ),
    (
        "roles-have-enough-devices",
        Case(
            {"resource": {**ONE_EACH, "advantages": (1, -1)}},
            "--resource advantages -1: devices must be 0 or more.",
            {"resource": {**ONE_EACH, "advantages": (1, 1)}},
        ),
    ),
    (
        "roles-have-work",
        Case(
            {"resource": {**ONE_EACH, "critic": (1, 1)}},
            "--resource critic: is not started by this version, and nothing in this configuration needs it.",
            {"resource": {**ONE_EACH, "critic": (1, 1), "advantages": (1, 0)}, "advantage_estimator": "ppo"},
        ),
    ),
    (
        "roles-have-work",
        Case(
            {"resource": {**ONE_EACH, "actor_fwd": (1, 1)}},
            "--resource actor_fwd: is not started",
            {"resource": {**ONE_EACH, "actor_fwd": (1, 1)}, "fully_async": True},
        ),
    ),
    (
        "roles-have-work",
        Case(
            {"resource": {**ONE_EACH, "genrm": (1, 1)}},
            "--resource genrm: is not started",
            {"resource": {**ONE_EACH, "genrm": (1, 1)}, "genrm_model_path": "judge"},
        ),
    ),
    (
        "roles-have-work",
        Case(
            {"resource": {**ONE_EACH, "sft": (1, 1)}},
            "--resource sft: is not started",
            {"resource": {**ONE_EACH, "sft": (1, 1)}, "loss_type": "sft"},
        ),
    ),
    (
        "engines-share-out-devices",
        Case(
            {"resource": {"actor": (1, 1), "rollout": (1, 3)}, "rollout_num_gpus_per_engine": 2},
            "--rollout-num-gpus-per-engine 2: does not divide the 3 devices of the role rollout. Change it, or",
            {"resource": {"actor": (1, 1), "rollout": (1, 4)}, "rollout_num_gpus_per_engine": 2},
        ),
    ),
    (
        "large-engines-fill-nodes",
        Case(
            {"rollout_num_gpus_per_engine": 12},
            "--rollout-num-gpus-per-engine 12: is more than --num-gpus-per-node 8 and no multiple of it.",
            {"rollout_num_gpus_per_engine": 16},
        ),
    ),
    (
        "devices-fill-nodes",
        Case(  # 4 + 2 devices on nodes of 4
            {"resource": {"actor": (1, 4), "rollout": (1, 2)}, "num_gpus_per_node": 4},
            "--num-gpus-per-node 4: does not divide the 6 devices of all roles: one node is used in part only.",
            {"resource": FOUR_EACH, "num_gpus_per_node": 4},
        ),
    ),
    (
        "devices-fill-nodes",
        Case(
            {"resource": {"actor": (1, 6), "rollout": (1, 6)}, "num_gpus_per_node": 8},
            "--num-gpus-per-node 8: does not divide the 12 devices",
            # 6 devices in all: they are shared
            {"resource": {"actor": (1, 6), "rollout": (1, 6)}, "num_gpus_per_node": 8, "colocate": True},
        ),
    ),
    (
        "devices-fill-nodes",
        Case(  # the judge has devices of its own, unless it shares the actor's
            {**JUDGE, "num_gpus_per_node": 8},
            "--num-gpus-per-node 8: does not divide the 12 devices",
            {**JUDGE, "num_gpus_per_node": 8, "colocate": True},
        ),
    ),
    (
        "colocation-knows-the-node",
        Case(
            {"colocate": True, "resource": FOUR_EACH, "num_gpus_per_node": 8},
            "--num-gpus-per-node 8: is more than the 4 devices of the role actor, which --colocate shares.",
            {"colocate": True, "resource": FOUR_EACH},
        ),
    ),
    (
        "colocated-roles-fit",
        Case(
            {"colocate": True, "resource": {"actor": (1, 2), "rollout": (1, 4)}},
            "--resource rollout 4: is more than the 2 devices of the role actor, which --colocate shares.",
            {"colocate": True, "resource": FOUR_EACH},
        ),
    ),
    (
        "colocated-roles-fit",
        Case(
            {"colocate": True, "resource": {**ONE_EACH, "critic": (1, 2)}, "advantage_estimator": "ppo"},
            "--resource critic 2: is more than the 1 devices",
            {"resource": {"actor": (1, 2), "rollout": (1, 4)}},
        ),
    ),
    (
        "colocated-roles-use-all",
        Case(
            {"colocate": True, "resource": {"actor": (1, 4), "rollout": (1, 2)}},
            "--resource rollout 2: leaves some of the 4 devices of the role actor idle, which --colocate shares.",
            # the judge has the others
            {"colocate": True, "resource": {"actor": (1, 4), "rollout": (1, 2)}, "genrm_model_path": "judge"},
        ),
    ),
    (
        "colocated-engines-leave-memory",
        Case(
            {"colocate": True},
            "--sglang-mem-fraction-static: is not given: the share of memory that SGLang chooses",
            {"colocate": True, "sglang_mem_fraction_static": 0.5},
        ),
    ),
    (
        "sharing-offloads-both",
        Case(
            {"colocate": True, "offload_train": False},
            "--offload-train false: is set to true, because --colocate offloads both.",
            {"colocate": True},
            {"offload_train": True, "offload_rollout": True},
        ),
    ),
    (
        "sharing-offloads-both",
        Case(
            {"offload": True, "offload_rollout": False},
            "--offload-rollout false: is set to true, because --offload offloads both.",
            {"offload_rollout": False},
            {"offload_train": True, "offload_rollout": True},
        ),
    ),
    (
        "offloading-makes-room",
        Case({"offload": True}, "--offload: frees memory that nothing else uses", {"offload": True, "colocate": True}),
    ),
    (
        "offloading-makes-room",
        Case({"offload_train": True}, "--offload-train: frees memory that nothing else uses", {}),
    ),
    (
        "offloading-excludes-expandable-segments",
        Case(
            {"offload": True, "train_env_vars": {"PYTORCH_CUDA_ALLOC_CONF": EXPANDABLE}},
            "--offload-train: cannot free memory while PYTORCH_CUDA_ALLOC_CONF in --train-env-vars has"
            " expandable_segments:True. Take that out of the variable.",
            {"offload": True, "train_env_vars": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}},
        ),
    ),
    (
        "offloading-excludes-expandable-segments",
        Case(
            {"offload_rollout": True, "train_env_vars": {"PYTORCH_ALLOC_CONF": EXPANDABLE}},
            "--offload-rollout: cannot free memory while PYTORCH_ALLOC_CONF in",
            {"train_env_vars": {"PYTORCH_ALLOC_CONF": EXPANDABLE}},
        ),
    ),
]


@pytest.mark.parametrize(("name", "case"), CASES, ids=[name for name, _ in CASES])
def test_rules(tmp_path: Path, name: str, case: Case) -> None:
    check_case(tmp_path, RULES, name, case)


def test_every_rule_has_a_case() -> None:
    check_names(RULES, CASES)


def test_colocation_offloads_both(tmp_path: Path) -> None:
    cluster = report_of(tmp_path, {"colocate": True}).config.cluster
    assert (cluster.offload_train, cluster.offload_rollout) == (True, True)


def test_the_allocator_of_the_environment_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(**options: object) -> list[str]:
        problems = map(str, report_of(tmp_path, {"offload": True, **options}).errors)
        return [problem for problem in problems if "expandable_segments" in problem]

    for variable in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.setenv(variable, EXPANDABLE)
        [problem] = told()
        assert f"{variable} in the environment has" in problem
        assert told(train_env_vars={variable: ""}) == []  # what is set for training wins
        monkeypatch.delenv(variable)
    (tmp_path / "env.yaml").write_text(f'env_vars:\n  PYTORCH_ALLOC_CONF: "{EXPANDABLE}"\n')
    [problem] = told(env_file=str(tmp_path / "env.yaml"))
    assert "in the environment file" in problem
    assert told(env_file="\0") == []
