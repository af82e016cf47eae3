"""Options of elastic scaling: engines that join and leave during a run.

Guarantee: none of them changes what is generated or trained. Those that are known as environment variables
(``RELAX_SCALE_...``) are options like all others. Importing this module needs pydantic only.
"""

from typing import Literal

from relax_core.config.declare import Section, option
from relax_core.config.ranges import COUNT, NOT_NEGATIVE, PORT, above
from relax_core.config.sizes import ByteSize


class ScalingSection(Section):
    """Elastic scaling"""

    title_zh = "弹性扩缩容配置"

    autoscaler_config: str | None = option(
        None, unwired="warn", zh="自动扩缩容规则的 YAML 文件；给出即启用。默认：引擎数不自动变化。"
    )
    """YAML file with the rules by which engines are added and removed; setting it turns the autoscaler on. Default: no
    autoscaler."""
    scale_out_timeout: float = option(
        300.0, above(0), unwired="warn", zh="一次扩容最多多少秒，从启动引擎到权重就绪都算在内。"
    )
    """Seconds that adding engines may take, from their start until they have the weights."""
    scale_out_partial_success_policy: Literal["rollback_all", "keep_partial"] = option(
        "rollback_all",
        unwired="warn",
        zh="只有一部分新引擎成功时：rollback_all 把成功的也撤掉，keep_partial 留下成功的。",
    )
    """What becomes of the new engines that succeed when others fail: rollback_all removes them, keep_partial keeps
    them."""
    scale_weight_sync_precheck: bool = option(
        True,
        unwired="warn",
        zh="新引擎接收权重之前，先试探两端的 NCCL 能否互通；不通则拒绝这次扩容。关闭后不再有这层保护。",
    )
    """Before a new engine gets weights, try whether NCCL works between it and the sender, and refuse it if not.
    Switched off, nothing protects the transfer."""
    scale_weight_sync_precheck_min_free_bytes: ByteSize = option(
        512 * 1024**2,
        NOT_NEGATIVE,
        unwired="warn",
        zh="试探通信所需的空闲显存；不足则拒绝扩容。SGLang 占去大部分显存，设得过低试探本身可能耗尽显存。",
    )
    """Free device memory that the trial needs; with less the new engine is refused. SGLang takes most of the memory:
    set too low, the trial itself may run out of it."""
    scale_weight_sync_precheck_port_base: int = option(18000, PORT, unwired="warn", zh="试探通信所用端口段的起点。")
    """First port of the trial."""
    scale_weight_sync_precheck_port_max: int = option(
        20000, PORT, unwired="warn", zh="试探通信所用端口段的终点。防火墙须放行整段，否则试探必然失败。"
    )
    """Last port of the trial. A firewall has to let the whole range pass, else the trial fails."""
    scale_weight_sync_precheck_max_attempts: int = option(2, COUNT, unwired="warn", zh="试探通信最多做几次。")
    """Most attempts at the trial."""
    scale_out_max_reason_items: int = option(3, COUNT, unwired="warn", zh="扩容失败时最多显示几条原因。")
    """Most reasons shown when adding engines fails."""
    scale_out_max_reason_item_len: int = option(120, COUNT, unwired="warn", zh="每条原因最多显示多少字符。")
    """Most characters of one such reason."""
    scale_out_max_reason_total_len: int = option(512, COUNT, unwired="warn", zh="所有原因合计最多显示多少字符。")
    """Most characters of all reasons together."""
    scale_in_drain_timeout: float = option(
        30.0, NOT_NEGATIVE, unwired="warn", zh="撤下引擎前，最多等它手上的请求多少秒；到时仍未完成的请求被中止。"
    )
    """Seconds that an engine to be removed may take to finish its requests; what is left then is aborted."""
    scale_in_shutdown_timeout: float = option(
        30.0, NOT_NEGATIVE, unwired="warn", zh="等引擎自行退出多少秒；到时强行结束其进程。"
    )
    """Seconds that it then may take to exit by itself before its process is killed."""
