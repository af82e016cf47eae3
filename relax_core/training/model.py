"""The policy: Megatron's GPTModel over packed sequences, ending in hidden states.

Guarantee: the last pipeline stage returns the final hidden states, not logits, so that a loss makes logits only for the
rows that it needs (:func:`hidden_rows` with :func:`lm_head_weight`); gradients are those of the whole model under any
tensor, pipeline and sequence parallelism. In float32 the hidden states are those of transformers' model of the family.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from relax_core.config.sections import RelaxConfig
from relax_core.training.activation import SwiGLU
from relax_core.training.attention import PackedAttention, Packing
from relax_core.training.megatron import (
    GPTModel,
    PackedSeqParams,
    TransformerBlockSubmodules,
    TransformerConfig,
    get_gpt_layer_local_spec,
    mpu,
    tensor_parallel,
)
from relax_core.training.megatron_config import megatron_object
from relax_core.training.norm import RMSNorm
from relax_core.training.rope import inverse_frequencies
from relax_core.training.shape import ModelShape

__all__ = [
    "ModelShape",
    "PolicyModel",
    "build_policy",
    "hidden_rows",
    "lm_head_weight",
    "number_format",
    "transformer_config",
]


def number_format(config: RelaxConfig) -> torch.dtype:
    """The type of the weights that are computed with."""
    if config.backend.fp16:
        return torch.float16
    return torch.bfloat16 if config.backend.bf16 else torch.float32


def transformer_config(shape: ModelShape, config: RelaxConfig) -> TransformerConfig:
    """Megatron's configuration of the model and of its parallelism.

    The loss is never scaled by Megatron (``calculate_per_token_loss``): the trainer normalises it itself.

    Raises:
        UserError: parallel sizes that do not divide the model, or options that Megatron refuses.
    """
    parallel = config.parallel
    tensor, pipeline = parallel.tensor_model_parallel_size, parallel.pipeline_model_parallel_size
    shape.check_parallel(tensor, pipeline)
    dtype = number_format(config)
    own = {
        "num_layers": shape.layers,
        "hidden_size": shape.hidden,
        "ffn_hidden_size": shape.ffn,
        "num_attention_heads": shape.heads,
        "num_query_groups": shape.kv_heads,
        "kv_channels": shape.head_dim,
        "normalization": "RMSNorm",
        "layernorm_epsilon": shape.norm_eps,
        "qk_layernorm": shape.qk_norm,
        "add_bias_linear": False,
        "add_qkv_bias": shape.qkv_bias,
        "gated_linear_unit": True,
        "activation_func": torch.nn.functional.silu,
        "use_te_activation_func": True,  # the activation is a module, and the whole of it: see PolicyModel
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "tensor_model_parallel_size": tensor,
        "pipeline_model_parallel_size": pipeline,
        "sequence_parallel": parallel.sequence_parallel and tensor > 1,
        "variable_seq_lengths": pipeline > 1,  # micro-batches differ in tokens, so stages exchange sizes first
        "moe_token_dispatcher_type": "alltoall",  # asked for with variable lengths, even without experts
        "recompute_granularity": parallel.recompute_granularity,
        "recompute_method": parallel.recompute_method,
        "recompute_num_layers": parallel.recompute_num_layers,
        "calculate_per_token_loss": True,
        "params_dtype": dtype,
        "pipeline_dtype": dtype,
        "bf16": config.backend.bf16,
        "fp16": config.backend.fp16,
        "perform_initialization": False,  # weights always come from a folder or a checkpoint
        "use_cpu_initialization": False,
        # The fused kernels need Apex or TransformerEngine.
        "gradient_accumulation_fusion": False,
        "masked_softmax_fusion": False,
        "apply_rope_fusion": False,
        "persist_layer_norm": False,
        # These two are compiled, which a GPU gains from and a CPU does not.
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
    }
    return megatron_object(TransformerConfig, "transformer", config, own)


@dataclass
class PackedParams(PackedSeqParams):  # type: ignore[misc]
    """What Megatron hands from the model to the attention of every layer, with our packing in it."""

    packing: Packing | None = None


class PolicyModel(GPTModel):  # type: ignore[misc]
    """One pipeline stage of the policy. Call it with flat tokens and the lengths of their sequences."""

    def __init__(self, shape: ModelShape, config: TransformerConfig, pre_process: bool, post_process: bool) -> None:
        super().__init__(
            config=config,
            transformer_layer_spec=_layer_spec(shape, config),
            vocab_size=shape.vocab,
            max_sequence_length=shape.max_positions,
            pre_process=pre_process,
            post_process=post_process,
            share_embeddings_and_output_weights=shape.tie,
            position_embedding_type="none",  # the attention rotates: see Packing
        )
        for layer in self.decoder.layers:  # here, because the specification names it in ways that differ by version
            layer.mlp.activation_func = SwiGLU()
        self.shape = shape
        self.frequencies = inverse_frequencies(shape)

    def forward(self, tokens: Tensor, lengths: Sequence[int]) -> Tensor:
        """Run this stage.

        Args:
            tokens: int64 [T], the sequences one behind the other; read by the first stage only, but every stage needs
                its number of tokens.
            lengths: tokens of each sequence; their sum is T.

        Returns:
            Hidden states [T', 1, hidden]: the normed final ones on the last stage, else what the next stage takes.
            Under sequence parallelism T is rounded up to a multiple of the tensor-parallel size and every rank has
            its share; :func:`hidden_rows` undoes both.
        """
        if sum(lengths) != tokens.numel():
            raise ValueError(f"{tokens.numel()} tokens, but the lengths {list(lengths)} add up to {sum(lengths)}")
        padding = -tokens.numel() % self.config.tensor_model_parallel_size if self.config.sequence_parallel else 0
        if padding:  # a sequence of its own, that no other attends to
            tokens, lengths = torch.nn.functional.pad(tokens, (0, padding)), [*lengths, padding]
        if self.frequencies.device != tokens.device:
            self.frequencies = self.frequencies.to(tokens.device)
        # what a GPU rotates by stays in float32, as in the engines; transformers rounds it, and so does a CPU
        table_type = torch.float32 if tokens.is_cuda else self.config.params_dtype
        packing = Packing.of(lengths, self.frequencies, table_type)
        packed = PackedParams(
            qkv_format="thd",
            cu_seqlens_q=packing.cu_seqlens,
            cu_seqlens_kv=packing.cu_seqlens,
            max_seqlen_q=packing.longest,
            max_seqlen_kv=packing.longest,
            packing=packing,
        )
        return super().forward(tokens[None], None, None, packed_seq_params=packed)

    def _postprocess(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Leave the logits to the loss. (Megatron passes more arguments in newer versions.)"""
        return hidden_states


def build_policy(shape: ModelShape, config: TransformerConfig, pre_process: bool, post_process: bool) -> PolicyModel:
    """This rank's pipeline stage, on the current device, in ``config.params_dtype``, with weights yet to be loaded.

    Args:
        pre_process: the stage holds the embedding; post_process: it holds the final norm and the output layer.
    """
    policy = PolicyModel(shape, config, pre_process, post_process).to(config.params_dtype)
    mark_split_weights(policy)
    return policy


def mark_split_weights(policy: PolicyModel) -> None:
    """Say which weights are this rank's part of a larger one.

    Megatron does so only where it initialises weights itself, and counts what is not marked once in the gradient norm.
    """
    for module in policy.modules():
        if isinstance(module, tensor_parallel.ColumnParallelLinear | tensor_parallel.VocabParallelEmbedding):
            cut = 0
        elif isinstance(module, tensor_parallel.RowParallelLinear):
            cut = 1
        else:
            continue
        if module.weight is not None and not hasattr(module.weight, "tensor_model_parallel"):
            tensor_parallel.set_tensor_model_parallel_attributes(module.weight, True, cut, 1)


def unwrap(model: torch.nn.Module) -> PolicyModel:
    """The policy inside Megatron's wrappers."""
    inner: Any = model
    while not isinstance(inner, PolicyModel):
        inner = inner.module
    return inner


def lm_head_weight(model: torch.nn.Module) -> Tensor:
    """The output weight on the last stage: this rank's rows [vocab / tensor-parallel size, hidden] of the vocabulary.

    With tied embeddings it is the embedding's, or on a last stage without the embedding the copy that Megatron keeps
    equal to it; gradients add up either way.
    """
    policy = unwrap(model)
    return policy.shared_embedding_or_output_weight() if policy.shape.tie else policy.output_layer.weight


def hidden_rows(model: torch.nn.Module, hidden: Tensor, rows: Tensor) -> Tensor:
    """Rows of the last stage's result, ready to be multiplied with this rank's part of the vocabulary.

    Args:
        hidden: what the last stage returned.
        rows: int64 [R], positions among the micro-batch's tokens.

    Returns:
        [R, hidden], the same on all tensor-parallel ranks. Its gradient may be this rank's part of the sum over the
        vocabulary: the parts of all ranks are added on the way back.
    """
    if unwrap(model).config.sequence_parallel:
        # Gathers the ranks' tokens; on the way back adds the ranks' gradients and gives each its tokens' part.
        return tensor_parallel.gather_from_sequence_parallel_region(hidden).squeeze(1).index_select(0, rows)
    chosen = hidden.squeeze(1).index_select(0, rows)
    # Does nothing forward; adds the ranks' gradients on the way back.
    return tensor_parallel.copy_to_tensor_model_parallel_region(chosen)


def _layer_spec(shape: ModelShape, config: TransformerConfig) -> TransformerBlockSubmodules:
    """Megatron's plain layers with our attention and norm, for the layers of this pipeline stage."""
    layer = copy.deepcopy(get_gpt_layer_local_spec(qk_layernorm=shape.qk_norm, normalization="RMSNorm"))
    parts = layer.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = RMSNorm
    attention = parts.self_attention.submodules
    attention.core_attention = PackedAttention
    if shape.qk_norm:
        attention.q_layernorm = attention.k_layernorm = RMSNorm
    here = shape.layers // mpu.get_pipeline_model_parallel_world_size()
    return TransformerBlockSubmodules(layer_specs=[layer] * here, layer_norm=RMSNorm)
