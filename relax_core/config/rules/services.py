"""Rules about engines that run elsewhere, routing, scaling, health and monitoring.

Guarantee: an address that nobody can connect to, and ports that two services would take, are refused; an option that
does nothing without another is told.
"""

import os
import re
from pathlib import Path

from relax_core.config.environment import read_environment_file
from relax_core.config.rules.base import Rule
from relax_core.config.rules.kinds import idle
from relax_core.config.values import Values

TRANSFER_PORTS = (20000, 32000)
"""Ports of the weights' own transfer to new engines; the trial before it may end where they begin."""

_PORTS = ("scale_weight_sync_precheck_port_base", "scale_weight_sync_precheck_port_max")
_ROUTER = (
    "slime_router_middleware_paths",
    "slime_router_timeout",
    "slime_router_max_connections",
    "slime_router_health_check_failure_threshold",
)
_HEALTH = ("rollout_health_check_interval", "rollout_health_check_timeout", "rollout_health_check_first_wait")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):([0-9]{1,5})")


def _addresses(v: Values) -> list[str]:
    return list(v.rollout_external_engine_addrs or ())


def _no_address(text: str) -> bool:
    match = _ADDRESS.fullmatch(text)
    return match is None or not 1 <= int(match[2]) <= 65535


def _unreadable(path: str | None) -> bool:
    """Whether a path of this machine is no file."""
    if path is None or "://" in path:
        return False
    try:
        return not Path(path).expanduser().is_file()
    except (OSError, RuntimeError, ValueError):  # too long, no such user, a zero byte
        return True


def _has_tensorboard_folder(v: Values) -> bool:
    if v.tb_project_name or os.environ.get("TENSORBOARD_DIR"):
        return True
    try:
        return bool(read_environment_file(v.env_file)[0].get("TENSORBOARD_DIR"))
    except ValueError:  # a path that no file system takes; told where the file is read
        return False


def _ports_meet(v: Values) -> bool:
    low, high = TRANSFER_PORTS
    base, most = (v[name] for name in _PORTS)
    return bool(base < high and most > low)


