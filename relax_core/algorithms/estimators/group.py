"""Estimators whose advantage is a reward against the mean and the spread of its group: GRPO, GSPO, SAPO, CISPO.

Guarantee: they differ in their policy loss alone.
"""

from relax_core.algorithms.registry import EstimatorSpec, register

register(
    EstimatorSpec(
        name="grpo",
        summary="Reward relative to the group's mean and standard deviation, the same for every token; no critic.",
        normalizer="group_mean_std",
        advantages="relax_core.algorithms.advantages:spread_over_tokens",
        policy_loss="relax_core.algorithms.losses:policy_loss",
        normalizers=("none",),
        source='Shao et al., "DeepSeekMath" (2024)',
    )
)

register(
    EstimatorSpec(
        name="gspo",
        summary="GRPO with one probability ratio for each response, the geometric mean of its tokens'.",
        normalizer="group_mean_std",
        advantages="relax_core.algorithms.advantages:spread_over_tokens",
        policy_loss="relax_core.algorithms.losses:gspo_loss",
        normalizers=("none",),
        sequence_loss=True,
        source='Zheng et al., "Group Sequence Policy Optimization" (2025)',
    )
)

register(
    EstimatorSpec(
        name="sapo",
        summary="GRPO with a smooth gate in place of the clip, narrower where the advantage is negative.",
        normalizer="group_mean_std",
        advantages="relax_core.algorithms.advantages:spread_over_tokens",
        policy_loss="relax_core.algorithms.losses:sapo_loss",
        normalizers=("none",),
        loss_options=("sapo_tau_pos", "sapo_tau_neg"),
        source='Gao et al., "Soft Adaptive Policy Optimization" (2025)',
    )
)

register(
    EstimatorSpec(
        name="cispo",
        summary="GRPO whose clip bounds the weight of a token's gradient and never removes it.",
        normalizer="group_mean_std",
        advantages="relax_core.algorithms.advantages:spread_over_tokens",
        policy_loss="relax_core.algorithms.losses:cispo_loss",
        normalizers=("none",),
        loss_options=("eps_clip", "eps_clip_high"),
        source='MiniMax, "MiniMax-M1" (2025)',
    )
)
