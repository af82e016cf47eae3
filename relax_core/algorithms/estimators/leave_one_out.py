"""RLOO: REINFORCE with the mean of the group's other rewards as baseline.

Guarantee: its loss has no ratio to older weights, so that samples of older weights are refused.
"""

from relax_core.algorithms.registry import Demand, EstimatorSpec, register

register(
    EstimatorSpec(
        name="rloo",
        summary="Reward minus the mean of the group's other rewards; plain REINFORCE without a ratio; no critic.",
        normalizer="group_leave_one_out",
        advantages="relax_core.algorithms.advantages:spread_over_tokens",
        policy_loss="relax_core.algorithms.losses:reinforce_loss",
        min_group_size=2,
        loss_options=(),
        sync_only=True,
        demands=(
            Demand(
                "normalize_advantages",
                "divides by a spread that --advantage-estimator rloo keeps on purpose.",
                allowed=(False,),
                fix="Leave it out.",
            ),
            Demand(
                "calculate_per_token_loss",
                "is required with --advantage-estimator rloo: a mean over each response would weight tokens by its"
                " length.",
                allowed=(True,),
            ),
            Demand(
                "max_staleness",
                "must be 0 with --advantage-estimator rloo, whose loss has no ratio to older weights.",
                allowed=(0,),
            ),
            Demand(
                "num_steps_per_rollout",
                "must be 1 with --advantage-estimator rloo: after one update the samples come from older weights, and"
                " its loss has no ratio to them.",
                allowed=(None, 1),
                fix="Leave it out, and --global-batch-size too.",
            ),
            Demand(
                "partial_rollout",
                "cannot be used with --advantage-estimator rloo: a continued response begins with tokens of older"
                " weights.",
                allowed=(False,),
                fix="Leave it out.",
            ),
        ),
        source='Ahmadian et al., "Back to Basics: Revisiting REINFORCE Style Optimization" (2024)',
    )
)
