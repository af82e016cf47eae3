"""Rules about options of Megatron-core and SGLang that Relax decides itself.

Guarantee: such an option is never passed on beside Relax's own value: given as Relax has it, it changes nothing; given
otherwise, it is refused with the option of Relax that decides it.
"""

from collections.abc import Iterator
from typing import Any

from relax_core.config.options import OPTIONS
from relax_core.config.passthrough import pass_throughs
from relax_core.config.rules.base import Rule
from relax_core.config.values import Values

OWNED = tuple(name for name, passed in pass_throughs().items() if passed.role == "owned" and name not in OPTIONS)
"""The options that Relax decides."""

SAME_AS = {"sglang_model_path": "hf_checkpoint", "sglang_tp_size": "rollout_num_gpus_per_engine"}
"""An option that Relax decides -> the option of Relax with the same meaning."""

_RESOURCE = "--resource says how many devices engines have, and Ray where they are."
_PORTS = "Relax chooses addresses that are free."
_STAGES = "All stages of --pipeline-model-parallel-size have the same number of layers."
_WEIGHTS = "Weights come from --hf-checkpoint, else --load."

INSTEAD = {
    "params_dtype": "Use --bf16.",
    "pipeline_dtype": "Use --bf16.",
    "virtual_pipeline_model_parallel_size": _STAGES,
    "num_layers_in_first_pipeline_stage": _STAGES,
    "num_layers_in_last_pipeline_stage": _STAGES,
    "pipeline_model_parallel_layout": _STAGES,
    "hierarchical_context_parallel_sizes": "Use --context-parallel-size.",
    "hybrid_context_parallel": "Use --context-parallel-size.",
    "max_seqlen_per_dp_cp_rank": "Use --max-tokens-per-gpu.",
    "perform_initialization": _WEIGHTS,
    "use_cpu_initialization": _WEIGHTS,
    "init_method_std": _WEIGHTS,
    "embedding_init_method_std": _WEIGHTS,
    "decoupled_lr": "Use --lr.",
    "decoupled_min_lr": "Use --min-lr.",
    "use_megatron_fsdp": "Use --use-distributed-optimizer.",
    "use_custom_fsdp": "Use --use-distributed-optimizer.",
    "data_parallel_sharding_strategy": "Use --use-distributed-optimizer.",
    "num_distributed_optimizer_instances": "Use --use-distributed-optimizer.",
    "sglang_model_path": "Use --hf-checkpoint.",
    "sglang_tp_size": "Use --rollout-num-gpus-per-engine.",
    "sglang_random_seed": "Use --rollout-seed.",
    "sglang_nnodes": _RESOURCE,
    "sglang_node_rank": _RESOURCE,
    "sglang_pp_size": "--rollout-num-gpus-per-engine alone splits an engine.",
    "sglang_base_gpu_id": _RESOURCE,
    "sglang_device": _RESOURCE,
    "sglang_host": _PORTS,
    "sglang_port": _PORTS,
    "sglang_dist_init_addr": _PORTS,
    "sglang_weight_version": "It counts the steps that are trained.",
}
"""An option that Relax decides -> what to do instead."""


def _others(v: Values) -> Iterator[dict[str, Any]]:
    for name in OWNED:
        value, agrees = v[name], pass_throughs()[name].agrees
        if value is None or value in agrees or (name in SAME_AS and value == v[SAME_AS[name]]):
            continue
        right = next((one for one in agrees if one is not None), None)
        to = "" if right in (None, "") else f", to {str(right).lower() if isinstance(right, bool) else right}"
        place = {"option": name, "to": to, "instead": INSTEAD.get(name, "Leave it out.")}
        is_secret = name.endswith(("api_key", "password"))
        yield place | {"value": "***"} if is_secret else place


RULES: tuple[Rule, ...] = (
    Rule(
        name="relax-decides",
        option="sglang_tp_size",
        reads=(*OWNED, *SAME_AS.values()),
        each=_others,
        message="is set by Relax itself{to}.",
        fix="{instead}",
    ),
)
