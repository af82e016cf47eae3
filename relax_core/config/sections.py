"""The options, one typed model per section of the specification.

Guarantee: a field's name is its flag (``n_samples_per_prompt`` is ``--n-samples-per-prompt``), names are unique over
all sections, and nothing in the project reads an option from anywhere else. Importing this module needs pydantic only.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from relax_core.config.sizes import ByteSize


class Section(BaseModel):
    """A section of options: unknown names are refused, the docstring below a field is its help text."""

    model_config = ConfigDict(
        extra="forbid", use_attribute_docstrings=True, validate_assignment=True, allow_inf_nan=False
    )


class RunSection(Section):
    """Run"""

    run_dir: str | None = None
    """Where the run lives: a folder or any fsspec URL. The same again goes on with the run. Default: `runs/<time>`."""
    ray_address: str | None = None
    """Ray head to use (`host:port`, or `auto`). Default: the one that `relax up` started, else one for this run."""
    engine_start_timeout: float = 600.0
    """Seconds that the start of an engine or of the trainer may take."""
    debug: bool = False
    """Show the traceback of an error."""


class ClusterSection(Section):
    """Cluster and resources"""

    resource: dict[str, tuple[int, int]] = {"actor": (1, 1), "rollout": (1, 1)}
    """Role to [replicas, devices], e.g. `{"actor":[1,2],"rollout":[1,1]}`. Without a GPU a device is one process."""
    rollout_num_gpus_per_engine: int = 1
    """Devices of one SGLang engine: its tensor-parallel size."""
    num_gpus_per_node: int = 8
    """Devices of one node."""
    distributed_backend: Literal["nccl", "gloo"] = "nccl"
    """Backend of torch.distributed. Without a GPU it is always gloo."""
    distributed_timeout_minutes: int = 10
    """Minutes until a collective that makes no progress is an error."""


class BackendSection(Section):
    """Training backend"""

    train_backend: Literal["megatron"] = "megatron"
    """Training backend."""
    qkv_format: Literal["thd", "bshd"] = "thd"
    """Layout of a micro-batch: thd packs sequences without padding."""
    bf16: bool = False
    """Train in bfloat16 with float32 main weights (Megatron's flag). Default: float32."""


class CheckpointSection(Section):
    """Checkpoints"""

    hf_checkpoint: str | None = None
    """Hugging Face folder: tokenizer, model shape, first weights of SGLang and, without --load, of the trainer."""
    load: str | None = None
    """Megatron checkpoint folder, or Hugging Face folder, that the actor starts from (weights only)."""
    ref_load: str | None = None
    """Hugging Face folder of the reference model. Default: the weights that the actor starts from."""
    save: str | None = None
    """Where checkpoints are written. Default: `<run>/checkpoints`."""
    save_interval: int | None = None
    """Steps between two checkpoints; the last step is always saved. Default: only the last."""
    save_hf: str | None = None
    """Also export the weights in Hugging Face format here when a checkpoint is saved; may contain `{rollout_id}`."""
    no_save_optim: bool = False
    """Leave the optimiser's state out: smaller, but a run cannot resume from such a checkpoint."""


class DataSection(Section):
    """Data"""

    prompt_data: str | None = None
    """Training prompts: JSONL or Parquet, any fsspec URL, with an optional row slice `@[a:b]`."""
    input_key: str = "input"
    """Column of the prompt: text, or a list of messages."""
    label_key: str | None = None
    """Column of the label."""
    metadata_key: str = "metadata"
    """Column of the metadata (an object)."""
    tool_key: str = "tools"
    """Column of the tools given to the chat template."""
    apply_chat_template: bool = False
    """Render the prompt through the tokenizer's chat template."""
    apply_chat_template_kwargs: dict[str, Any] = {}
    """Further arguments of the chat template (JSON)."""
    system_prompt: str | None = None
    """System message put before every prompt that has none."""
    rollout_shuffle: bool = False
    """Shuffle the prompts, anew each epoch."""
    rollout_seed: int = 42
    """Seed of the shuffling and of the sampling."""


class RolloutSection(Section):
    """Rollout"""

    num_rollout: int | None = None
    """Number of rollout steps. Wins over --num-epoch."""
    num_epoch: int | None = None
    """Number of passes over the prompts; gives the number of steps when --num-rollout is not set."""
    rollout_batch_size: int | None = None
    """Prompts a step (required)."""
    n_samples_per_prompt: int = 1
    """Responses a prompt: the size of a group."""
    rollout_temperature: float = 1.0
    """Sampling temperature; the trainer's log-probs are scaled by it too."""
    rollout_top_p: float = 1.0
    """Nucleus sampling."""
    rollout_top_k: int = -1
    """Top-k sampling; -1 is off."""
    rollout_max_response_len: int | None = None
    """Most tokens of a response (required unless --rollout-max-context-len bounds it)."""
    rollout_max_prompt_len: int | None = None
    """Prompts with more tokens are left out, and counted. Default: the context less one."""
    rollout_max_context_len: int | None = None
    """Most tokens of prompt and response together. Default: what the model's config.json says."""
    rollout_stop: list[str] | None = None
    """Stop strings."""
    rollout_stop_token_ids: list[int] | None = None
    """Stop token ids."""
    rollout_skip_special_tokens: bool = False
    """Leave special tokens out of the response text."""
    update_weight_buffer_size: ByteSize = 512 * 1024 * 1024
    """Bytes of a bucket in which weights go to the engines."""
    check_weight_update_equal: bool = False
    """After each sync compare the engines' weights with the trainer's, and stop on a difference."""


class SglangSection(Section):
    """SGLang engine

    Every field is passed to the server under its own name; None leaves SGLang's default.
    """

    sglang_mem_fraction_static: float | None = None
    """Fraction of device memory for weights and KV cache."""
    sglang_server_concurrency: int = 512
    """Most requests in flight at one engine."""
    sglang_dtype: str | None = None
    """Data type of the engine's weights. Default: the trainer's (float32 without --bf16)."""
    sglang_context_length: int | None = None
    """Context length of the engine. Default: --rollout-max-context-len, else what the prompts and responses need."""
    sglang_max_running_requests: int | None = None
    """Most sequences that the engine decodes together."""
    sglang_max_total_tokens: int | None = None
    """Tokens in the KV cache."""
    sglang_attention_backend: str | None = None
    """Attention backend. Without a GPU it is torch_native."""
    sglang_enable_deterministic_inference: bool = False
    """Reproducible generation: seeded samples whose results do not depend on what else is in the batch."""
    sglang_disable_radix_cache: bool = False
    """No prefix cache."""
    sglang_log_level: str = "warning"
    """Log level of the server."""


class BatchSection(Section):
    """Batching"""

    global_batch_size: int | None = None
    """Samples of one optimiser step. Default: all samples of a step / --num-steps-per-rollout."""
    micro_batch_size: int = 1
    """Samples of a micro-batch; ignored with --use-dynamic-batch-size."""
    num_steps_per_rollout: int | None = None
    """Optimiser steps a rollout step. Default: 1, or what --global-batch-size gives."""
    use_dynamic_batch_size: bool = False
    """Pack samples into micro-batches of at most --max-tokens-per-gpu tokens."""
    max_tokens_per_gpu: int | None = None
    """Tokens of a micro-batch (required with --use-dynamic-batch-size)."""
    log_probs_max_tokens_per_gpu: int | None = None
    """Tokens of a micro-batch in passes without gradient. Default: --max-tokens-per-gpu."""
    balance_data: bool = False
    """Balance tokens over the data-parallel ranks."""


class ParallelSection(Section):
    """Parallelism"""

    tensor_model_parallel_size: int = 1
    """Tensor-parallel size."""
    pipeline_model_parallel_size: int = 1
    """Pipeline-parallel size."""
    sequence_parallel: bool = False
    """Sequence parallelism beside tensor parallelism."""
    recompute_granularity: Literal["full", "selective"] | None = None
    """Activation recomputation."""
    recompute_method: Literal["uniform", "block"] | None = None
    """Which layers are recomputed."""
    recompute_num_layers: int | None = None
    """How many layers are recomputed."""
    log_probs_chunk_size: int = -1
    """Rows of logits that exist at once; -1: all rows of a micro-batch."""


class OptimizerSection(Section):
    """Optimiser"""

    lr: float = 1e-6
    """Learning rate."""
    min_lr: float = 0.0
    """Lowest learning rate of the schedule."""
    lr_decay_style: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule of the learning rate after the warm-up."""
    lr_warmup_iters: int = 0
    """Optimiser steps of linear warm-up."""
    optimizer: Literal["adam"] = "adam"
    """Optimiser."""
    weight_decay: float = 0.01
    """Weight decay."""
    adam_beta1: float = 0.9
    """Adam's beta 1."""
    adam_beta2: float = 0.999
    """Adam's beta 2."""
    adam_eps: float = 1e-8
    """Adam's epsilon."""
    clip_grad: float = 1.0
    """Largest norm of the gradient; 0 is off."""
    seed: int = 1234
    """Seed of the trainer."""
    use_distributed_optimizer: bool = False
    """Shard the optimiser's state over the data-parallel ranks."""
    calculate_per_token_loss: bool = False
    """Average the loss over the tokens of the global batch, not over its samples."""


class AlgorithmSection(Section):
    """Algorithm"""

    advantage_estimator: Literal["grpo"] = "grpo"
    """Advantage estimator."""
    disable_grpo_std_normalization: bool = False
    """Do not divide a group's rewards by their standard deviation (Dr.GRPO)."""
    disable_rewards_normalization: bool = False
    """Use rewards as they are."""
    eps_clip: float = 0.2
    """Clip range of the probability ratio, lower side."""
    eps_clip_high: float | None = None
    """Clip range, upper side. Default: --eps-clip."""
    eps_clip_c: float | None = None
    """Dual clip: bound of the loss where the advantage is negative; above 1."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    use_kl_loss: bool = False
    """Add the KL to the reference model to the loss."""
    kl_loss_coef: float = 0.0
    """Weight of the KL in the loss."""
    kl_loss_type: Literal["k1", "k2", "k3", "low_var_kl"] = "k1"
    """Estimator of the KL."""
    use_unbiased_kl: bool = False
    """Weight the KL by the probability ratio."""
    use_rollout_logprobs: bool = False
    """Use the engine's log-probs as the old policy's."""


class RewardSection(Section):
    """Reward"""

    rm_type: str | None = None
    """Built-in reward; a sample's metadata.rm_type wins."""
    custom_rm_path: str | None = None
    """Dotted path of a function `reward(sample) -> float | dict`, sync or async."""
    reward_key: str | None = None
    """Key of the score where the reward function returns a dict."""


class EvalSection(Section):
    """Evaluation"""

    eval_interval: int | None = None
    """Steps between two evaluations."""
    eval_prompt_data: list[str] | None = None
    """Pairs of name and path."""
    skip_eval_before_train: bool = False
    """No evaluation before the first step."""
    eval_input_key: str | None = None
    """Default: --input-key."""
    eval_label_key: str | None = None
    """Default: --label-key."""
    n_samples_per_eval_prompt: int = 1
    """Responses an evaluation prompt."""
    eval_temperature: float | None = None
    """Default: --rollout-temperature. 0 is greedy."""
    eval_top_p: float | None = None
    """Default: --rollout-top-p."""
    eval_top_k: int | None = None
    """Default: --rollout-top-k."""
    eval_max_response_len: int | None = None
    """Default: --rollout-max-response-len."""


class RelaxConfig(Section):
    """Everything that decides a run. Every field has a default: a test or a form can start from `RelaxConfig()`."""

    run: RunSection = RunSection()
    cluster: ClusterSection = ClusterSection()
    backend: BackendSection = BackendSection()
    checkpoint: CheckpointSection = CheckpointSection()
    data: DataSection = DataSection()
    rollout: RolloutSection = RolloutSection()
    sglang: SglangSection = SglangSection()
    batch: BatchSection = BatchSection()
    parallel: ParallelSection = ParallelSection()
    optimizer: OptimizerSection = OptimizerSection()
    algorithm: AlgorithmSection = AlgorithmSection()
    reward: RewardSection = RewardSection()
    eval: EvalSection = EvalSection()
