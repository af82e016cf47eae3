"""Which passes of models the advantages need, and where each comes from.

Guarantee: a pure function of the options: without an estimator, a KL in the rewards or a teacher that asks for one, no
pass is made and no stage is there.
"""

from dataclasses import dataclass

from relax_core.algorithms.registry import get_estimator
from relax_core.config.derived import takes_engine_log_probs
from relax_core.config.sections import RelaxConfig


@dataclass(frozen=True)
class ForwardNeeds:
    """Columns of schema ``FORWARD``, by who computes them.

    Args:
        policy: from the trainer of the policy, with its present or with copied weights.
        critic: from the critic.
        service: from a server.
    """

    policy: tuple[str, ...] = ()
    critic: tuple[str, ...] = ()
    service: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.policy or self.critic or self.service)

    @property
    def columns(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.policy, *self.critic, *self.service)


def kl_shapes_rewards(config: RelaxConfig) -> bool:
    """Whether a KL to the reference is part of the rewards."""
    spec = get_estimator(config.algorithm.advantage_estimator)
    return spec.kl_role == "reward" and config.algorithm.kl_coef != 0


def compares_policies(config: RelaxConfig) -> bool:
    """Whether the advantages compare the policy with another model: the reference, or a teacher."""
    return kl_shapes_rewards(config) or config.opd.use_opd


def forward_needs(config: RelaxConfig) -> ForwardNeeds:
    """What the advantage stage needs beside rollout and rewards.

    ``old_log_probs`` are left out where the engine's stand for them (--use-rollout-logprobs).
    """
    spec = get_estimator(config.algorithm.advantage_estimator)
    policy: list[str] = []
    if compares_policies(config) and not takes_engine_log_probs(config):
        policy.append("old_log_probs")
    if kl_shapes_rewards(config):
        policy.append("ref_log_probs")
    service: list[str] = []
    if config.opd.use_opd:
        (policy if config.opd.opd_type == "megatron" else service).append("teacher_log_probs")
    critic = ("values",) if spec.needs_critic else ()
    return ForwardNeeds(tuple(policy), critic, tuple(service))
