"""A case for every option that is honoured: another value of it, and where that shows (``test_effects.py``)."""

from typing import Any, NamedTuple

import effect_probes as probes
import effect_probes_run as run
from effect_probes import Probe


class Case(NamedTuple):
    """How an option shows that it is honoured.

    Args:
        probe: what is compared; a text names a probe of ``effect_probes_training``.
        value: another value of the option.
        base: the other options of both runs, and the option's first value where that is not its default.
        refused: whether the configuration is refused with the other value: that is the effect.
        judged: False where the option goes only with another one that would change what is compared by itself.
    """

    probe: Probe | str
    value: Any
    base: dict[str, Any] = {}  # noqa: RUF012  (never changed)
    refused: bool = False
    judged: bool = True


def shape(value: Any) -> Case:
    """An option that must agree with the model."""
    return Case(probes.problems, value, refused=True)


def trace(value: Any, **base: Any) -> Case:
    return Case(probes.traces, value, {"sglang_profile": True, **base})


def evaluation(probe: Probe, value: Any, **base: Any) -> Case:
    return Case(probe, value, {"eval_prompt_data": ["sums", "{folder}/evaluation.jsonl"], **base})


def training(probe: str, value: Any, **base: Any) -> Case:
    """A case of a process with Megatron, whose model has weights."""
    return Case(probe, value, {"hf_checkpoint": "{model}", "lr": 1e-3, **base})


TWO_STEPS = {"num_steps_per_rollout": 2}
KL = {"use_kl_loss": True, "kl_loss_coef": 0.1}
TWO_RANKS = {"resource": {"actor": (1, 2), "rollout": (1, 1)}}
TENSOR = {**TWO_RANKS, "tensor_model_parallel_size": 2}
QUEUE = {"data_transport": "transfer_queue"}
PARTIAL = {"over_sampling_batch_size": 6, "partial_rollout": True}
SHORT = {"rollout_max_response_len": 10, "rollout_max_context_len": 20}
PACKED = {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 30, **SHORT}
AGAIN = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
WSD = {"lr_decay_style": "WSD", "lr_wsd_decay_iters": 4}
DECAYED = {"lr_decay_style": "linear"}
RISING = {"weight_decay_incr_style": "linear", "start_weight_decay": 0.0, "end_weight_decay": 0.5}
HALF = {"fp16": True, "use_precision_aware_optimizer": False}
BOARD = {"use_tensorboard": True, "tb_project_name": "{folder}/board"}
SHARDED = {"use_distributed_optimizer": True}
PPO = {
    "advantage_estimator": "ppo",
    "resource": {"actor": (1, 1), "rollout": (1, 1), "critic": (1, 1), "advantages": (1, 0)},
}
REWARD_KL = {"normalize_advantages": True, "kl_coef": 0.05}
JUDGE = {"genrm_model_path": "{folder}/model"}
TEACHER = {"opd_type": "megatron", "opd_teacher_load": "{folder}/checkpoints"}
SERVER = {"use_opd": True, "opd_type": "sglang"}
SAPO = {"advantage_estimator": "sapo"}
TIS = {"use_tis": True}
FIRST_LOGIT = "{folder}/mine.py:first_logit"
OWN_LOSS = {"loss_type": "custom_loss", "custom_loss_function_path": FIRST_LOGIT}
FAR = {"target": 0, "width": 1}
ICEPOP = "relax_core.algorithms.corrections.icepop_function"

