"""Flags of Megatron's launcher that are no fields of its configuration classes, as launch scripts contain them.

Guarantee: a flag of a launch script is never taken for something else: what describes the model must agree with its
config.json, what Relax does in any case may be given, and everything else is told. Each default here is what Relax
does. The fields of Megatron's configuration classes are further options of this section, which are not declared.
Importing this module needs pydantic only.
"""

from typing import Literal

from relax_core.config.declare import PassThroughSection, option
from relax_core.config.ranges import COUNT, NOT_NEGATIVE, PROBABILITY, Range, above

_SHAPE = "relax_core/config/rules/model.py"
_SCHEDULE = "relax_core/training/schedule.py"
_COUNTS = Range(lambda counts: bool(counts) and all(count >= 0 for count in counts), "whole numbers, 0 or more")


class MegatronSection(PassThroughSection):
    """Megatron"""

    title_zh = "Megatron 参数"
    package = "megatron"

    # The model's shape
    vocab_size: int | None = option(
        None, COUNT, effect=_SHAPE, zh="词表大小，不含填充。须与 config.json 一致。默认：按 config.json。"
    )
    """Entries of the vocabulary, without padding. Must agree with the model's config.json. Default: what that says."""
    max_position_embeddings: int | None = option(
        None, COUNT, effect=_SHAPE, zh="模型支持的最大位置数。须与 config.json 一致。默认：按 config.json。"
    )
    """Positions that the model knows. Must agree with the model's config.json. Default: what that says."""
    position_embedding_type: Literal["learned_absolute", "rope", "yarn", "mrope", "relative", "none"] | None = option(
        None, effect=_SHAPE, zh="位置编码的种类。须与 config.json 一致，即 rope。默认：按 config.json。"
    )
    """Kind of position embedding. Must agree with the model's config.json: rope. Default: what that says."""
    use_rotary_position_embeddings: bool | None = option(
        None, effect=_SHAPE, zh="使用旋转位置编码，即 --position-embedding-type rope。默认：按 config.json。"
    )
    """The same as --position-embedding-type rope. Default: what the model's config.json says."""
    no_position_embedding: bool | None = option(
        None, effect=_SHAPE, zh="没有学习得到的绝对位置编码。须与 config.json 一致。默认：按 config.json。"
    )
    """No learned position embedding. Must agree with the model's config.json. Default: what that says."""
    use_rope_scaling: bool | None = option(
        None, effect=_SHAPE, zh="使用 Llama 3.1 的旋转角缩放。须与 config.json 一致。默认：按 config.json。"
    )
    """Llama 3.1's scaling of the rotary angles. Must agree with the model's config.json. Default: what that says."""
    rope_scaling_factor: float | None = option(
        None, above(0), effect=_SHAPE, zh="旋转角缩放的倍数。须与 config.json 一致。默认：按 config.json。"
    )
    """Factor of that scaling. Must agree with the model's config.json. Default: what that says."""
    group_query_attention: bool | None = option(
        None, effect=_SHAPE, zh="几个 query 头共用一个 key/value 头。须与 config.json 一致。默认：按 config.json。"
    )
    """Several query heads share a key-value head. Must agree with the model's config.json. Default: what that says."""
    untie_embeddings_and_output_weights: bool | None = option(
        None, effect=_SHAPE, zh="输出层不与 embedding 共用权重。须与 config.json 一致。默认：按 config.json。"
    )
    """The output layer has weights of its own. Must agree with the model's config.json. Default: what that says."""

    # Models that Relax does not build
    squared_relu: bool = option(False, unwired="refuse", zh="MLP 的激活为 ReLU 的平方。支持的模型都用 SwiGLU。")
    """Squared ReLU in the MLP. The supported models have SwiGLU."""
    quick_geglu: bool = option(False, unwired="refuse", zh="MLP 的激活为近似的 GEGLU。支持的模型都用 SwiGLU。")
    """An approximate GEGLU in the MLP. The supported models have SwiGLU."""
    use_gated_attention: bool = option(False, unwired="refuse", zh="attention 的输出带门控。支持的模型都没有。")
    """A gate at the output of attention. No supported model has it."""
    post_self_attn_layernorm: bool = option(False, unwired="refuse", zh="attention 之后再加 norm。支持的模型都没有。")
    """A further norm behind attention. No supported model has it."""
    post_mlp_layernorm: bool = option(False, unwired="refuse", zh="MLP 之后再加 norm。支持的模型都没有。")
    """A further norm behind the MLP. No supported model has it."""
    spec: list[str] | None = option(None, unwired="refuse", zh="自定义的层结构。默认：由 config.json 决定。")
    """Your own specification of the layers. Default: what the model's config.json decides."""
    rotary_seq_len_interpolation_factor: int | None = option(
        None, COUNT, unwired="refuse", zh="旋转位置按此倍数压缩。默认：不压缩。"
    )
    """Factor by which rotary positions are squeezed. Default: they are not."""
    make_vocab_size_divisible_by: int = option(
        1, COUNT, unwired="warn", zh="词表填充到它的倍数。Relax 从不填充；词表须被 --tensor-model-parallel-size 整除。"
    )
    """Pad the vocabulary to a multiple of this. Relax never pads: --tensor-model-parallel-size must divide it as it
    is."""
    use_mcore_models: bool = option(True, unwired="warn", zh="用 Megatron-core 构造模型。Relax 总是如此。")
    """Build the model with Megatron-core. Relax always does."""

    # Data and tokens
    seq_length: int | None = option(
        None,
        COUNT,
        unwired="warn",
        zh="固定的序列长度。Relax 按实际长度打包，上限为 --rollout-max-context-len。默认：无。",
    )
    """A fixed length of all sequences. Relax packs them as long as they are, bounded by --rollout-max-context-len.
    Default: none."""
    data_path: list[str] | None = option(None, unwired="refuse", zh="预训练数据。改用 --prompt-data。默认：没有。")
    """Data of a pre-training. Use --prompt-data. Default: none."""
    split: str | None = option(None, unwired="refuse", zh="预训练数据怎样划分。改用 --eval-prompt-data。默认：不划分。")
    """How the data of a pre-training are divided. Use --eval-prompt-data. Default: they are not."""
    num_workers: int | None = option(
        None, NOT_NEGATIVE, unwired="warn", zh="读取数据的进程数。Relax 的训练直接读取整个 batch 的文件。默认：没有。"
    )
    """Processes that load data. Relax's trainer reads the file of the whole batch. Default: none."""
    tokenizer_type: str | None = option(
        None, unwired="warn", zh="tokenizer 的种类。Relax 使用 --hf-checkpoint 里的 tokenizer。默认：不设。"
    )
    """Kind of tokenizer. Relax takes the one in --hf-checkpoint. Default: not set."""
    tokenizer_model: str | None = option(
        None, unwired="refuse", zh="tokenizer 的路径。Relax 使用 --hf-checkpoint 里的 tokenizer。默认：不设。"
    )
    """Path of the tokenizer. Relax takes the one in --hf-checkpoint. Default: not set."""
    trust_remote_code: bool = option(False, unwired="warn", zh="允许执行模型文件夹里的代码。训练端从不执行。")
    """Run code that a model's folder contains. The trainer never does."""

    # Length of the run and its schedule
    train_iters: int | None = option(
        None, COUNT, unwired="refuse", zh="optimizer step 的总数。改用 --num-rollout 或 --num-epoch。默认：由它们得出。"
    )
    """Optimiser steps of the run. Use --num-rollout or --num-epoch. Default: what they give."""
    train_samples: int | None = option(
        None, COUNT, unwired="refuse", zh="样本总数。改用 --num-rollout 或 --num-epoch。默认：由它们得出。"
    )
    """Samples of the run. Use --num-rollout or --num-epoch. Default: what they give."""
    exit_interval: int | None = option(
        None, COUNT, unwired="refuse", zh="到这个 optimizer step 的倍数即停止。改用 --num-rollout。默认：不提前停止。"
    )
    """Stop at a multiple of this many optimiser steps. Use --num-rollout. Default: the run is not cut short."""
    exit_duration_in_mins: int | None = option(
        None, COUNT, unwired="warn", zh="运行多少分钟后停止。Relax 随时可以停下，同一条命令即可续跑。默认：不停止。"
    )
    """Minutes after which the run stops. Relax can be stopped at any time, and the same command goes on. Default: it
    does not stop."""
    rampup_batch_size: list[int] | None = option(
        None, _COUNTS, unwired="refuse", zh="batch 逐渐增大：起始值、每次增量、所用样本数。默认：大小不变。"
    )
    """A batch that grows: its first size, the increment, and over how many samples. Default: it does not."""
    lr_warmup_fraction: float | None = option(
        None,
        PROBABILITY,
        stages="train",
        effect=_SCHEDULE,
        zh="warm-up 占衰减长度的比例。不能与 --lr-warmup-iters 同用。默认：由后者决定。",
    )
    """Warm-up as a share of the decay. Excludes --lr-warmup-iters. Default: that decides."""
    lr_warmup_init: float = option(
        0.0, NOT_NEGATIVE, stages="train_critic train", effect=_SCHEDULE, zh="warm-up 从哪个学习率开始。"
    )
    """Learning rate at the start of the warm-up."""
    lr_warmup_samples: int = option(
        0, NOT_NEGATIVE, unwired="refuse", zh="按样本计的 warm-up；改用 --lr-warmup-iters。"
    )
    """Warm-up in samples. Use --lr-warmup-iters."""
    lr_decay_iters: int | None = option(
        None,
        COUNT,
        stages="train_critic train",
        effect=_SCHEDULE,
        zh="学习率在多少个 optimizer step 内衰减（含 warm-up），之后为 --min-lr。默认：整个运行。",
    )
    """Optimiser steps, warm-up included, within which the rate decays; then it is --min-lr. Default: the whole run."""
    lr_wsd_decay_iters: int | None = option(
        None,
        COUNT,
        stages="train_critic train",
        effect=_SCHEDULE,
        zh="--lr-decay-style WSD 最后一段（学习率下降）的 optimizer step 数。默认：不设；WSD 时必须给出。",
    )
    """Optimiser steps of the last phase of --lr-decay-style WSD, in which the rate goes down. Default: not set; WSD
    needs it."""
    lr_wsd_decay_style: Literal["exponential", "linear", "cosine", "minus_sqrt"] = option(
        "exponential",
        stages="train_critic train",
        effect=_SCHEDULE,
        zh="--lr-decay-style WSD 最后一段里学习率怎样下降。",
    )
    """How the rate goes down in the last phase of --lr-decay-style WSD."""
    lr_decay_samples: int | None = option(
        None, COUNT, unwired="refuse", zh="学习率衰减多少个样本。Relax 总是衰减到运行结束。默认：整个运行。"
    )
    """Samples of the decay. Relax decays until the end of the run. Default: all."""
    weight_decay_incr_style: Literal["constant", "linear", "cosine"] = option(
        "constant",
        stages="train_critic train",
        effect=_SCHEDULE,
        zh="权重衰减怎样变化：constant 为 --weight-decay 不变，其余在整个运行内由 --start-weight-decay 升到 "
        "--end-weight-decay。",
    )
    """Schedule of the weight decay: it stays at --weight-decay (constant), or rises from --start-weight-decay to
    --end-weight-decay over the whole run."""
    start_weight_decay: float | None = option(
        None,
        NOT_NEGATIVE,
        stages="train_critic train",
        effect=_SCHEDULE,
        zh="权重衰减的起始值。需要 --weight-decay-incr-style linear 或 cosine。默认：--weight-decay。",
    )
    """First weight decay. Needs --weight-decay-incr-style linear or cosine. Default: --weight-decay."""
    end_weight_decay: float | None = option(
        None,
        NOT_NEGATIVE,
        stages="train_critic train",
        effect=_SCHEDULE,
        zh="权重衰减的终值。需要 --weight-decay-incr-style linear 或 cosine。默认：--weight-decay。",
    )
    """Last weight decay. Needs --weight-decay-incr-style linear or cosine. Default: --weight-decay."""
    override_opt_param_scheduler: bool = option(
        True, unwired="refuse", zh="学习率等以选项为准，不用 checkpoint 里的。Relax 总是如此。"
    )
    """The options decide the schedule, not the checkpoint. Relax always does so."""
    use_checkpoint_opt_param_scheduler: bool = option(
        False, unwired="refuse", zh="学习率等以 checkpoint 里的为准。Relax 总是以选项为准。"
    )
    """The checkpoint decides the schedule. In Relax the options do."""

    # Checkpoints
    finetune: bool = option(True, unwired="refuse", zh="--load 只给出权重，从第 0 步开始。Relax 总是如此。")
    """--load gives weights and the run begins at step 0. Relax always does so."""
    no_load_optim: bool = option(
        True, unwired="refuse", zh="不读取 --load 的优化器状态。Relax 从不读取；续跑同一运行时则会读取它自己的。"
    )
    """Leave out the optimiser's state of --load. Relax always does so; a run that goes on takes its own."""
    no_load_rng: bool = option(
        True, unwired="refuse", zh="不读取 --load 的随机数状态。Relax 从不读取；续跑同一运行时则会读取它自己的。"
    )
    """Leave out the random state of --load. Relax always does so; a run that goes on takes its own."""
    no_save_rng: bool = option(False, unwired="warn", zh="checkpoint 不存随机数状态。Relax 总是保存。")
    """Leave the random state out of checkpoints. Relax always saves it."""
    ckpt_step: int | None = option(
        None,
        NOT_NEGATIVE,
        unwired="refuse",
        zh="读取 --load 的哪一步。改为让 --load 指向该步的文件夹（`iter_0000012`）。默认：最新一步。",
    )
    """Step of --load to read. Let --load name its folder instead (`iter_0000012`). Default: the newest."""
    ckpt_format: Literal["torch_dist", "torch", "torch_dcp", "fsdp_dtensor", "zarr"] = option(
        "torch_dist", unwired="warn", zh="checkpoint 的格式。Relax 只写 torch_dist。"
    )
    """Format of checkpoints. Relax writes torch_dist alone."""
    use_dist_ckpt: bool = option(True, unwired="warn", zh="写分布式 checkpoint。Relax 总是如此。")
    """Write distributed checkpoints. Relax always does."""
    use_checkpoint_args: bool = option(False, unwired="warn", zh="模型形状取自 checkpoint。Relax 取自 config.json。")
    """Take the model's shape from the checkpoint. Relax takes it from config.json."""
    use_mp_args_from_checkpoint_args: bool = option(
        False, unwired="warn", zh="并行大小取自 checkpoint。Relax 取自选项，大小可以与 checkpoint 不同。"
    )
    """Take the parallel sizes from the checkpoint. Relax takes them from the options; they may differ."""
    pretrained_checkpoint: str | None = option(
        None, unwired="refuse", zh="没有 --load 时读取的权重。改用 --load。默认：--hf-checkpoint。"
    )
    """Weights to take where there is no --load. Use --load. Default: --hf-checkpoint."""
    auto_detect_ckpt_format: bool = option(True, unwired="warn", zh="自行识别 --load 的格式。Relax 总是如此。")
    """Find out the format of --load. Relax always does."""
    ckpt_fully_parallel_load: bool = option(
        False, unwired="warn", zh="各 data-parallel rank 分头读取 checkpoint 再互相交换。Relax 每个 rank 各读所需。"
    )
    """Data-parallel ranks each read a part of a checkpoint and exchange them. In Relax each reads what it needs."""
    ckpt_assume_constant_structure: bool = option(
        False, unwired="warn", zh="假定每次保存的结构相同，以便少做准备。Relax 每次都重新准备。"
    )
    """Take it that all checkpoints have the same structure, to prepare it once. Relax prepares each."""
    exit_on_missing_checkpoint: bool = option(True, unwired="warn", zh="--load 不存在即停止。Relax 总是如此。")
    """Stop where there is no --load. Relax always does."""

    # Precision
    fp16_lm_cross_entropy: bool = option(False, unwired="refuse", zh="以 float16 计算 log-prob。Relax 用 float32。")
    """Compute log-probs in float16. Relax does so in float32."""

    # Speed, memory and placement
    use_flash_attn: bool = option(False, unwired="warn", zh="使用 flash attention。GPU 上 Relax 总是使用，CPU 上没有。")
    """Flash attention. Relax always has it on a GPU and never on a CPU."""
    recompute_activations: bool = option(
        False, unwired="warn", zh="重算 attention 的激活。改用 --recompute-granularity selective。"
    )
    """Recompute the activations of attention. Use --recompute-granularity selective."""
    num_layers_per_virtual_pipeline_stage: int | None = option(
        None, COUNT, unwired="warn", zh="virtual pipeline 每段的层数。Relax 不交错 pipeline。默认：不交错。"
    )
    """Layers of a virtual pipeline stage. Relax's pipeline is not interleaved. Default: none."""
    num_virtual_stages_per_pipeline_rank: int | None = option(
        None, COUNT, unwired="warn", zh="每个 rank 有几个 virtual pipeline 段。Relax 不交错 pipeline。默认：不交错。"
    )
    """Virtual stages of a pipeline rank. Relax's pipeline is not interleaved. Default: none."""
    use_torch_fsdp2: bool = option(False, unwired="warn", zh="用 PyTorch 的 FSDP 分散权重。Relax 不用。")
    """Shard weights with PyTorch's FSDP. Relax does not."""
    disable_gloo_process_groups: bool = option(False, unwired="warn", zh="不建立 gloo 通信组。Relax 总是建立。")
    """No process groups of gloo. Relax always has them."""
    distributed_timeout_seconds_after_init: int | None = option(
        None, COUNT, unwired="warn", zh="启动之后另用的通信超时，秒。改用 --distributed-timeout-minutes。默认：不设。"
    )
    """Seconds of another timeout after the start. Use --distributed-timeout-minutes. Default: not set."""
    manual_gc: bool = option(False, unwired="warn", zh="由训练循环决定何时回收 Python 垃圾。Relax 交给 Python。")
    """Collect Python's garbage at chosen moments. Relax leaves that to Python."""
    manual_gc_interval: int = option(0, NOT_NEGATIVE, unwired="warn", zh="相隔多少个 step。需要 --manual-gc。")
    """Steps between those moments. Needs --manual-gc."""
    empty_unused_memory_level: int = option(0, NOT_NEGATIVE, unwired="warn", zh="每步怎样归还闲置显存。Relax 不归还。")
    """When device memory that lies idle is given back. Relax keeps it."""
    tp_comm_overlap_cfg: str | None = option(
        None, unwired="warn", zh="tensor parallel 通信与计算重叠的设置文件（TransformerEngine）。默认：没有。"
    )
    """Settings of TransformerEngine's overlap of communication and computation. Default: none."""
    use_tp_pp_dp_mapping: bool = option(
        False, unwired="warn", zh="rank 依 tensor、pipeline、data 的次序编号。Relax 依 tensor、data、pipeline。"
    )
    """Number ranks by tensor, pipeline, then data. In Relax it is tensor, data, then pipeline."""
    enable_experimental: bool = option(False, unwired="warn", zh="允许 Megatron 的实验功能。Relax 不使用它们。")
    """Allow what is experimental in Megatron. Relax uses none of it."""

    # Reports
    log_interval: int = option(1, COUNT, unwired="warn", zh="每隔多少个 step 报告一次。Relax 每步都报告。")
    """Steps between two reports. Relax reports each step."""
    eval_iters: int | None = option(
        None, NOT_NEGATIVE, unwired="warn", zh="一次评估的 batch 数。Relax 总是评估全部评估集。默认：全部。"
    )
    """Batches of an evaluation. Relax evaluates all of its sets. Default: all."""
    log_throughput: bool = option(True, unwired="warn", zh="报告吞吐量。Relax 总是报告。")
    """Report the throughput. Relax always does."""
    timing_log_level: int = option(0, NOT_NEGATIVE, unwired="warn", zh="计时的详细程度。Relax 总是记录各阶段的用时。")
    """How much of the time is reported. Relax always reports that of each stage."""
    log_params_norm: bool = option(False, unwired="warn", zh="报告权重的范数。")
    """Report the norm of the weights."""
    log_timers_to_tensorboard: bool = option(False, unwired="warn", zh="把计时写入 TensorBoard。")
    """Write times for TensorBoard."""
    profile: bool = option(False, unwired="warn", zh="用 Nsight Systems 记录。也可用 --use-pytorch-profiler。")
    """Record with Nsight Systems. See --use-pytorch-profiler too."""
    profile_ranks: list[int] | None = option(
        None, _COUNTS, unwired="warn", zh="记录哪些 rank。需要 --profile。默认：不设。"
    )
    """Ranks to record. Needs --profile. Default: not set."""
    tensorboard_dir: str | None = option(
        None, unwired="warn", zh="TensorBoard 的目录。改用 --use-tensorboard 与 --tb-project-name。默认：不设。"
    )
    """Folder of TensorBoard. Use --use-tensorboard and --tb-project-name. Default: not set."""
