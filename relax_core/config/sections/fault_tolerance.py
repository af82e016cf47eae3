"""Options of fault tolerance.

Guarantee: none of them changes what is generated or trained. Importing this module needs pydantic only.
"""

from relax_core.config.declare import Section, option
from relax_core.config.ranges import NOT_NEGATIVE, above


class FaultToleranceSection(Section):
    """Fault tolerance"""

    title_zh = "容错配置"

    use_fault_tolerance: bool = option(
        False,
        effect="relax_core/run/health.py",
        zh="rollout 期间监视各引擎：连续两次检查失败的引擎会被结束，未完成的请求转给其他引擎；"
        "下一步开始时换成新的，并领到当前权重。",
    )
    """Watch the engines while they generate. One that fails two checks in a row is ended: its unfinished requests go to
    the others, and it is replaced, with the current weights, before the next step."""
    use_health_check: bool = option(
        False,
        effect="flows/restarts.py",
        zh="由一个小父进程看护驱动进程：驱动进程崩溃、被杀、卡死，或者丢失引擎、训练器、Ray、Prefect 时，自动重新启动，"
        "从最后完成的任务继续。选项或数据写错时不重启。",
    )
    """Watch the driver from a small parent process, and start it again when it dies, hangs, or has lost an engine, the
    trainer, Ray or Prefect; it goes on from the last finished task. A mistake in the options or the data ends it."""
    max_global_restart: int = option(
        3,
        NOT_NEGATIVE,
        effect="flows/restarts.py",
        zh="整个运行最多重新启动几次，再多就结束。需要 --use-health-check，或者作为 Prefect 部署运行。",
    )
    """How often the driver may be started again in all before the run ends. Needs --use-health-check, or a deployment
    of Prefect."""
    rollout_health_check_interval: float = option(
        30.0,
        above(0),
        effect="relax_core/run/health.py",
        zh="每隔多少秒询问一次引擎是否正常。需要 --use-fault-tolerance。",
    )
    """Seconds between two health checks of an engine. Needs --use-fault-tolerance."""
    rollout_health_check_timeout: float = option(
        30.0,
        above(0),
        effect="relax_core/run/health.py",
        zh="引擎多少秒不答复就算检查失败。需要 --use-fault-tolerance。",
    )
    """Seconds without an answer after which a health check has failed. Needs --use-fault-tolerance."""
    rollout_health_check_first_wait: float = option(
        0.0,
        NOT_NEGATIVE,
        effect="relax_core/run/health.py",
        zh="引擎启动或恢复后，过多少秒才做第一次检查；首次请求要编译 kernel（如 DeepGEMM）时调大。"
        "需要 --use-fault-tolerance。",
    )
    """Seconds from an engine's start, or its resumption, to its first health check; more where kernels compile first
    (DeepGEMM). Needs --use-fault-tolerance."""