RULES: tuple[Rule, ...] = (
    Rule(
        name="external-engines-have-addresses",
        option="rollout_external",
        reads=("rollout_external", "rollout_external_engine_addrs"),
        broken=lambda v: v.rollout_external and not v.rollout_external_engine_addrs,
        message="needs --rollout-external-engine-addrs, the servers to use.",
    ),
    Rule(
        name="addresses-are-of-external-engines",
        option="rollout_external_engine_addrs",
        reads=("rollout_external", "rollout_external_engine_addrs"),
        broken=lambda v: v.rollout_external_engine_addrs and not v.rollout_external,
        message="needs --rollout-external: without it Relax starts engines of its own.",
    ),
    Rule(
        name="addresses-name-host-and-port",
        option="rollout_external_engine_addrs",
        reads=("rollout_external_engine_addrs",),
        each=lambda v: [{"value": text} for text in _addresses(v) if _no_address(text)],
        message="is no address of the form host:port.",
        fix="Write it as 10.0.0.5:30000 or [::1]:30000, without http://.",
    ),
    Rule(
        name="addresses-differ",
        option="rollout_external_engine_addrs",
        reads=("rollout_external_engine_addrs",),
        each=lambda v: [{"value": text} for text in sorted(set(_addresses(v))) if _addresses(v).count(text) > 1],
        message="is given twice.",
        fix="Name each server once.",
    ),
    Rule(
        name="external-engines-share-nothing",
        option="rollout_external",
        reads=("rollout_external", "colocate"),
        broken=lambda v: v.rollout_external and v.colocate,
        message="excludes --colocate: engines that run already take turns with nobody.",
    ),
    Rule(
        name="external-engines-stay-loaded",
        option="offload_rollout",
        reads=("offload_rollout", "rollout_external"),
        broken=lambda v: v.rollout_external and v.offload_rollout,
        message="has no effect with --rollout-external: engines that run already keep their memory.",
        severity="warning",
    ),
    Rule(
        name="external-engines-are-not-replaced",
        option="use_fault_tolerance",
        reads=("use_fault_tolerance", "rollout_external"),
        broken=lambda v: v.use_fault_tolerance and v.rollout_external,
        message="cannot replace engines under --rollout-external: whoever started them has to.",
        severity="warning",
    ),
    idle(
        "router-options-have-a-router",
        _ROUTER,
        ("use_slime_router",),
        lambda v: not v.use_slime_router,
        "has no effect without --use-slime-router.",
    ),
    Rule(
        name="sticky-requests-have-a-router",
        option="slime_router_sticky",
        reads=("slime_router_sticky", "use_slime_router"),
        broken=lambda v: v.slime_router_sticky and not v.use_slime_router,
        message="needs --use-slime-router.",
    ),
    idle(
        "sticky-requests-are-forgotten",
        ("slime_router_sticky_idle_secs",),
        ("slime_router_sticky",),
        lambda v: not v.slime_router_sticky,
        "has no effect without --slime-router-sticky.",
    ),
    Rule(
        name="trial-ports-are-in-order",
        option="scale_weight_sync_precheck_port_base",
        reads=_PORTS,
        broken=lambda v: v.scale_weight_sync_precheck_port_base > v.scale_weight_sync_precheck_port_max,
        message="is above --scale-weight-sync-precheck-port-max {scale_weight_sync_precheck_port_max}.",
    ),
    Rule(
        name="trial-ports-are-free",
        option="scale_weight_sync_precheck_port_max",
        reads=_PORTS,
        broken=_ports_meet,
        message="lets the trial (from port {scale_weight_sync_precheck_port_base}) meet the transfer of weights,"
        " which takes ports 20000 to 32000.",
        fix="End at 20000, or begin at 32000.",
    ),
    Rule(
        name="server-port-is-free",
        option="rlsp_server_port",
        reads=("rlsp_server_port", *_PORTS),
        broken=lambda v: (
            v.scale_weight_sync_precheck_port_base <= v.rlsp_server_port <= v.scale_weight_sync_precheck_port_max
            or TRANSFER_PORTS[0] <= v.rlsp_server_port < TRANSFER_PORTS[1]
        ),
        message="is one of the ports over which engines get their weights.",
        fix="Choose one below {scale_weight_sync_precheck_port_base}.",
    ),
    Rule(
        name="autoscaler-has-rules",
        option="autoscaler_config",
        reads=("autoscaler_config",),
        broken=lambda v: _unreadable(v.autoscaler_config),
        message="is no file.",
        fix="Give a YAML file with the autoscaler's rules.",
    ),
    Rule(
        name="scaling-tries-before-it-sends",
        option="scale_weight_sync_precheck",
        reads=("scale_weight_sync_precheck", "autoscaler_config"),
        broken=lambda v: v.autoscaler_config is not None and not v.scale_weight_sync_precheck,
        message="lets an engine join before anybody knows whether weights can reach it.",
        severity="warning",
    ),
    idle(
        "restarts-are-watched-for",
        ("max_global_restart",),
        ("use_health_check",),
        lambda v: not v.use_health_check,
        "has no effect without --use-health-check, other than on a flow run of a deployment.",
    ),
    idle(
        "engines-are-watched",
        _HEALTH[1:],
        ("use_fault_tolerance",),
        lambda v: not v.use_fault_tolerance,
        "has no effect without --use-fault-tolerance.",
    ),
    idle(
        "engines-are-watched-at-times",
        _HEALTH[:1],
        # the router checks its engines at the same interval
        ("use_fault_tolerance", "use_slime_router"),
        lambda v: not v.use_fault_tolerance and not v.use_slime_router,
        "has no effect without --use-fault-tolerance or --use-slime-router.",
    ),
    Rule(
        name="tensorboard-has-a-folder",
        option="use_tensorboard",
        reads=("use_tensorboard", "tb_project_name", "env_file"),
        broken=lambda v: v.use_tensorboard and not _has_tensorboard_folder(v),
        message="needs --tb-project-name, the folder to write to, or the environment variable TENSORBOARD_DIR.",
    ),
    idle(
        "tensorboard-is-on",
        ("tb_project_name",),
        ("use_tensorboard",),
        lambda v: not v.use_tensorboard,
        "has no effect without --use-tensorboard.",
    ),
)
