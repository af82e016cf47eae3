"""REINFORCE++, with a KL in its rewards or with a group's mean as baseline and the KL in the loss.

Guarantee: advantages are standardised over all tokens of the batch; neither form works without.
"""

from relax_core.algorithms.registry import Demand, EstimatorSpec, register

_SOURCE = 'Hu et al., "REINFORCE++" (2025)'

_BOTH = (
    Demand(
        "normalize_advantages",
        "is required with --advantage-estimator {advantage_estimator}.",
        allowed=(True,),
    ),
    Demand(
        "calculate_per_token_loss",
        "cannot be used with --advantage-estimator {advantage_estimator}: its loss is a mean over responses.",
        allowed=(False,),
        fix="Leave it out.",
    ),
)

register(
    EstimatorSpec(
        name="reinforce_plus_plus",
        summary="Discounted sum of rewards with a KL penalty, standardised over the batch; no critic, no group.",
        normalizer="none",
        advantages="relax_core.algorithms.advantages:discounted_returns",
        policy_loss="relax_core.algorithms.losses:policy_loss",
        normalizers=("none",),
        advantage_options=("gamma", "kl_coef", "kl_loss_type"),
        whitening="token_global",
        kl_role="reward",
        sync_only=True,
        context_parallel=False,
        demands=(
            *_BOTH,
            Demand(
                "kl_coef",
                "must be above 0 with --advantage-estimator reinforce_plus_plus: the KL is part of its rewards.",
                above=0,
            ),
            Demand(
                "kl_loss_type",
                "must be k1 with --advantage-estimator reinforce_plus_plus.",
                allowed=("k1",),
            ),
            Demand(
                "use_kl_loss",
                "cannot be used with --advantage-estimator reinforce_plus_plus: the KL is part of its rewards.",
                allowed=(False,),
                fix="Leave it out, and set --kl-coef.",
            ),
        ),
        source=_SOURCE,
    )
)

register(
    EstimatorSpec(
        name="reinforce_plus_plus_baseline",
        summary="Reward minus the group's mean, standardised over the batch; the KL is in the loss; no critic.",
        normalizer="group_mean",
        advantages="relax_core.algorithms.advantages:spread_over_trained_tokens",
        policy_loss="relax_core.algorithms.losses:policy_loss",
        min_group_size=2,
        whitening="token_global",
        sync_only=True,
        context_parallel=False,
        demands=(
            *_BOTH,
            Demand(
                "use_kl_loss",
                "is required with --advantage-estimator reinforce_plus_plus_baseline.",
                allowed=(True,),
                fix="Set --kl-loss-type k2 and --kl-loss-coef too.",
            ),
            Demand(
                "kl_loss_type",
                "must be k2 with --advantage-estimator reinforce_plus_plus_baseline.",
                allowed=("k2",),
                when="use_kl_loss",
            ),
            Demand(
                "kl_loss_coef",
                "must be above 0 with --advantage-estimator reinforce_plus_plus_baseline.",
                above=0,
                when="use_kl_loss",
                told_of_given=True,
            ),
            Demand(
                "use_unbiased_kl",
                "cannot be used with --advantage-estimator reinforce_plus_plus_baseline: its k2 is weighted by nothing"
                " else.",
                allowed=(False,),
                fix="Leave it out.",
            ),
            Demand(
                "custom_reward_post_process_path",
                "replaces the baseline of --advantage-estimator reinforce_plus_plus_baseline.",
                allowed=(None,),
                fix="Leave it out, or take another estimator.",
            ),
        ),
        source=_SOURCE,
    )
)
