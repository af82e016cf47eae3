"""The two models that a run may train, and what each takes of the options.

Guarantee: ``role_config`` is the only place that says in what a critic's training differs from the actor's; whether the
actor rests follows from the options and the version alone, so that a repeated update does the same. Needs neither torch
nor Megatron.
"""

from typing import Any, Literal

from relax_core.config.derived import needs_critic
from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig
from relax_core.config.stages import Stage

Role = Literal["actor", "critic"]

STAGE_OF: dict[Role, Stage] = {"actor": "train", "critic": "train_critic"}
"""The stage whose options decide what a role's training gives."""


def role_config(config: RelaxConfig, role: Role) -> RelaxConfig:
    """The options as a role's trainer takes them.

    A critic has a learning rate and a warm-up of its own, no reference, and nothing of the policy's loss; options that
    freeze parameters name the policy's. Everything else is the actor's.
    """
    if role == "actor":
        return config
    algorithm = config.algorithm
    changed: dict[str, Any] = {
        "lr": config.optimizer.lr if algorithm.critic_lr is None else algorithm.critic_lr,
        "lr_warmup_iters": algorithm.critic_lr_warmup_iters,
        "lr_warmup_fraction": None,
        "loss_type": "policy_loss",
        "entropy_coef": 0.0,
        "use_kl_loss": False,
        "kl_coef": 0.0,
        "ref_update_interval": None,
        "use_opd": False,
        "custom_loss_function_path": None,
        "custom_tis_function_path": None,
        "custom_pg_loss_reducer_function_path": None,
        "only_train_params_name_list": None,
        "freeze_params_name_list": None,
    }
    return with_options(config, changed)


def actor_rests(config: RelaxConfig, base: int) -> bool:
    """Whether the update of the actor from version ``base`` leaves its weights as they are: the critic alone learns.

    Args:
        config: the run's.
    """
    options = config.algorithm
    return needs_critic(config) and (options.critic_train_only or base < options.num_critic_only_steps)
