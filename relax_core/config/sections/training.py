"""Training options that belong to no other section.

Guarantee: what saves memory changes no result; what would train another model is refused while nothing honours it.
Importing this module needs pydantic only.
"""

from relax_core.config.declare import Section, option
from relax_core.config.ranges import NOT_NEGATIVE, OFF_OR_COUNT, PORT
from relax_core.config.sizes import ByteSize


class TrainingSection(Section):
    """Other training options"""

    title_zh = "其他训练参数"

    train_env_vars: dict[str, str] = option(
        {}, effect="relax_core/training/actor.py", zh="训练进程另外带上的环境变量（JSON，值为文本）。"
    )
    """Further environment variables of the training processes (JSON; values are texts)."""
    train_memory_margin_bytes: ByteSize = option(
        1024**3, NOT_NEGATIVE, unwired="warn", zh="训练与引擎轮流使用显存时，训练一侧始终留空多少字节。"
    )
    """Bytes of device memory that training leaves free where it takes turns with the engine."""
    disable_weights_backuper: bool = option(
        False, unwired="warn", zh="主机内存中不再保留权重副本：省内存，但参考模型等不能再与 actor 换入换出。"
    )
    """Keep no copies of weights in host memory: saves it, but a reference model can no longer be swapped in."""
    custom_model_provider_path: str | None = option(
        None, unwired="refuse", zh="自定义函数，由它构造 Megatron 模型。默认：按模型的 config.json 构造。"
    )
    """Your function that builds the Megatron model. Default: it is built from the model's config.json."""
    recompute_loss_function: bool = option(
        False,
        effect="relax_core/training/readout.py",
        zh="反向时重新计算 loss，不保留由 logits 得来的中间结果：以时间换显存。",
    )
    """Compute the loss a second time in the backward pass in place of keeping what it made of the logits: slower, with
    less memory."""
    log_probs_chunk_size: int = option(
        -1,
        OFF_OR_COUNT,
        effect="relax_core/training/readout.py",
        zh="logits 同时存在的行数，越小越省显存；-1：由 Relax 按显存决定（行数少时一次算完）。",
    )
    """Rows of logits that exist at once; -1: as many as stay small beside the model."""
    disable_compile: bool = option(
        False,
        effect="relax_core/training/build.py",
        zh="GPU 上的 trainer 不用 torch.compile：第一步不再花十几秒编译，之后每步更慢。CPU 上从不编译。",
    )
    """Do not let torch compile the trainer's computation on a GPU: the first step does not wait some ten seconds for
    it, and all others are slower. On a CPU nothing is compiled."""
    allgather_cp: bool = option(
        False, unwired="refuse", zh="context parallel 的另一种做法：各 rank 取连续的一段序列，K/V 用 all-gather 汇集。"
    )
    """Another way of context parallelism: each rank has one stretch of the sequence, and keys and values are
    all-gathered."""
    model_name: str | None = option(
        None,
        unwired="warn",
        zh="模型家族的名称，决定权重怎样由 Megatron 转成 Hugging Face 格式。"
        "默认：由 --hf-checkpoint 的 config.json 得出。",
    )
    """Name of the model family, by which Megatron's weights become Hugging Face's. Default: what the config.json of
    --hf-checkpoint says."""
    only_load_weight: bool = option(
        False, unwired="warn", zh="只做前向计算的模型（参考模型、actor 的前向副本）只读权重，不读优化器与随机数状态。"
    )
    """Models that only compute forward (reference, the actor's forward copy) load weights, no optimiser and no random
    state."""
    rlsp_server_port: int = option(8234, PORT, unwired="warn", zh="RLSP 服务的 HTTP 端口。")
    """HTTP port of the RLSP server."""
    custom_config_path: str | None = option(
        None,
        effect="relax_core/config/parser.py",
        zh="另一个 YAML 文件，写选项名和值；其中的值优先于其他一切来源。默认：没有。",
    )
    """A further YAML file of option names and values; its values win over all others. Default: none."""