CASES: dict[str, Case] = {
    # The run
    "run_dir": Case(run.run_folder, "{folder}/elsewhere"),
    "ray_address": Case(run.ray_head, "127.0.0.1:2", {"ray_address": "127.0.0.1:1"}),
    "engine_start_timeout": Case(probes.engines, 60.0),
    "debug": Case(run.mistake, True),
    "env_file": Case(run.actors_variables, "{folder}/variables.yaml"),
    "custom_args": Case(probes.own_metrics, {"mine": 7}, {"custom_rollout_log_function_path": "{folder}/mine.py:log"}),
    "takeover": Case(run.second_driver, True),
    "use_health_check": Case(run.drivers, True),
    "max_global_restart": Case(run.drivers, 1, {"use_health_check": True}),
    "use_fault_tolerance": Case(run.health_checks, True),
    "rollout_health_check_interval": Case(run.health_checks, 5.0, {"use_fault_tolerance": True}),
    "rollout_health_check_timeout": Case(run.health_checks, 5.0, {"use_fault_tolerance": True}),
    "rollout_health_check_first_wait": Case(run.health_checks, 5.0, {"use_fault_tolerance": True}),
    "allow_unwired": Case(probes.what_is_not_honoured, True),
    "resource": Case(probes.sizes, {"actor": (1, 2), "rollout": (1, 1)}),
    "colocate": Case(probes.places, True),
    "offload": Case(probes.engines, True),
    "offload_train": Case(run.turns_taken, True),
    "offload_rollout": Case(probes.engines, True),
    "rollout_num_gpus_per_engine": Case(probes.engines, 2, {"resource": {"actor": (1, 1), "rollout": (1, 2)}}),
    "fully_async": Case(run.versions, True),
    "max_staleness": Case(run.versions, 1, {"fully_async": True}, judged=False),
    "update_weights_interval": Case(run.versions, 2),
    "num_iters_per_train_update": Case(probes.slices, 2),
    "data_transport": Case(probes.queue, "transfer_queue", judged=False),  # its package need not be there
    "num_data_storage_units": Case(probes.queue, 2, QUEUE, judged=False),
    "per_rank_fetch": Case(probes.queue, True, QUEUE, judged=False),
    "polling_mode": Case(probes.queue, False, QUEUE, judged=False),
    "distributed_backend": training("meeting", "gloo"),
    "distributed_timeout_minutes": training("meeting", 20),
    "custom_config_path": Case(probes.overriding_file, "{folder}/custom.yaml"),
    # Number formats, weights
    "bf16": training("model_settings", True),
    "fp16": training("model_settings", True, use_precision_aware_optimizer=False),
    "true_on_policy_mode": training("trained", True, **TWO_STEPS),
    "hf_checkpoint": training("exported", "{other_model}"),
    "ref_load": Case(run.origins, "{folder}/other-model"),
    "ref_ckpt_step": Case(run.origins, 0, {"ref_load": "{folder}/checkpoints"}),
    "load": Case(run.origins, "{folder}/other-model"),
    "save": Case(run.saved, "{folder}/elsewhere"),
    "save_interval": Case(run.schedule, 2),
    "save_hf": Case(run.saved, "{folder}/export", {"num_rollout": 1}),
    "async_save": training("checkpoints", True),
    "no_save_optim": training("checkpoints", True),
    "rotate_ckpt": Case(run.kept, True, {"save_interval": 3, "async_save": True}),
    "max_actor_ckpt_to_keep": Case(run.kept, 2),
    # Prompts
    "prompt_data": Case(run.prompts, "{folder}/others.jsonl"),
    "input_key": Case(run.prompts, "question"),
    "label_key": Case(run.prompts, "answer"),
    "conversation_key_map": Case(
        run.prompts, {"user": "human"}, {"input_key": "chat", "apply_chat_template": True, "label_key": None}
    ),
    "metadata_key": Case(run.prompts, "facts"),
    "tool_key": Case(run.prompts, "kit", {"apply_chat_template": True}),
    "apply_chat_template": Case(run.prompts, True),
    "apply_chat_template_kwargs": Case(run.prompts, {"enable_thinking": False}, {"apply_chat_template": True}),
    "system_prompt": Case(run.prompts, "Be brief.", {"apply_chat_template": True}),
    "rollout_max_prompt_len": Case(run.prompts, 11),
    "custom_prompt_path": Case(run.prompts, "{folder}/mine.py:shout"),
    "rollout_shuffle": Case(run.requests, True),
    "rollout_seed": Case(run.requests, 7),
    "num_rollout": Case(run.length, 5),
    "num_epoch": Case(run.length, 2, {"num_rollout": None, "num_epoch": 1}),
    "rollout_batch_size": Case(run.requests, 2),
    "n_samples_per_prompt": Case(run.requests, 4),
    # Sampling
    "rollout_temperature": Case(probes.sampling, 0.5),
    "rollout_top_p": Case(probes.sampling, 0.5),
    "rollout_top_k": Case(probes.sampling, 5),
    "rollout_max_response_len": Case(probes.sampling, 32),
    "rollout_stop": Case(probes.sampling, ["END"]),
    "rollout_stop_token_ids": Case(probes.sampling, [7]),
    "rollout_skip_special_tokens": Case(probes.sampling, True),
    "rollout_max_context_len": Case(run.generated, 16, {"rollout_max_response_len": 8, "rollout_max_prompt_len": 14}),
    "custom_generate_function_path": Case(run.generated, "{folder}/mine.py:twice"),
    "over_sampling_batch_size": Case(run.selected, 6),
    "dynamic_sampling_filter_path": Case(run.selected, "{folder}/mine.py:even"),
    "buffer_filter_path": Case(run.selected, "{folder}/mine.py:none", {"over_sampling_batch_size": 6}),
    "partial_rollout": Case(run.selected, True, {"over_sampling_batch_size": 6}),
    "partial_rollout_max_aborted_count": Case(run.selected, 0, PARTIAL),
    "mask_offpolicy_in_partial_rollout": Case(run.selected, True, PARTIAL),
    "rollout_data_postprocess_path": Case(probes.batch, "{folder}/mine.py:drop"),
    "custom_rollout_log_function_path": Case(probes.own_metrics, "{folder}/mine.py:log"),
    "custom_eval_rollout_log_function_path": Case(probes.own_metrics, "{folder}/mine.py:log_evaluation"),
    "update_weight_buffer_size": training("pushed", 1024),
    "check_weight_update_equal": training("pushed", True),
    "checkpoint_engine_backend": training("pushed", "gloo"),
    # Engines
    "sglang_mem_fraction_static": Case(probes.engines, 0.5),
    "sglang_server_concurrency": Case(probes.engines, 8),
    "sglang_dtype": Case(probes.engines, "bfloat16"),
    "sglang_context_length": Case(probes.engines, 512),
    "sglang_max_running_requests": Case(probes.engines, 4),
    "sglang_max_total_tokens": Case(probes.engines, 4096),
    "sglang_attention_backend": Case(probes.engines, "triton"),
    "sglang_enable_deterministic_inference": Case(probes.engines, True),
    "sglang_disable_radix_cache": Case(probes.engines, True),
    "sglang_log_level": Case(probes.engines, "info"),
    "http_proxy": Case(probes.engines, "http://proxy:3128"),
    "sglang_profile": Case(probes.traces, True),
    "sglang_profile_steps": trace([1]),
    "sglang_profile_step_start": trace(2),
    "sglang_profile_step_end": trace(2),
    "sglang_profile_output_dir": trace("{folder}/traces"),
    "sglang_profile_num_steps": trace(5),
    "sglang_profile_activities": trace(["CPU"]),
    "sglang_profile_by_stage": trace(True),
    "sglang_profile_with_stack": trace(True),
    "sglang_profile_record_shapes": trace(True),
    # Batches
    "global_batch_size": Case(run.division, 4),
    "micro_batch_size": Case(run.division, 2, TWO_RANKS),
    "num_steps_per_rollout": Case(run.division, 2),
    "use_dynamic_batch_size": Case(run.division, True, {"max_tokens_per_gpu": 30, **SHORT}, judged=False),
    "max_tokens_per_gpu": Case(run.division, 60, PACKED),
    "log_probs_max_tokens_per_gpu": Case(run.division, 60, PACKED),
    "balance_data": Case(run.division, True, TWO_RANKS),
    # Parallelism and memory
    "tensor_model_parallel_size": training("model_settings", 2, **TWO_RANKS),
    "pipeline_model_parallel_size": training("model_settings", 2, **TWO_RANKS),
    "sequence_parallel": training("model_settings", True, **TENSOR),
    "recompute_granularity": training("model_settings", "selective"),
    "recompute_method": training("model_settings", "block", **AGAIN),
    "recompute_num_layers": training("model_settings", 2, **AGAIN),
    "recompute_loss_function": training("products", True),
    "log_probs_chunk_size": training("products", 4),
    "disable_compile": training("compiled_layers", True, bf16=True),
    "train_env_vars": Case(run.ranks_variables, {"COLOUR": "red"}),
    # Optimiser
    "lr": training("optimizer_settings", 0.1),
    "min_lr": training("optimizer_settings", 1e-5, **DECAYED),
    "lr_decay_style": training("rates", "cosine", num_rollout=8),
    "lr_warmup_iters": training("rates", 2),
    "weight_decay": training("optimizer_settings", 0.1),
    "adam_beta1": training("optimizer_settings", 0.8),
    "adam_beta2": training("optimizer_settings", 0.9),
    "adam_eps": training("optimizer_settings", 1e-4),
    "clip_grad": training("trained", 1e-3, adam_eps=1.0),
    "seed": training("random_number", 7),
    # these two go with the precision-aware optimiser, which not every machine has
    "optimizer_cpu_offload": training("optimizer_settings", True)._replace(judged=False),
    "overlap_cpu_optimizer_d2h_h2d": training("optimizer_settings", True, optimizer_cpu_offload=True)._replace(
        judged=False
    ),
    "use_distributed_optimizer": training("optimizer_settings", True),
    "overlap_grad_reduce": training("wrapper_settings", True),
    "overlap_param_gather": training("wrapper_settings", True, overlap_grad_reduce=True, **SHARDED),
    "calculate_per_token_loss": Case(run.loss, True),
    "loss_scale": training("optimizer_settings", 64.0, **HALF),
    "initial_loss_scale": training("optimizer_settings", 64.0, **HALF),
    "min_loss_scale": training("optimizer_settings", 4.0, **HALF),
    "use_precision_aware_optimizer": training("optimizer_settings", True, **SHARDED),
    "store_param_remainders": training("optimizer_settings", False),
    "lr_warmup_fraction": training("rates", 0.5, num_rollout=8),
    "lr_warmup_init": training("rates", 1e-4, lr_warmup_iters=2),
    "lr_decay_iters": training("rates", 4, num_rollout=8, **DECAYED),
    "lr_wsd_decay_iters": training("rates", 2, num_rollout=8, **WSD),
    "lr_wsd_decay_style": training("rates", "linear", num_rollout=8, **WSD),
    "weight_decay_incr_style": training("rates", "cosine", num_rollout=8, **RISING),
    "start_weight_decay": training("rates", 0.1, num_rollout=8, **RISING),
    "end_weight_decay": training("rates", 0.4, num_rollout=8, **RISING),
    # Loss
    "disable_grpo_std_normalization": Case(probes.batch, True),
    "disable_rewards_normalization": Case(probes.batch, True),
    "eps_clip": Case(run.loss, 0.1, {"eps_clip_high": 0.3}),
    "eps_clip_high": Case(run.loss, 0.4),
    "eps_clip_c": Case(run.loss, 1.5),
    "entropy_coef": Case(run.loss, 0.1),
    "use_rollout_logprobs": training("trained", True),
    "use_kl_loss": training("trained", True, kl_loss_coef=0.1)._replace(judged=False),
    "kl_loss_coef": Case(run.loss, 0.2, KL),
    "kl_loss_type": Case(run.loss, "k3", KL),
    "use_unbiased_kl": Case(run.loss, True, KL),
    "ref_update_interval": training("trained", 1, **KL),
    "reset_optimizer_states": training("trained", True),
    "only_train_params_name_list": training("trained", ["norm"]),
    "freeze_params_name_list": training("trained", ["norm"]),
    # its KL goes with no other estimator but ppo
    "advantage_estimator": Case(probes.batch, "reinforce_plus_plus", REWARD_KL, judged=False),
    "gamma": Case(probes.batch, 0.5, {**REWARD_KL, "advantage_estimator": "reinforce_plus_plus"}),
    "kl_coef": Case(probes.batch, 0.1, {**REWARD_KL, "advantage_estimator": "reinforce_plus_plus"}),
    "normalize_advantages": Case(probes.batch, True),
    # The critic
    "lambd": Case(probes.batch, 0.5, PPO),
    "value_clip": training("critic_trained", 0.01, **PPO),
    "critic_lr": training("critics_rates", 0.1, **PPO),
    "critic_lr_warmup_iters": training("critics_rates", 2, **PPO),
    "num_critic_only_steps": training("trained", 1, **PPO),
    "critic_train_only": training("trained", True, **PPO),
    "critic_load": Case(run.origins, "{folder}/other-model", PPO),
    "critic_save": Case(run.saved, "{folder}/elsewhere", PPO),
    # Distillation
    "use_opd": Case(probes.passes, True, TEACHER, judged=False),  # its options are told without it
    "opd_type": Case(probes.passes, "sglang", {**TEACHER, "use_opd": True}, judged=False),  # takes no weights
    "opd_kl_coef": Case(probes.batch, 0.5, {**TEACHER, "use_opd": True}),
    "opd_teacher_load": Case(run.origins, "{folder}/other-model", {**TEACHER, "use_opd": True}),
    "opd_teacher_ckpt_step": Case(run.origins, 0, {**TEACHER, "use_opd": True}),
    "rm_url": Case(run.teacher_server, "http://{inbox}/there", {**SERVER, "rm_url": "http://{inbox}/here"}),
    "sapo_tau_pos": Case(run.loss, 2.0, SAPO),
    "sapo_tau_neg": Case(run.loss, 2.0, SAPO),
    "use_opsm": Case(run.loss, True),
    "opsm_delta": Case(run.loss, 10.0, {"use_opsm": True}),
    "use_tis": Case(run.loss, True),
    "tis_clip": Case(run.loss, 1.1, TIS),
    "tis_clip_low": Case(run.loss, 0.9, TIS),
    "custom_tis_function_path": Case(run.loss, ICEPOP, TIS),
    # its function goes with this option or --use-tis, which would run it anyway
    "get_mismatch_metrics": Case(run.loss, True, {"custom_tis_function_path": ICEPOP}, judged=False),
    "custom_pg_loss_reducer_function_path": Case(run.loss, "relax_core.algorithms.reduce.dr_grpo"),
    "loss_type": Case(run.loss, "custom_loss", {"custom_loss_function_path": FIRST_LOGIT}, judged=False),
    "custom_loss_function_path": Case(run.loss, "{folder}/mine.py:its_square", OWN_LOSS),
    "disable_compute_advantages_and_returns": Case(probes.batch, True, OWN_LOSS),
    # Evaluation
    "eval_interval": evaluation(run.schedule, 2),
    "eval_datasets": Case(run.evaluation_prompts, [{"name": "sums", "path": "{folder}/evaluation.jsonl"}]),
    "eval_prompt_data": Case(run.evaluation_prompts, ["sums", "{folder}/evaluation.jsonl"]),
    "eval_config": Case(run.evaluation_prompts, "{folder}/sets.yaml"),
    "skip_eval_before_train": evaluation(run.schedule, True, eval_interval=1),
    "eval_input_key": evaluation(run.evaluation_prompts, "question"),
    "eval_label_key": evaluation(run.evaluation_prompts, "answer"),
    "eval_tool_key": evaluation(run.evaluation_prompts, "kit", apply_chat_template=True),
    "eval_max_prompt_len": evaluation(run.evaluation_prompts, 32),
    "n_samples_per_eval_prompt": evaluation(run.evaluated, 2),
    "eval_temperature": evaluation(run.evaluated, 0.0),
    "eval_top_p": evaluation(run.evaluated, 0.5),
    "eval_top_k": evaluation(run.evaluated, 5),
    "eval_max_response_len": evaluation(run.evaluated, 2),
    "eval_min_new_tokens": evaluation(run.evaluated, 1),
    "eval_max_context_len": evaluation(run.evaluated, 40, eval_max_response_len=8, eval_max_prompt_len=35),
    "eval_reward_key": evaluation(
        run.evaluated, "two", custom_rm_path="{folder}/mine.py:two", reward_key="one", eval_reward_key="one"
    ),
    # Reward
    "rm_type": Case(probes.scores, "dummy"),
    "reward_mix": Case(
        probes.scores, {"length": {**FAR, "weight": 2}}, {"rm_type": "mix", "reward_mix": {"length": FAR}}
    ),
    "custom_rm_path": Case(probes.scores, "{folder}/mine.py:half"),
    "reward_key": Case(probes.scores, "two", {"custom_rm_path": "{folder}/mine.py:two", "reward_key": "one"}),
    "group_rm": Case(probes.scores, True, {"custom_rm_path": "{folder}/mine.py:count"}),
    "reward_max_concurrency": Case(probes.scores, 2, {"custom_rm_path": "{folder}/mine.py:crowd"}),
    "rm_type_fallback": Case(probes.scores, "exact_number", {"rm_type": None, "rm_type_fallback": "zero"}),
    "rm_type_infer": Case(probes.scores, True, {"rm_type": None, "rm_type_fallback": "zero"}),
    "custom_rm_signature": Case(
        probes.scores, "slime", {"custom_rm_path": "{folder}/mine.py:either", "custom_rm_signature": "relax"}
    ),
    "reward_num_workers": Case(
        probes.processes, 2, {"custom_rm_path": "{folder}/mine.py:slow", "reward_num_workers": 1}
    ),
    "reward_timeout": Case(probes.outcomes, 0.1, {"custom_rm_path": "{folder}/mine.py:slow"}),
    "reward_error_policy": Case(
        probes.scores, "no_score", {"custom_rm_path": "{folder}/mine.py:broken", "reward_error_policy": "zero"}
    ),
    "no_score_policy": Case(probes.odd_batch, "zero"),
    "truncated_reward_policy": Case(probes.odd_batch, "exclude"),
    "code_sandbox": Case(probes.program, "limits", {"rm_type": "code", "reward_error_policy": "no_score"}),
    # Judge
    "genrm_model_path": Case(probes.judges, "{folder}/other-model", JUDGE),
    "genrm_num_gpus": Case(probes.judges, 2, JUDGE),
    "genrm_num_gpus_per_engine": Case(probes.judges, 2, {**JUDGE, "genrm_num_gpus": 2}),
    "genrm_engine_config": Case(probes.judges, {"max_total_tokens": 9000}, JUDGE),
    "genrm_sampling_config": Case(probes.questions, {"temperature": 0.5}, {**JUDGE, "rm_type": "judge"}),
    "genrm_template": Case(probes.questions, "correctness", {**JUDGE, "rm_type": "judge"}),
    "custom_reward_post_process_path": Case(probes.batch, "{folder}/mine.py:halve"),
    # Logging
    "use_tensorboard": Case(run.board, True, {"tb_project_name": "{folder}/board"}),
    "tb_project_name": Case(run.board, "{folder}/other", BOARD),
    "tb_experiment_name": Case(run.board, "mine", BOARD),
    "timeline_dump_dir": Case(run.timeline, "{folder}/timelines"),
    "log_passrate": Case(probes.metrics, True),
    "log_multi_turn": Case(probes.metrics, True),
    "log_reward_category": Case(probes.metrics, "error"),
    "notify_urls": Case(run.messages, "json://{inbox}/path"),
    # Debugging
    "debug_rollout_only": Case(run.what_is_started, True),
    "debug_train_only": Case(run.what_is_started, True, judged=False),  # what it goes with implies it
    "load_debug_rollout_data": Case(run.what_is_started, "{folder}/recorded/{rollout_id}.pt"),
    "load_debug_rollout_data_subsample": Case(
        run.recorded, 0.5, {"load_debug_rollout_data": "{folder}/recorded/{rollout_id}.pt"}
    ),
    "save_debug_rollout_data": Case(run.copies, "{folder}/dump/{rollout_id}.pt"),
    "save_debug_train_data": Case(run.copies, "{folder}/dump/{rollout_id}.pt"),
    "dump_details": Case(run.copies, "{folder}/dump"),
    # The model's shape
    "vocab_size": shape(1000),
    "max_position_embeddings": shape(1000),
    "position_embedding_type": shape("learned_absolute"),
    "use_rotary_position_embeddings": shape(False),
    "no_position_embedding": shape(False),
    "use_rope_scaling": shape(True),
    "rope_scaling_factor": shape(8.0),
    "group_query_attention": shape(False),
    "untie_embeddings_and_output_weights": shape(False),
}
"""Option -> how it shows."""

ONE_VALUE = {
    "train_backend": "fsdp",
    "qkv_format": "bshd",
    "optimizer": "sgd",
    "data_source_path": "mine.Source",
    "rollout_function_path": "mine.generate",
}
"""Options of which one value alone is honoured, with another one: the effect is that it is refused."""
