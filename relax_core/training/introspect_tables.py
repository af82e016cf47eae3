"""What is known of Megatron's options that its configuration classes do not say.

Guarantee: facts only, by the names of fields; every name is a field of the version that the snapshot was read from. The
flags are those of the training script of Megatron-LM 0.16.1.
"""

from typing import Any

FLAGS = {
    "average_in_collective": "--ddp-average-in-collective",
    "bucket_size": "--ddp-bucket-size",
    "grad_reduce_in_fp32": "--accumulate-allreduce-grads-in-fp32",
    "nccl_ub": "--use-nccl-ub",
    "num_layers_in_first_pipeline_stage": "--decoder-first-pipeline-num-layers",
    "num_layers_in_last_pipeline_stage": "--decoder-last-pipeline-num-layers",
    "num_moe_experts": "--num-experts",
    "pad_buckets_for_high_nccl_busbw": "--ddp-pad-buckets-for-high-nccl-busbw",
    "reduce_scatter_with_fp32_accumulation": "--ddp-reduce-scatter-with-fp32-accumulation",
    "use_te_rng_tracker": "--te-rng-tracker",
}
"""Field -> the script's flag, where the field does not say it."""

MORE_FLAGS = {"gated_linear_unit": ("--swiglu",)}
"""Field -> further flags of the script that mean the same here."""

NEGATIONS: dict[str, tuple[str, ...]] = {
    "apply_rope_fusion": ("--no-rope-fusion",),
    "bias_activation_fusion": ("--no-bias-swiglu-fusion", "--no-bias-gelu-fusion"),
    "check_for_nan_in_grad": ("--no-check-for-nan-in-loss-and-grad",),
    "grad_reduce_in_fp32": ("--grad-reduce-in-bf16",),
    "muon_split_qkv": ("--muon-no-split-qkv",),
    "overlap_p2p_comm": ("--no-overlap-p2p-communication",),
}
"""Switch -> the script's flags that turn it off, where the field does not say them."""

SAME = {"fp8_param": "fp8_param_gather", "fp4_param": "fp4_param_gather"}
"""Field -> the field of another class that the script sets together with it, where both exist: one option for both."""

CHOICES: dict[str, tuple[str, ...]] = {
    "data_parallel_sharding_strategy": ("no_shard", "optim", "optim_grads", "optim_grads_params"),
    "exp_avg_dtype": ("fp32", "fp16", "bf16", "fp8"),
    "exp_avg_sq_dtype": ("fp32", "fp16", "bf16", "fp8"),
    "main_grads_dtype": ("fp32", "bf16"),
    "main_params_dtype": ("fp32", "fp16"),
    "moe_router_load_balancing_type": ("aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none"),
    "muon_fp32_matmul_prec": ("low", "medium", "high"),
    "muon_scale_mode": ("spectral", "unit_rms_norm", "shape_scaling"),
    "muon_tp_mode": ("blockwise", "duplicated", "distributed"),
    "optimizer": ("adam", "sgd", "muon", "dist_muon"),
    "outer_dp_sharding_strategy": ("no_shard", "optim"),
    "rope_type": ("rope", "yarn"),
}
"""Field -> the values that the script allows, where the field's type does not say them."""

_SHAPE = """
num_layers mtp_num_layers hidden_size ffn_hidden_size num_attention_heads num_query_groups kv_channels
normalization layernorm_epsilon layernorm_zero_centered_gamma apply_residual_connection_post_layernorm
add_bias_linear add_qkv_bias qk_layernorm qk_l2_norm attention_output_gate softmax_scale softmax_type
gated_linear_unit glu_linear_offset activation_func_clamp_value window_size window_attn_skip_freq
rotary_interleaved no_rope_freq rope_type rotary_base rotary_percent rotary_scaling_factor
original_max_position_embeddings beta_fast beta_slow mscale mscale_all_dim mrope_section
multi_latent_attention q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim
experimental_attention_variant dsa_indexer_n_heads dsa_indexer_head_dim dsa_indexer_topk
linear_attention_freq linear_conv_kernel_dim linear_key_head_dim linear_value_head_dim linear_num_key_heads
linear_num_value_heads is_hybrid_model mamba_state_dim mamba_head_dim mamba_num_groups mamba_num_heads
heterogeneous_block_specs num_moe_experts moe_layer_freq moe_ffn_hidden_size moe_latent_size
moe_shared_expert_intermediate_size moe_shared_expert_gate moe_apply_probs_on_input moe_router_topk
moe_router_topk_limited_devices moe_router_num_groups moe_router_group_topk moe_router_pre_softmax
moe_router_topk_scaling_factor moe_router_score_function moe_router_enable_expert_bias
"""

