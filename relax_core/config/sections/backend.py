"""Options of the training backend: what trains, in which number format, and in which mode.

Guarantee: a mode or number format that is not honoured is refused, because other weights would come out.
"""

from typing import Literal

from relax_core.config.declare import Section, option


class BackendSection(Section):
    """Training backend"""

    title_zh = "训练后端与模式"

    train_backend: Literal["megatron"] = option(
        "megatron",
        stages="train_critic train",
        effect="relax_core/training/trainer.py",
        honours=("megatron",),
        zh="用哪个框架训练。",
    )
    """Training backend."""

    qkv_format: Literal["thd", "bshd"] = option(
        "thd",
        effect="relax_core/training/model.py",
        honours=("thd",),
        zh="micro-batch 的排布：thd 首尾相接、不填充；bshd 填充到等长，不能与 --use-dynamic-batch-size 同用。",
    )
    """Layout of a micro-batch: thd packs sequences without padding; bshd pads them to one length and excludes
    --use-dynamic-batch-size."""

    megatron_to_hf_mode: Literal["raw", "bridge"] = option(
        "raw",
        unwired="warn",
        zh="Megatron 与 Hugging Face 权重互相转换的方式。两个取值下 Relax 都用自己的映射直接读写 Hugging Face 权重。",
    )
    """How weights are converted between Megatron and Hugging Face. Relax's own mapping, which reads and writes Hugging
    Face weights directly, is used for both values."""

    bf16: bool = option(
        False,
        stages="forward train_critic train",
        effect="relax_core/training/model.py",
        zh="以 bfloat16 训练，主权重保留 float32（Megatron 的同名参数）。默认：float32。",
    )
    """Train in bfloat16 with float32 main weights (Megatron's flag). Default: float32."""

    fp16: bool = option(
        False,
        stages="forward train_critic train",
        effect="relax_core/training/model.py",
        zh="以 float16 训练并缩放 loss，主权重保留 float32（Megatron 的同名参数）。与 --bf16 互斥。",
    )
    """Train in float16 with a scaled loss and float32 main weights (Megatron's flag). Excludes --bf16."""

    true_on_policy_mode: bool = option(
        False,
        stages="advantage train",
        effect="relax_core/training/trainer.py",
        zh="以当前策略自身（不求梯度）的 log-prob 作为旧策略的 log-prob，因此概率比恒为 1，也不再单独计算旧 log-prob。"
        "不能与 --use-rollout-logprobs 同用。",
    )
    """Take the policy's own log-probs, without gradient, as the old policy's: the probability ratio is 1 and the extra
    pass is saved. Excludes --use-rollout-logprobs."""

    fully_async: bool = option(
        False,
        stages="generate",
        effect="relax_core/run/session.py",
        zh="生成与训练在各自的设备上同时进行，样本一产生就交给训练端。不能与 --colocate 同用。",
    )
    """Generate and train at the same time on separate devices, and hand on samples as they are produced. Excludes
    --colocate."""
