"""The memory of a run's roles: the options of a configuration as the numbers of ``relax_core.config.memory``.

Guarantee: the sizes are those that trainer and engines take from the same options. Of the options that are passed
through to Megatron none is looked at, of SGLang's only the type of its cache. Pure.
"""

from dataclasses import dataclass, replace

from relax_core.config import derived
from relax_core.config.memory import GIB, Layout, Recompute, engine_memory, trainer_memory
from relax_core.config.options import passed_values
from relax_core.config.rules.genrm import MAX_CONTEXT
from relax_core.config.sections import RelaxConfig
from relax_core.training.roles import Role, role_config
from relax_core.training.shape import ModelShape

LASTING = ("weights", "gradients", "main weights", "Adam")
"""Parts of a trainer that are there between two passes."""

JUDGE_REQUESTS = 256
"""Questions that are open at once."""


@dataclass(frozen=True)
class Device:
    """The memory of a GPU, in GiB.

    Attributes:
        total: which decides how a trainer goes over logits.
        free: of it, which decides what fits.
    """

    total: float
    free: float


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of one device of a role.

    Attributes:
        parts: by name; ``peak`` is below their sum where some are never there together.
        notes: what the numbers hold for.
        fits: whether there is room: for the peak of a trainer, for one request of an engine, since the others can wait;
            None where the device is not known.
    """

    role: str
    parts: dict[str, int]
    peak: int
    notes: tuple[str, ...]
    fits: bool | None


def trainer_plan(
    config: RelaxConfig, model: ModelShape, tokens: int, device: Device | None, role: Role = "actor"
) -> MemoryPlan:
    """A device of a role's trainer: one of the pipeline stage that needs most.

    Args:
        model: of the policy.
        tokens: of the largest micro-batch.
        device: None: not known.
    """
    config, model = role_config(config, role), replace(model, values=role == "critic")
    parallel, batch = config.parallel, config.batch
    layout = Layout(
        tensor=parallel.tensor_model_parallel_size,
        pipeline=parallel.pipeline_model_parallel_size,
        data=max(derived.data_parallel_size(config, role), 1),
        sequence_parallel=parallel.sequence_parallel,
        bf16=config.backend.bf16 or config.backend.fp16,  # the same sizes
    )
    stages = trainer_memory(
        model,
        layout,
        tokens=tokens,
        distributed_optimizer=config.optimizer.use_distributed_optimizer,
        recompute=Recompute(parallel.recompute_granularity, parallel.recompute_method, parallel.recompute_num_layers),
        score_tokens=batch.log_probs_max_tokens_per_gpu if batch.use_dynamic_batch_size else None,
        chunk=config.training.log_probs_chunk_size,
        entropy_loss=config.algorithm.entropy_coef != 0,
        own_loss=config.algorithm.loss_type == "custom_loss",
        reference=derived.needs_reference(config) or derived.needs_teacher(config),
        device_gib=None if device is None else device.total,
    )
    rank = max(stages, key=lambda one: one.total)
    parts = {
        "weights": rank.weights,
        "gradients": rank.gradients,
        "main weights": rank.main_weights,
        "Adam": rank.adam,
        "activations": rank.activations,
        "layers computed again": rank.recomputed,
        "logits": rank.logits,
        "pass without gradient": rank.scoring,
    }
    notes = [f"{rank.parameters:,} parameters", f"micro-batches of up to {tokens:,} tokens"]
    if len(stages) > 1:
        notes.insert(0, f"pipeline stage {rank.stage}, which needs most")
    visitors = {"the reference": derived.needs_reference(config), "the teacher": derived.needs_teacher(config)}
    notes += [f"{visitor} visits for its pass, from host memory" for visitor, comes in visitors.items() if comes]
    return MemoryPlan(role, parts, rank.total, tuple(notes), _fits(rank.total, None if device is None else device.free))


def engine_plan(
    config: RelaxConfig, model: ModelShape, requests: int, longest: int, device_gib: float | None
) -> MemoryPlan:
    """A device of an engine.

    Args:
        requests: of a rollout step to one engine; those beyond its limits wait.
        longest: tokens of a prompt and its response.
        device_gib: free memory of a device; None: not known.
    """
    options = config.sglang
    limits = (options.sglang_server_concurrency, options.sglang_max_running_requests)
    requests = min(requests, *(limit for limit in limits if limit is not None))
    tokens = requests * longest
    if options.sglang_max_total_tokens is not None:
        tokens = min(tokens, options.sglang_max_total_tokens)
    narrow = "fp8" in str(passed_values(config, "sglang").get("sglang_kv_cache_dtype"))
    fraction = options.sglang_mem_fraction_static
    engine = engine_memory(
        model,
        tensor=config.cluster.rollout_num_gpus_per_engine,
        tokens=tokens,
        element=4 if options.sglang_dtype in ("float32", "float") else 2,
        cache_element=1 if narrow else None,
        device_gib=device_gib,
        fraction=fraction,
    )
    notes = [f"{requests} requests of up to {longest:,} tokens", f"{engine.cache_per_token:,} bytes of cache a token"]
    if tokens < requests * longest:
        notes.append(f"--sglang-max-total-tokens holds {tokens:,}, the rest waits")
    if engine.held_tokens is not None:
        notes.append(f"room for {engine.held_tokens:,} tokens at --sglang-mem-fraction-static {fraction}")
    # What has no room waits: only a single request must fit.
    least = engine.weights + longest * engine.cache_per_token
    fits = _fits(least, None if device_gib is None else device_gib * (fraction or 1))
    parts = {"weights": engine.weights, "KV cache": engine.cache}
    return MemoryPlan("rollout", parts, engine.weights + engine.cache, tuple(notes), fits)


def hand_over_plan(config: RelaxConfig, actor: MemoryPlan, engine: MemoryPlan, device_gib: float | None) -> MemoryPlan:
    """A shared device while the actor gives the engine its weights: the one moment at which both are there."""
    lasting = sum(actor.parts[name] for name in LASTING)
    parts = {
        "the actor": lasting,
        "the engine's weights": engine.parts["weights"],
        "buckets": min(2 * config.rollout.update_weight_buffer_size, engine.parts["weights"]),
    }
    peak = sum(parts.values())
    return MemoryPlan("both", parts, peak, ("while weights are handed over",), _fits(peak, device_gib))


def judge_plan(config: RelaxConfig, model: ModelShape, requests: int, device_gib: float | None) -> MemoryPlan:
    """A device of the judge's engines.

    Args:
        model: of --genrm-model-path.
        requests: of a rollout step to one engine, a question for each sample; those beyond its limits wait.
        device_gib: free memory of a device; None: not known.
    """
    given = config.genrm.genrm_engine_config or {}
    context = int(given.get("max_context_len", given.get("context_length", min(MAX_CONTEXT, model.max_positions))))
    requests = min(requests, int(given.get("max_running_requests", requests)), JUDGE_REQUESTS)
    tokens = min(requests * context, int(given.get("max_total_tokens", requests * context)))
    wide = str(given.get("dtype", config.sglang.sglang_dtype)) in ("float32", "float")
    fraction = given.get("mem_fraction_static")
    pipeline = int(given.get("pp_size", 1))
    copies = 1 if given.get("enable_dp_attention") else int(given.get("dp_size", 1))
    engine = engine_memory(
        model,
        tensor=max(config.genrm.genrm_num_gpus_per_engine // (pipeline * copies), 1),
        tokens=tokens,
        element=4 if wide else 2,
        cache_element=1 if "fp8" in str(given.get("kv_cache_dtype")) else None,
        device_gib=device_gib,
        fraction=fraction,
    )
    notes = [
        f"{requests} requests of up to {context:,} tokens, its whole context",
        f"{engine.cache_per_token:,} bytes of cache a token",
    ]
    if tokens < requests * context:
        notes.append(f"max_total_tokens holds {tokens:,}, the rest waits")
    if engine.held_tokens is not None:
        notes.append(f"room for {engine.held_tokens:,} tokens at mem_fraction_static {fraction}")
    if pipeline > 1:
        notes.append(f"spread over {pipeline} pipeline stages, of which each has less")
    fits = _fits(
        engine.weights + context * engine.cache_per_token, None if device_gib is None else device_gib * (fraction or 1)
    )
    parts = {"weights": engine.weights, "KV cache": engine.cache}
    return MemoryPlan("genrm", parts, engine.weights + engine.cache, tuple(notes), fits)


def _fits(size: int, device_gib: float | None) -> bool | None:
    return None if device_gib is None else size <= device_gib * GIB
