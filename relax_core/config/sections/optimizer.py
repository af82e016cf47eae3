"""Options of the optimiser, its schedule and float16's loss scaling.

Guarantee: an option that is not given leaves Megatron's own default; what differs for float16 is filled in by a rule,
not here. Importing this module needs pydantic only.
"""

from typing import Literal

from relax_core.config.declare import Section, option
from relax_core.config.ranges import ANY, DECAY, NOT_NEGATIVE, above

_OPTIMIZER = "relax_core/training/optimizer.py"
_SCHEDULE = "relax_core/training/schedule.py"
_UPDATES = "relax_core/training/updates.py"


class OptimizerSection(Section):
    """Optimiser"""

    title_zh = "优化器配置"

    lr: float = option(1e-6, NOT_NEGATIVE, stages="train", effect=_OPTIMIZER, zh="学习率。")
    """Learning rate."""
    min_lr: float = option(0.0, NOT_NEGATIVE, stages="train_critic train", effect=_OPTIMIZER, zh="衰减时学习率的下限。")
    """Lowest learning rate of the schedule."""
    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"] = option(
        "constant",
        stages="train_critic train",
        effect=_SCHEDULE,
        zh="warm-up 之后学习率怎样变化；衰减跨越整个运行，或 --lr-decay-iters。WSD 先保持不变，"
        "在最后 --lr-wsd-decay-iters 个 optimizer step 内下降。",
    )
    """Schedule of the learning rate after the warm-up, over the whole run or --lr-decay-iters. WSD stays at --lr and
    goes down in the last --lr-wsd-decay-iters optimiser steps."""
    lr_warmup_iters: int = option(
        0, NOT_NEGATIVE, stages="train", effect=_SCHEDULE, zh="学习率线性 warm-up 的 optimizer step 数。"
    )
    """Optimiser steps of linear warm-up."""
    optimizer: Literal["adam"] = option(
        "adam", stages="train_critic train", effect=_OPTIMIZER, zh="优化器；adam 的权重衰减与梯度分开（AdamW）。"
    )
    """Optimiser; adam's weight decay is decoupled (AdamW)."""
    weight_decay: float = option(
        0.01, NOT_NEGATIVE, stages="train_critic train", effect=_OPTIMIZER, zh="权重衰减；不作用于 norm 与 bias。"
    )
    """Weight decay; norms and biases have none."""
    adam_beta1: float = option(
        0.9, DECAY, stages="train_critic train", effect=_OPTIMIZER, zh="Adam 一阶矩的衰减率 beta 1。"
    )
    """Adam's beta 1."""
    adam_beta2: float = option(
        0.999, DECAY, stages="train_critic train", effect=_OPTIMIZER, zh="Adam 二阶矩的衰减率 beta 2。"
    )
    """Adam's beta 2."""
    adam_eps: float = option(
        1e-8, above(0), stages="train_critic train", effect=_OPTIMIZER, zh="Adam 更新式分母上所加的小数 epsilon。"
    )
    """Adam's epsilon."""
    clip_grad: float = option(
        1.0,
        NOT_NEGATIVE,
        stages="train_critic train",
        effect=_UPDATES,
        zh="梯度范数的上限，超过则按比例缩小；0 为不裁剪。",
    )
    """Largest norm of the gradient; 0 is off."""
    seed: int = option(
        1234,
        NOT_NEGATIVE,
        stages="train_critic train",
        effect="relax_core/training/trainer.py",
        zh="训练端的随机种子。",
    )
    """Seed of the trainer."""
    optimizer_cpu_offload: bool = option(
        False,
        effect=_OPTIMIZER,
        zh="优化器状态放在主机内存中，并在 CPU 上更新：省显存，但慢。在 CPU 上训练时本来如此。"
        "需要 --use-precision-aware-optimizer 和 --use-distributed-optimizer。",
    )
    """Keep the optimiser's state in host memory and update there: slower, with less device memory. On a CPU it is
    there anyway. Needs --use-precision-aware-optimizer and --use-distributed-optimizer."""
    overlap_cpu_optimizer_d2h_h2d: bool = option(
        False,
        effect=_OPTIMIZER,
        zh="CPU 上的更新与梯度、权重的来回拷贝同时进行。需要 --optimizer-cpu-offload。",
    )
    """Update on the CPU while gradients and weights are copied. Needs --optimizer-cpu-offload."""
    use_distributed_optimizer: bool = option(
        False, effect=_OPTIMIZER, zh="优化器状态分散到各 data-parallel rank（如同 ZeRO-1）。"
    )
    """Shard the optimiser's state over the data-parallel ranks."""
    overlap_grad_reduce: bool = option(False, effect=_UPDATES, zh="反向计算尚未结束时就开始汇总已算好的梯度。")
    """Reduce gradients while the backward pass goes on."""
    overlap_param_gather: bool = option(
        False,
        effect=_UPDATES,
        zh="收集更新后的权重与下一次前向同时进行。需要 --overlap-grad-reduce 和 --use-distributed-optimizer。",
    )
    """Gather updated weights while the next forward pass goes on. Needs --overlap-grad-reduce and
    --use-distributed-optimizer."""
    calculate_per_token_loss: bool = option(
        False,
        stages="train_critic train",
        effect="relax_core/training/loss.py",
        zh="loss 对 global batch 的所有 token 求平均，而不是先在样本内、再对样本求平均。",
    )
    """Average the loss over the tokens of the global batch, not over its samples."""
    loss_scale: float | None = option(
        None,
        above(0),
        stages="train_critic train",
        effect=_OPTIMIZER,
        zh="float16 下固定的 loss 放大倍数。默认：放大倍数随训练自动调整，溢出的 optimizer step 跳过。",
    )
    """Fixed factor by which the loss is scaled in float16. Default: the factor adapts itself, and an optimiser step in
    which it was too large is passed over."""
    # No range for these two: beside --loss-scale they have no effect and are not judged. A rule knows when they matter.
    initial_loss_scale: float | None = option(
        None,
        ANY,
        stages="train_critic train",
        effect=_OPTIMIZER,
        zh="float16 下自动调整的放大倍数从何值开始；有 --loss-scale 时不起作用。"
        "默认：float16 为 32768，其他情况为 Megatron 的值。",
    )
    """First factor of the loss in float16 where it adapts itself; no effect beside --loss-scale. Default: 32768 in
    float16, else Megatron's."""
    min_loss_scale: float | None = option(
        None,
        ANY,
        stages="train_critic train",
        effect=_OPTIMIZER,
        zh="float16 下自动调整的放大倍数的下限；有 --loss-scale 时不起作用。默认：1。",
    )
    """Lowest factor of the loss in float16 where it adapts itself; no effect beside --loss-scale. Default: 1."""
    use_precision_aware_optimizer: bool | None = option(
        None,
        effect=_OPTIMIZER,
        zh="使用 TransformerEngine 的优化器，其状态可用较低精度存放。需要安装 TransformerEngine，"
        "并需要 --use-distributed-optimizer。默认：float16 时开启，其他情况关闭。",
    )
    """TransformerEngine's optimiser, whose state may have a lower precision. Needs TransformerEngine and
    --use-distributed-optimizer. Default: on in float16, else off."""
    store_param_remainders: bool | None = option(
        None,
        effect=_OPTIMIZER,
        zh="分布式优化器只存主权重中低精度权重没有的那些位，而不是整个 float32。默认：float16 时关闭，其他情况开启。",
    )
    """In the distributed optimiser, keep of each main weight only the bits that the low-precision weight lacks.
    Default: off in float16, else on."""
