"""The only place that imports Megatron-core.

Guarantee: importing this module gives a Megatron that works on the present device: on a machine without CUDA the calls
that need it are replaced first, and what breaks without TransformerEngine is mended on any. It therefore changes torch
for the whole process: import it in trainer processes only.
"""

import warnings

from relax_core.training.megatron_cpu import fix_several_buckets, fix_without_transformer_engine, install

install()

with warnings.catch_warnings():  # a dozen notices that TransformerEngine and Apex are not there
    warnings.simplefilter("ignore")
    from megatron.core import dist_checkpointing, mpu, tensor_parallel
    from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor, ShardedTensorFactory
    from megatron.core.dist_checkpointing.strategies import filesystem_async
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
    from megatron.core.packed_seq_params import PackedSeqParams
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig

fix_without_transformer_engine()
fix_several_buckets()

__all__ = [
    "DistributedDataParallel",
    "DistributedDataParallelConfig",
    "GPTModel",
    "MegatronModule",
    "ModuleSpec",
    "OptimizerConfig",
    "OptimizerParamScheduler",
    "PackedSeqParams",
    "ShardedObject",
    "ShardedTensor",
    "ShardedTensorFactory",
    "TorchDistSaveShardedStrategy",
    "TransformerBlockSubmodules",
    "TransformerConfig",
    "clip_grad_by_total_norm_fp32",
    "dist_checkpointing",
    "filesystem_async",
    "finalize_model_grads",
    "get_forward_backward_func",
    "get_gpt_layer_local_spec",
    "get_megatron_optimizer",
    "mpu",
    "tensor_parallel",
]
