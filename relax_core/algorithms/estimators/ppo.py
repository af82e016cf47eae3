"""PPO: advantages of each token from a critic.

Guarantee: none beyond its specification.
"""

from relax_core.algorithms.registry import Demand, EstimatorSpec, register

register(
    EstimatorSpec(
        name="ppo",
        summary="Generalised advantage estimation with a critic, which is trained beside the policy.",
        normalizer="none",
        advantages="relax_core.algorithms.advantages:generalized_advantages",
        policy_loss="relax_core.algorithms.losses:policy_loss",
        needs_critic=True,
        normalizers=("none",),
        advantage_options=("gamma", "lambd", "kl_coef", "kl_loss_type"),
        kl_role="reward",
        sync_only=True,
        roles=("critic", "advantages"),
        demands=(
            Demand(
                "use_rollout_logprobs",
                "is required with --advantage-estimator ppo under --colocate.",
                allowed=(True,),
                when="colocate",
            ),
            Demand(
                "max_staleness",
                "must be 0 with --advantage-estimator ppo under --colocate: actor and critic learn from the same step.",
                allowed=(0,),
                when="colocate",
            ),
        ),
        source='Schulman et al., "Proximal Policy Optimization Algorithms" (2017)',
    )
)
