"""Options of the SGLang engines: server arguments that Relax knows by name, and the engine's profiler.

Guarantee: a profiler's option changes no sample. Further arguments of the server are taken too; whether they exist is
checked where options are read.
"""

from relax_core.config.declare import PassThroughSection, option
from relax_core.config.ranges import COUNT, NOT_NEGATIVE, PROBABILITY, STEPS, Range, at_least

_SPEC = "relax_core/engines/spec.py"
_PROFILE = "relax_core/engines/profile.py"


class SglangSection(PassThroughSection):
    """SGLang engine

    What is honoured is passed to the server under its own name; None leaves SGLang's default.
    """

    title_zh = "SGLang 引擎参数"
    package = "sglang"

    sglang_mem_fraction_static: float | None = option(
        None, PROBABILITY, effect=_SPEC, zh="设备内存中权重与 KV cache 所占的比例。默认：由 SGLang 决定。"
    )
    """Fraction of device memory for weights and KV cache. Default: SGLang decides."""

    sglang_server_concurrency: int = option(512, COUNT, effect=_SPEC, zh="一个引擎上同时进行的请求数上限。")
    """Most requests in flight at one engine."""

    sglang_dtype: str | None = option(
        None,
        stages="generate evaluate",
        effect=_SPEC,
        zh="引擎权重的数据类型。默认：与训练器相同（没有 --bf16 时为 float32）。",
    )
    """Data type of the engine's weights. Default: the trainer's (float32 without --bf16)."""

    sglang_context_length: int | None = option(
        None,
        at_least(2),
        stages="generate evaluate",
        effect=_SPEC,
        zh="引擎的上下文长度。默认：--rollout-max-context-len；没有它时取 prompt 和回答所需的长度。",
    )
    """Context length of the engine. Default: --rollout-max-context-len, else what the prompts and responses need."""

    sglang_max_running_requests: int | None = option(
        None, COUNT, effect=_SPEC, zh="引擎一起解码的序列数上限。默认：由 SGLang 决定。"
    )
    """Most sequences that the engine decodes together. Default: SGLang decides."""

    sglang_max_total_tokens: int | None = option(
        None, COUNT, effect=_SPEC, zh="KV cache 容纳的 token 数。默认：由 SGLang 决定。"
    )
    """Tokens in the KV cache. Default: SGLang decides."""

    sglang_attention_backend: str | None = option(
        None, effect=_SPEC, zh="注意力计算的后端。没有 GPU 时固定为 torch_native。默认：由 SGLang 决定。"
    )
    """Attention backend. Without a GPU it is torch_native. Default: SGLang decides."""

    sglang_enable_deterministic_inference: bool = option(
        False,
        stages="generate evaluate",
        effect=_SPEC,
        zh="可复现的生成：样本各有种子，结果不受同一批中其他请求影响。",
    )
    """Reproducible generation: seeded samples whose results do not depend on what else is in the batch."""

    sglang_disable_radix_cache: bool = option(False, effect=_SPEC, zh="不使用前缀缓存。")
    """No prefix cache."""

    sglang_log_level: str = option("warning", effect=_SPEC, zh="服务日志的级别。")
    """Log level of the server."""

    sglang_profile: bool = option(
        False, effect=_PROFILE, zh="在 rollout 期间用 torch 的 profiler 记录引擎，每个选中的 step 写出一份 trace。"
    )
    """Profile the engines with torch during the rollout: one trace for every chosen step."""

    sglang_profile_steps: list[int] | None = option(
        None,
        STEPS,
        effect=_PROFILE,
        zh="要记录哪些 rollout step，从 0 数起；给出后不看 --sglang-profile-step-start 和 --sglang-profile-step-end。"
        "默认：由这两项决定。需要 --sglang-profile。",
    )
    """Rollout steps that are profiled, counted from 0; wins over --sglang-profile-step-start and
    --sglang-profile-step-end. Default: those two decide. Needs --sglang-profile."""

    sglang_profile_step_start: int | None = option(
        None,
        NOT_NEGATIVE,
        effect=_PROFILE,
        zh="要记录的第一个 rollout step，从 0 数起。默认：运行的第一步。需要 --sglang-profile。",
    )
    """First rollout step that is profiled, counted from 0. Default: the first of the run. Needs --sglang-profile."""

    sglang_profile_step_end: int | None = option(
        None,
        NOT_NEGATIVE,
        effect=_PROFILE,
        zh="要记录的最后一个 rollout step，含这一步。默认：运行的最后一步。需要 --sglang-profile。",
    )
    """Last rollout step that is profiled, included. Default: the last of the run. Needs --sglang-profile."""

    sglang_profile_output_dir: str | None = option(
        None,
        effect=_PROFILE,
        zh="trace 写入的文件夹。默认：`traces/<tb_experiment_name>/sglang_trace`。需要 --sglang-profile。",
    )
    """Folder of the traces. Default: `traces/<tb_experiment_name>/sglang_trace`. Needs --sglang-profile."""

    sglang_profile_num_steps: int = option(
        3,
        Range(lambda steps: steps == -1 or steps >= 1, "-1 (the whole rollout step) or 1 and more", {"minimum": -1}),
        effect=_PROFILE,
        zh="每个选中的 rollout step 里记录多少次前向计算；-1 表示记录到该 step 结束。需要 --sglang-profile。",
    )
    """Forward passes that are profiled in a rollout step; -1: all until it ends. Needs --sglang-profile."""

    sglang_profile_activities: list[str] = option(
        ["CPU", "GPU"], effect=_PROFILE, zh="记录哪些设备上的活动：CPU、GPU。需要 --sglang-profile。"
    )
    """Devices whose activity is recorded: CPU, GPU. Needs --sglang-profile."""

    sglang_profile_by_stage: bool = option(
        False, effect=_PROFILE, zh="prefill 与 decode 分成两份 trace。需要 --sglang-profile。"
    )
    """One trace for prefill and one for decoding. Needs --sglang-profile."""

    sglang_profile_with_stack: bool = option(
        False, effect=_PROFILE, zh="trace 里附上每个算子的 Python 调用栈。需要 --sglang-profile。"
    )
    """Record the Python stack of every operator. Needs --sglang-profile."""

    sglang_profile_record_shapes: bool = option(
        False, effect=_PROFILE, zh="trace 里附上算子输入的形状。需要 --sglang-profile。"
    )
    """Record the shapes of every operator's inputs. Needs --sglang-profile."""
