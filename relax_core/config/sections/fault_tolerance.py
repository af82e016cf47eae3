"""Options of fault tolerance.

Guarantee: none of them changes what is generated or trained. Importing this module needs pydantic only.
"""

from relax_core.config.declare import Section, option
from relax_core.config.ranges import NOT_NEGATIVE, above


class FaultToleranceSection(Section):
    """Fault tolerance"""

    title_zh = "容错配置"

    use_fault_tolerance: bool = option(
        False, unwired="warn", zh="rollout 期间监视各引擎，失去响应的引擎会被换成新的，并领到当前权重。"
    )
    """Watch the engines during rollouts; one that stops answering is replaced and gets the current weights."""
    use_health_check: bool = option(False, unwired="warn", zh="监视所有服务的心跳，出故障的服务自动重启。")
    """Watch the heartbeat of every service and restart what fails."""
    max_global_restart: int = option(
        3, NOT_NEGATIVE, unwired="warn", zh="整个运行最多从头拉起几次，再多就结束。需要 --use-health-check。"
    )
    """How often the run as a whole may be restarted before it ends. Needs --use-health-check."""
    rollout_health_check_interval: float = option(
        30.0, above(0), unwired="warn", zh="每隔多少秒询问一次引擎是否正常。需要 --use-fault-tolerance。"
    )
    """Seconds between two health checks of an engine. Needs --use-fault-tolerance."""
    rollout_health_check_timeout: float = option(
        30.0, above(0), unwired="warn", zh="引擎多少秒不答复就算检查失败。需要 --use-fault-tolerance。"
    )
    """Seconds without an answer after which a health check has failed. Needs --use-fault-tolerance."""
    rollout_health_check_first_wait: float = option(
        0.0,
        NOT_NEGATIVE,
        unwired="warn",
        zh="引擎启动或恢复后，过多少秒才做第一次检查；首次请求要编译 kernel（如 DeepGEMM）时调大。"
        "需要 --use-fault-tolerance。",
    )
    """Seconds from an engine's start, or its resumption, to its first health check; more where kernels compile first
    (DeepGEMM). Needs --use-fault-tolerance."""
