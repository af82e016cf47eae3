"""Rules about engines that run elsewhere, routing, scaling, health and monitoring."""

from pathlib import Path

import pytest
from rule_cases import Case, check_case, check_names, report_of

from relax_core.config.rules.services import RULES

EXTERNAL = {"rollout_external": True, "rollout_external_engine_addrs": ["10.0.0.5:30000"]}
ADDRESSES = "rollout_external_engine_addrs"
PORT_BASE = "scale_weight_sync_precheck_port_base"
PORT_MAX = "scale_weight_sync_precheck_port_max"


def _idle(name: str, option: str, value: object, shown: str, needs: str) -> tuple[str, Case]:
    flag = f"--{option.replace('_', '-')}"
    text = f"{flag} {shown}: has no effect without --{needs.replace('_', '-')}"
    return name, Case({option: value}, text, {option: value, needs: True})


CASES: list[tuple[str, Case]] = [
    (
        "external-engines-have-addresses",
        Case({"rollout_external": True}, "--rollout-external: needs --rollout-external-engine-addrs", EXTERNAL),
    ),
    (
        "addresses-are-of-external-engines",
        Case(
            {ADDRESSES: ["10.0.0.5:30000"]},
            "--rollout-external-engine-addrs 10.0.0.5:30000: needs --rollout-external: without it Relax starts engines",
            EXTERNAL,
        ),
    ),
    *(
        (
            "addresses-name-host-and-port",
            Case(
                {"rollout_external": True, ADDRESSES: [wrong]},
                f"--rollout-external-engine-addrs {wrong}: is no address of the form host:port. Write it as",
                {"rollout_external": True, ADDRESSES: [right]},
            ),
        )
        for wrong, right in [
            ("10.0.0.5", "10.0.0.5:30000"),
            ("http://node-1:30000", "node-1:30000"),
            ("node_1:0", "node_1:1"),
            ("host:65536", "host:65535"),
            ("::1:30000", "[::1]:30000"),
            ("host:", "a.b.c:8000"),
        ]
    ),
    (
        "addresses-differ",
        Case(
            {"rollout_external": True, ADDRESSES: ["a:1", "b:1", "a:1"]},
            "--rollout-external-engine-addrs a:1: is given twice. Name each server once.",
            {"rollout_external": True, ADDRESSES: ["a:1", "a:2"]},
        ),
    ),
    (
        "external-engines-share-nothing",
        Case({**EXTERNAL, "colocate": True}, "--rollout-external: excludes --colocate", EXTERNAL),
    ),
    (
        "external-engines-stay-loaded",
        Case(
            {**EXTERNAL, "offload_rollout": True},
            "--offload-rollout: has no effect with --rollout-external",
            {**EXTERNAL, "offload_train": True},
        ),
    ),
    (
        "external-engines-are-not-replaced",
        Case(
            {**EXTERNAL, "use_fault_tolerance": True},
            "--use-fault-tolerance: cannot replace engines under --rollout-external",
            {"use_fault_tolerance": True},
        ),
    ),
    _idle("router-options-have-a-router", "slime_router_timeout", 5.0, "5.0", "use_slime_router"),
    _idle("router-options-have-a-router", "slime_router_max_connections", 5, "5", "use_slime_router"),
    _idle("router-options-have-a-router", "slime_router_middleware_paths", ["a.b"], "a.b", "use_slime_router"),
    _idle("router-options-have-a-router", "slime_router_health_check_failure_threshold", 5, "5", "use_slime_router"),
    (
        "sticky-requests-have-a-router",
        Case(
            {"slime_router_sticky": True},
            "--slime-router-sticky: needs --use-slime-router.",
            {"slime_router_sticky": True, "use_slime_router": True},
        ),
    ),
    _idle("sticky-requests-are-forgotten", "slime_router_sticky_idle_secs", 5.0, "5.0", "slime_router_sticky"),
    (
        "trial-ports-are-in-order",
        Case(
            {PORT_BASE: 19000, PORT_MAX: 18000},
            "--scale-weight-sync-precheck-port-base 19000: is above --scale-weight-sync-precheck-port-max 18000.",
            {PORT_BASE: 18000, PORT_MAX: 18000},
        ),
    ),
    (
        "trial-ports-are-free",
        Case(
            {PORT_MAX: 20001},
            "--scale-weight-sync-precheck-port-max 20001: lets the trial (from port 18000) meet the transfer of",
            {PORT_MAX: 20000},
        ),
    ),
    (
        "trial-ports-are-free",
        Case(
            {PORT_BASE: 31999, PORT_MAX: 33000},
            "--scale-weight-sync-precheck-port-max 33000: lets the trial (from port 31999) meet",
            {PORT_BASE: 32000, PORT_MAX: 33000},
        ),
    ),
    (
        "server-port-is-free",
        Case(
            {"rlsp_server_port": 18000},
            "--rlsp-server-port 18000: is one of the ports over which engines get their weights. Choose one below",
            {"rlsp_server_port": 17999},
        ),
    ),
    (
        "server-port-is-free",
        Case({"rlsp_server_port": 31999}, "--rlsp-server-port 31999: is one of", {"rlsp_server_port": 32000}),
    ),
    (
        "autoscaler-has-rules",
        Case(
            {"autoscaler_config": "no/such.yaml"},
            "--autoscaler-config no/such.yaml: is no file. Give a YAML file",
            {"autoscaler_config": "{folder}/prompts.jsonl"},
        ),
    ),
    (
        "autoscaler-has-rules",
        Case(
            {"autoscaler_config": "x" * 300},
            ": is no file. Give a YAML file with the autoscaler's rules.",
            {"autoscaler_config": "s3://bucket/rules.yaml"},
        ),
    ),
    (
        "scaling-tries-before-it-sends",
        Case(
            {"autoscaler_config": "s3://bucket/rules.yaml", "scale_weight_sync_precheck": False},
            "--scale-weight-sync-precheck false: lets an engine join before anybody knows",
            {"scale_weight_sync_precheck": False},
        ),
    ),
    _idle("restarts-are-watched-for", "max_global_restart", 5, "5", "use_health_check"),
    _idle("engines-are-watched", "rollout_health_check_timeout", 5.0, "5.0", "use_fault_tolerance"),
    _idle("engines-are-watched", "rollout_health_check_first_wait", 5.0, "5.0", "use_fault_tolerance"),
    _idle("engines-are-watched-at-times", "rollout_health_check_interval", 5.0, "5.0", "use_fault_tolerance"),
    (
        "engines-are-watched-at-times",
        Case(
            {"rollout_health_check_interval": 5.0},
            "has no effect without --use-fault-tolerance or --use-slime-router.",
            {"rollout_health_check_interval": 5.0, "use_slime_router": True},
        ),
    ),
    (
        "tensorboard-has-a-folder",
        Case(
            {"use_tensorboard": True},
            "--use-tensorboard: needs --tb-project-name, the folder to write to, or the environment variable",
            {"use_tensorboard": True, "tb_project_name": "events"},
        ),
    ),
    _idle("tensorboard-is-on", "tb_project_name", "events", "events", "use_tensorboard"),
]


@pytest.mark.parametrize(("name", "case"), CASES, ids=[name for name, _ in CASES])
def test_rules(tmp_path: Path, name: str, case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENSORBOARD_DIR", raising=False)
    check_case(tmp_path, RULES, name, case)


def test_every_rule_has_a_case() -> None:
    check_names(RULES, CASES)


def test_tensorboard_writes_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_told(**options: object) -> bool:
        problems = report_of(tmp_path, {"use_tensorboard": True, **options}).errors
        return any("TENSORBOARD_DIR" in str(problem) for problem in problems)

    monkeypatch.delenv("TENSORBOARD_DIR", raising=False)
    assert is_told()
    assert is_told(env_file="\0")
    (tmp_path / "env.yaml").write_text("env_vars:\n  TENSORBOARD_DIR: events\n")
    assert not is_told(env_file=str(tmp_path / "env.yaml"))
    monkeypatch.setenv("TENSORBOARD_DIR", "events")
    assert not is_told()