SHAPE = frozenset(_SHAPE.split())
"""Fields that describe the model."""

OWNED: dict[str, tuple[Any, ...]] = {
    # weights come from a folder or a checkpoint
    "perform_initialization": (False,),
    "use_cpu_initialization": (False,),
    "init_model_with_meta_device": (False,),
    "init_method_std": (),
    "embedding_init_method_std": (None,),
    # one number format, said by --bf16 and --fp16, between stages too
    "params_dtype": (),
    "pipeline_dtype": (),
    "fp32_residual_connection": (False,),
    # micro-batches are packed, each with its own lengths
    "variable_seq_lengths": (),
    "hybrid_context_parallel": (False,),
    "max_seqlen_per_dp_cp_rank": (None,),
    "enable_cuda_graph": (False,),
    "external_cuda_graph": (False,),
    "cuda_graph_impl": ("none",),
    "cuda_graph_scope": (),
    "cuda_graph_use_single_mempool": (False,),
    "cuda_graph_retain_backward_graph": (False,),
    "cuda_graph_warmup_steps": (),
    # attention, norms and activation are Relax's own modules in Megatron's plain layers
    "transformer_impl": ("local",),
    "attention_backend": ("auto", "flash"),
    "attention_dropout": (0.0,),
    "hidden_dropout": (0.0,),
    "attention_softmax_in_fp32": (True,),
    "apply_query_key_layer_scaling": (False,),
    "masked_softmax_fusion": (False,),
    "apply_rope_fusion": (False,),
    "fused_single_qkv_rope": (False,),
    "use_kitchen_attention": (False,),
    "kitchen_attention_backend": (),
    "qk_clip": (False,),
    "qk_clip_alpha": (),
    "qk_clip_threshold": (),
    "log_max_attention_logit": (False,),
    "persist_layer_norm": (False,),
    "memory_efficient_layer_norm": (False,),
    "use_te_activation_func": (True,),
    "bias_activation_fusion": (False,),
    "activation_func_fp8_input_store": (False,),
    # the loss is Relax's, and already normalised
    "calculate_per_token_loss": (True,),
    "cross_entropy_loss_fusion": (False,),
    "cross_entropy_fusion_impl": (),
    "defer_embedding_wgrad_compute": (False,),
    "wgrad_deferral_limit": (),
    "average_in_collective": (False,),
    "grad_reduce_in_fp32": (True,),
    "log_num_zeros_in_grad": (False,),
    # layers are divided evenly over the stages, one part a stage
    "virtual_pipeline_model_parallel_size": (None,),
    "num_layers_in_first_pipeline_stage": (None,),
    "num_layers_in_last_pipeline_stage": (None,),
    "pipeline_model_parallel_layout": (None,),
    "account_for_embedding_in_pipeline_split": (False,),
    "account_for_loss_in_pipeline_split": (False,),
    "mtp_standalone": (False,),
    "overlap_p2p_comm": (False,),
    "overlap_p2p_comm_warmup_flush": (False,),
    "microbatch_group_size_per_vp_stage": (None,),
    "num_microbatches_with_partial_activation_checkpoints": (None,),
    "overlap_param_gather_with_optimizer_step": (False,),
    "overlap_moe_expert_parallel_comm": (False,),
    "ep_overlap_early_attn_memory_release": (False,),
    "delay_wgrad_compute": (False,),
    # process groups and random generators are made without these
    "pipeline_model_parallel_comm_backend": (None, "nccl"),
    "hierarchical_context_parallel_sizes": (None,),
    "num_distributed_optimizer_instances": (1,),
    "use_te_rng_tracker": (False,),
    "inference_rng_tracker": (False,),
    # the learning rates of parameter groups follow the options after every restart
    "decoupled_lr": (None,),
    "decoupled_min_lr": (None,),
    # data parallelism is Megatron's plain wrapper
    "use_megatron_fsdp": (False,),
    "use_custom_fsdp": (False,),
    "data_parallel_sharding_strategy": ("no_shard",),
    "outer_dp_sharding_strategy": ("no_shard",),
    "gradient_reduce_div_fusion": (),
    "suggested_communication_unit_size": (None,),
    "preserve_fp32_weights": (),
    "keep_fp8_transpose_cache": (False,),
    "fsdp_double_buffer": (False,),
    "fsdp_manual_registration": (False,),
    # an engine generates, never the trainer
    "flash_decode": (False,),
    "cache_mla_latents": (False,),
    "inference_sampling_seed": (),
    "use_inference_optimized_layers": (False,),
    "inference_fuse_tp_communication": (False,),
    "mlp_chunks_for_prefill": (1,),
}
"""Fields that Relax decides -> the values that are what it does anyway."""
