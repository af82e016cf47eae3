"""Sizes that follow from the configuration.

Guarantee: nothing else computes a world size, a number of engines or of replicas; all values are in devices or counts.
They hold for a configuration that ``check`` accepts.
"""

from relax_core.algorithms.registry import get_estimator
from relax_core.config.sections import RelaxConfig

ACTOR_FOLDER, CRITIC_FOLDER = "checkpoints", "critic-checkpoints"
"""Where checkpoints are in a run directory unless --save and --critic-save say otherwise."""

MODEL_PARALLEL = ("tensor_model_parallel_size", "pipeline_model_parallel_size")
"""Options whose product is the number of ranks that hold one copy of the model."""


def role_devices(config: RelaxConfig, role: str) -> int:
    """Devices of a role in ``--resource``; 0 when the role is not there."""
    replicas, devices = config.cluster.resource.get(role, (0, 0))
    return replicas * devices


def trainer_world_size(config: RelaxConfig, role: str = "actor") -> int:
    """Ranks of the trainer of a role (actor, critic): one per device."""
    return role_devices(config, role)


def model_parallel_size(config: RelaxConfig) -> int:
    """Ranks that hold one copy of the model: tensor-parallel times pipeline-parallel size."""
    return config.parallel.tensor_model_parallel_size * config.parallel.pipeline_model_parallel_size


def data_parallel_size(config: RelaxConfig, role: str = "actor") -> int:
    """Copies of the model in the trainer of a role."""
    return trainer_world_size(config, role) // model_parallel_size(config)


def needs_reference(config: RelaxConfig) -> bool:
    """Whether a KL to a reference policy is in the loss or in the rewards."""
    return config.algorithm.use_kl_loss or config.algorithm.kl_coef > 0


def needs_teacher(config: RelaxConfig) -> bool:
    """Whether the trainer holds a teacher's weights."""
    return config.opd.use_opd and config.opd.opd_type == "megatron"


def asks_teacher(config: RelaxConfig) -> bool:
    """Whether a server at --rm-url has the teacher."""
    return config.opd.use_opd and config.opd.opd_type == "sglang"


def needs_critic(config: RelaxConfig) -> bool:
    """Whether the advantages come from a critic, which is trained beside the policy."""
    return get_estimator(config.algorithm.advantage_estimator).needs_critic


def takes_engine_log_probs(config: RelaxConfig) -> bool:
    """Whether the old policy's log-probs are the engine's: in true on-policy mode they are the policy's own."""
    return config.algorithm.use_rollout_logprobs and not config.backend.true_on_policy_mode


def num_engines(config: RelaxConfig) -> int:
    """SGLang engines: devices of the role rollout over devices of an engine."""
    return role_devices(config, "rollout") // config.cluster.rollout_num_gpus_per_engine


def samples_per_step(config: RelaxConfig) -> int:
    """Samples of a rollout step: prompts times responses a prompt; 0 before ``--rollout-batch-size`` is set."""
    return (config.rollout.rollout_batch_size or 0) * config.rollout.n_samples_per_prompt


def epoch_steps(config: RelaxConfig, rows: int) -> int:
    """Rollout steps that count as one pass over ``rows`` prompts: whole ones only."""
    return rows // max(config.rollout.rollout_batch_size or 1, 1)


def longest_sample(config: RelaxConfig) -> int | None:
    """Most tokens that a sample (prompt and response) can have, as far as the options bound it."""
    rollout = config.rollout
    bounds = [rollout.rollout_max_context_len]
    if rollout.rollout_max_prompt_len is not None and rollout.rollout_max_response_len is not None:
        bounds.append(rollout.rollout_max_prompt_len + rollout.rollout_max_response_len)
    return min((bound for bound in bounds if bound is not None), default=None)


def selects(config: RelaxConfig) -> bool:
    """Whether steps begin more groups than they train on; else each takes the next prompts, and all of them."""
    options = config.rollout
    more = (options.over_sampling_batch_size or 0) > (options.rollout_batch_size or 0)
    return more or options.dynamic_sampling_filter_path is not None
