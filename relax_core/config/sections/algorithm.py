"""Options of the algorithm: advantages, the policy loss, KL, the critic and off-policy corrections.

Guarantee: what the code does not compute yet is refused, never left out in silence. Importing this module needs
pydantic only.
"""

from typing import TYPE_CHECKING, Literal

from relax_core.algorithms.registry import estimator_names
from relax_core.config.declare import Section, option
from relax_core.config.ranges import COUNT, FRACTION, NOT_NEGATIVE, above

_BATCH = "relax_core/algorithms/batch.py"
_ADVANTAGES = "relax_core/algorithms/advantages.py"
_LOSS = "relax_core/training/loss.py"
_FUNCTIONS = "relax_core/training/hooks.py"
_STEP = "relax_core/training/step_loss.py"
_TRAINER = "relax_core/training/trainer.py"
_UPDATES = "relax_core/training/updates.py"
_CRITIC = "relax_core/training/critic.py"
_ROLES = "relax_core/training/roles.py"

if TYPE_CHECKING:
    EstimatorName = str
else:
    EstimatorName = Literal[estimator_names()]  # those that are registered when the options are declared


class AlgorithmSection(Section):
    """Algorithm"""

    title_zh = "算法配置"

    # Advantages
    advantage_estimator: EstimatorName = option(
        "grpo",
        stages="advantage train",
        effect=_BATCH,
        zh="advantage 的算法；与之相配的 reward 归一化和 policy loss 也由它决定。",
    )
    """Advantage estimator; it also decides how rewards are normalised and which policy loss is used."""
    normalize_advantages: bool = option(
        False, stages="advantage", effect=_BATCH, zh="用全部数据并行 rank 上所有参与训练的 token 把 advantage 标准化。"
    )
    """Standardise the advantages over all trained tokens of all data-parallel ranks."""
    disable_grpo_std_normalization: bool = option(
        False, stages="advantage", effect=_BATCH, zh="组内 reward 只减均值，不除以标准差（Dr.GRPO）。"
    )
    """Do not divide a group's rewards by their standard deviation (Dr.GRPO)."""
    disable_rewards_normalization: bool = option(
        False, stages="advantage", effect=_BATCH, zh="reward 不做任何组内归一化，原样使用。"
    )
    """Use rewards as they are."""
    disable_compute_advantages_and_returns: bool = option(
        False,
        stages="advantage train",
        effect=_BATCH,
        zh="不计算 advantage；用于不需要它的 loss（SFT 或自定义）。",
    )
    """Compute no advantages, for a loss that needs none (supervised, or your own)."""

    # Loss
    loss_type: Literal["policy_loss", "sft", "custom_loss", "sft_loss"] = option(
        "policy_loss",
        stages="train",
        effect=_STEP,
        honours=("policy_loss", "custom_loss"),
        zh="loss 的种类：policy_loss 为强化学习，sft 为监督微调，custom_loss 为 --custom-loss-function-path 的函数；"
        "sft_loss 是 sft 的旧名。",
    )
    """Kind of loss: reinforcement learning (policy_loss), supervised (sft), or the function of
    --custom-loss-function-path (custom_loss). sft_loss is an old name of sft."""
    custom_loss_function_path: str | None = option(
        None,
        stages="train",
        effect=_FUNCTIONS,
        zh="自定义 loss 函数 `loss(args, batch, logits, sum_of_sample_mean)`，返回 `(loss, metrics)`。"
        "需要 --loss-type custom_loss。默认：没有。",
    )
    """Your function `loss(args, batch, logits, sum_of_sample_mean)`, which returns `(loss, metrics)`. Needs --loss-type
    custom_loss. Default: none."""
    eps_clip: float = option(0.2, FRACTION, stages="train", effect=_LOSS, zh="概率比裁剪的下侧：下限为 1 减去它。")
    """Clip range of the probability ratio, lower side: the ratio counts as no less than 1 - this."""
    eps_clip_high: float | None = option(
        None, NOT_NEGATIVE, stages="train", effect=_LOSS, zh="概率比裁剪的上侧：上限为 1 加上它。默认：--eps-clip。"
    )
    """Clip range, upper side: the ratio counts as no more than 1 + this. Default: --eps-clip."""
    eps_clip_c: float | None = option(
        None,
        above(1),
        stages="train",
        effect=_LOSS,
        zh="dual clip：advantage 为负时，loss 不超过它与 advantage 绝对值之积；须大于 1。默认：不用。",
    )
    """Dual clip: bound of the loss where the advantage is negative; above 1. Default: none."""
    value_clip: float = option(
        0.2,
        NOT_NEGATIVE,
        stages="train_critic",
        effect=_CRITIC,
        zh="critic 的预测在一次训练中最多偏离旧值多少（PPO）。",
    )
    """How far the critic's value may move from its old one in the value loss (PPO)."""
    entropy_coef: float = option(
        0.0, NOT_NEGATIVE, stages="train", effect=_LOSS, zh="loss 中鼓励 entropy 的一项的权重。"
    )
    """Weight of the entropy bonus."""

    # PPO
    gamma: float = option(
        1.0, FRACTION, stages="advantage", effect=_ADVANTAGES, zh="逐 token 的折扣因子（PPO、REINFORCE++）。"
    )
    """Discount from token to token (PPO, REINFORCE++)."""
    lambd: float = option(1.0, FRACTION, stages="advantage", effect=_ADVANTAGES, zh="GAE 的 lambda（PPO）。")
    """Lambda of generalised advantage estimation (PPO)."""
    use_rollout_logprobs: bool = option(
        False,
        stages="advantage train",
        effect=_TRAINER,
        zh="旧策略的 log-prob 取引擎生成时给出的，不由训练端重新计算。不能与 --use-tis 同用。",
    )
    """Use the engine's log-probs as the old policy's. Excludes --use-tis."""

    # KL
    kl_coef: float = option(
        0.0,
        NOT_NEGATIVE,
        stages="advantage",
        effect=_ADVANTAGES,
        zh="reward 中 KL 惩罚的权重（REINFORCE++）；同步的 PPO 把它改为 0。它与 --kl-loss-coef 至多一个可以大于 0。",
    )
    """Weight of a KL penalty in the reward (REINFORCE++); synchronous PPO sets it to 0. Only one of it and
    --kl-loss-coef can be above 0."""
    use_kl_loss: bool = option(
        False, stages="train", effect=_TRAINER, zh="loss 中加上与参考模型的 KL；同步的 PPO 会关闭它。"
    )
    """Add the KL to the reference model to the loss; synchronous PPO turns it off."""
    kl_loss_coef: float = option(
        0.0, NOT_NEGATIVE, stages="train", effect=_LOSS, zh="loss 中 KL 一项的权重。需要 --use-kl-loss。"
    )
    """Weight of the KL in the loss. Needs --use-kl-loss."""
    kl_loss_type: Literal["k1", "k2", "k3", "low_var_kl"] = option(
        "k1", stages="advantage train", effect=_LOSS, zh="KL 的估计式；low_var_kl 即限制在 -10 与 10 之间的 k3。"
    )
    """Estimator of the KL; low_var_kl is k3 between -10 and 10."""
    use_unbiased_kl: bool = option(
        False, stages="train", effect=_LOSS, zh="KL 的估计再乘以新旧策略的概率比，使之无偏。需要 --use-kl-loss。"
    )
    """Weight the KL by the probability ratio. Needs --use-kl-loss."""
    ref_update_interval: int | None = option(
        None,
        COUNT,
        stages="forward train",
        effect=_TRAINER,
        zh="每隔多少个 rollout step 用 actor 的权重替换参考模型；参考权重随之存入 checkpoint。"
        "需要 --use-kl-loss 或 --kl-coef。默认：从不替换。",
    )
    """Rollout steps after which the reference model takes the actor's weights; its own are then part of checkpoints.
    Needs --use-kl-loss or --kl-coef. Default: never."""

    # SAPO
    sapo_tau_pos: float = option(1.0, above(0), stages="train", effect=_LOSS, zh="SAPO：advantage 为正时的温度。")
    """Temperature of SAPO where the advantage is positive."""
    sapo_tau_neg: float = option(1.05, above(0), stages="train", effect=_LOSS, zh="SAPO：advantage 不为正时的温度。")
    """Temperature of SAPO where the advantage is not positive."""

    # Critic
    num_critic_only_steps: int = option(
        0, NOT_NEGATIVE, stages="train", effect=_ROLES, zh="最初多少个 rollout step 只训练 critic，actor 不变。"
    )
    """Rollout steps at the start in which the critic alone is trained and the actor stays as it is (PPO)."""
    critic_train_only: bool = option(False, stages="train", effect=_ROLES, zh="自始至终只训练 critic。")
    """Train the critic alone, in every step (PPO)."""
    critic_lr: float | None = option(
        None, NOT_NEGATIVE, stages="train_critic", effect=_ROLES, zh="critic 的学习率。默认：--lr。"
    )
    """Learning rate of the critic (PPO). Default: --lr."""
    critic_lr_warmup_iters: int = option(
        0,
        NOT_NEGATIVE,
        stages="train_critic",
        effect=_ROLES,
        zh="critic 的学习率线性 warm-up 的 optimizer step 数。",
    )
    """Optimiser steps of the critic's linear warm-up (PPO); --lr-warmup-iters and --lr-warmup-fraction are the
    actor's."""

    # Off-policy correction
    use_tis: bool = option(
        False,
        stages="train",
        effect=_LOSS,
        zh="用截断的重要性权重（训练端与引擎的概率比）修正 loss。不能与 --use-rollout-logprobs 同用。",
    )
    """Weight the loss by the truncated ratio of the trainer's to the engine's probabilities (truncated importance
    sampling). Excludes --use-rollout-logprobs."""
    tis_clip: float = option(
        2.0, above(0), stages="train", effect=_LOSS, zh="--use-tis 所用权重的上限。需要 --use-tis。"
    )
    """Upper bound of the weight of --use-tis. Needs --use-tis."""
    tis_clip_low: float = option(
        0.0, NOT_NEGATIVE, stages="train", effect=_LOSS, zh="--use-tis 所用权重的下限。需要 --use-tis。"
    )
    """Lower bound of the weight of --use-tis. Needs --use-tis."""
    custom_tis_function_path: str | None = option(
        None,
        stages="train",
        effect=_FUNCTIONS,
        zh="代替内置 TIS 的函数。需要 --use-tis 或 --get-mismatch-metrics。默认：使用内置的。",
    )
    """Your function in place of the built-in correction. Needs --use-tis or --get-mismatch-metrics. Default: the
    built-in one."""
    custom_pg_loss_reducer_function_path: str | None = option(
        None,
        stages="train",
        effect=_FUNCTIONS,
        zh="自定义函数，决定逐 token 的 policy loss 怎样归并成一个数；不影响其他指标。默认：按样本或 token 求平均。",
    )
    """Your function that makes one number of the policy loss per token; it touches no other metric. Default: the mean
    over samples, or over tokens."""

    # Routing replay and OPSM
    use_routing_replay: bool = option(False, unwired="refuse", zh="MoE：训练时沿用计算旧 log-prob 时选出的专家。")
    """Mixtures: train with the experts that were chosen when the old log-probs were computed."""
    use_rollout_routing_replay: bool = option(
        False,
        unwired="refuse",
        zh="MoE：沿用引擎生成时选出的专家；随之开启 --use-routing-replay。不能与 --partial-rollout 同用。",
    )
    """Mixtures: use the experts that the engine chose; implies --use-routing-replay. Excludes --partial-rollout."""
    use_opsm: bool = option(
        False,
        stages="train",
        effect=_LOSS,
        zh="advantage 为负、且策略已偏离旧策略过远的序列不参与训练（off-policy sequence masking）。",
    )
    """Leave out sequences of negative advantage from which the policy has moved too far (off-policy sequence
    masking)."""
    opsm_delta: float = option(
        1e-4,
        NOT_NEGATIVE,
        stages="train",
        effect=_LOSS,
        zh="新旧策略平均 log-prob 之差超过多少算偏离过远。需要 --use-opsm。",
    )
    """Mean difference of old and new log-probs that is too far. Needs --use-opsm."""

    # Others
    reset_optimizer_states: bool = option(
        False,
        stages="train_critic train",
        effect=_UPDATES,
        zh="每个 rollout step 训练之前清空优化器的动量与步数；学习率不受影响。",
    )
    """Clear the optimiser's moments and step counts before each rollout step's training; the learning rate goes on."""
    use_rollout_entropy: bool = option(
        False, unwired="warn", zh="计算 log-prob 时把 entropy 也存成一列，供自定义的 loss mask 使用。"
    )
    """Store the entropy beside the log-probs, for a loss mask of your own."""
    get_mismatch_metrics: bool = option(
        False,
        stages="train",
        effect=_LOSS,
        zh="不开 --use-tis 也运行自定义 TIS 函数，以记录训练端与引擎的差异；它返回的 loss 会被采用。"
        "需要 --custom-tis-function-path。",
    )
    """Run your correction even without --use-tis, for metrics of the difference between trainer and engine; the loss
    that it returns is used. Needs --custom-tis-function-path."""
