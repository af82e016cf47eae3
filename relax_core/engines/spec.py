"""The complete description of one SGLang engine, made from the configuration.

Guarantee: ``engine_spec`` starts nothing; the same configuration and environment give the same description, and it can
be pickled, so that an actor on any node can start the engine from it.

Reproducible generation (``--sglang-enable-deterministic-inference``) means that tokens and log-probs of a request
depend on the weights, the prompt, the sampling parameters and the seed alone:

* On CUDA it is SGLang's own setting, whose kernels do not depend on the batch.
* On a CPU a product of matrices rounds differently with another number of rows. So the engine takes one request at a
  time, without prefix cache and without splitting prompts. Seeds always work on a CPU; this removes the rounding.
"""

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from relax_core.config.sections import RelaxConfig

Device = Literal["cpu", "cuda"]

CPU_RUNNING_REQUESTS = 64
"""Sequences decoded together on a CPU unless the configuration says otherwise: more no longer raises throughput."""
CPU_CACHE_BYTES = 2 * 1024**3
"""Most memory of the KV cache on a CPU unless the configuration says otherwise."""
CONTEXT_RESERVE = 2
"""Tokens of its context that SGLang never gives to a response: with 32, a prompt of 20 gets 10 tokens."""
SMALL_MODEL_WIDTH = 256
"""Below this hidden size one thread is faster than several: the threads would only wait for each other."""

OWN_FIELDS = {"sglang_server_concurrency", "sglang_enable_deterministic_inference"}
"""Options of the section that are not passed on as they are."""


@dataclass(frozen=True)
class EngineSpec:
    """One engine: how to start it and how to talk to it.

    Attributes:
        index: number of the engine, from 0.
        device: ``cpu`` or ``cuda``.
        model: Hugging Face folder.
        arguments: SGLang's arguments, without host and port.
        environment: variables set for its processes, over those of whoever starts it.
        host: address it listens at.
        port: fixed port; None: any free one.
        log_path: file of its output.
        start_timeout: seconds until it must answer.
        concurrency: most requests in flight at it.
        tp_size: tensor-parallel size.
    """

    index: int
    device: Device
    model: str
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    log_path: str
    host: str = "127.0.0.1"
    port: int | None = None
    start_timeout: float = 600.0
    concurrency: int = 512
    tp_size: int = 1

    @property
    def name(self) -> str:
        return f"engine {self.index}"

    def at(self, host: str, port: int | None = None) -> "EngineSpec":
        """The same engine at another address."""
        return replace(self, host=host, port=port)


def engine_spec(config: RelaxConfig, index: int, device: Device, log_dir: str | Path) -> EngineSpec:
    """Describe engine number ``index``.

    Args:
        config: ``checkpoint.hf_checkpoint`` must name a folder.
        index: number of the engine; it shifts SGLang's random seed, which only unseeded requests see.
        device: ``cpu`` or ``cuda``.
        log_dir: folder of the log files.
    """
    sglang, model = config.sglang, config.checkpoint.hf_checkpoint
    if model is None:
        raise ValueError("engine_spec needs checkpoint.hf_checkpoint")
    shape = _model_shape(model)
    tp_size = config.cluster.rollout_num_gpus_per_engine
    values: dict[str, Any] = {
        "model_path": model,
        "device": device,
        "tp_size": tp_size if tp_size > 1 else None,
        "context_length": _context_length(config, shape),
        "dtype": "bfloat16" if config.backend.bf16 else "float32",
        "random_seed": config.data.rollout_seed + index,
    }
    chosen = {f: v for f, v in sglang.model_dump().items() if f not in OWN_FIELDS and v is not None}
    values |= {field.removeprefix("sglang_"): value for field, value in chosen.items()}
    if device == "cpu":
        values |= _cpu_values(config, values, shape)
        environment = _cpu_environment(config, shape)
    else:
        values["enable_deterministic_inference"] = sglang.sglang_enable_deterministic_inference
        # As in the trainer: with cuMem handles the first NCCL broadcast between the two hangs.
        environment = {"NCCL_CUMEM_ENABLE": "0"}
    if Path(model).exists():
        environment["HF_HUB_OFFLINE"] = "1"  # the folder holds everything: no look-ups
    return EngineSpec(
        index=index,
        device=device,
        model=model,
        arguments=_flags(values),
        environment=tuple(sorted(environment.items())),
        log_path=str(Path(log_dir) / f"engine-{index}.log"),
        start_timeout=config.run.engine_start_timeout,
        concurrency=sglang.sglang_server_concurrency,
        tp_size=tp_size,
    )


def _flags(values: dict[str, Any]) -> tuple[str, ...]:
    """SGLang's command line: None and False are left out, True is a flag without a value."""
    arguments: list[str] = []
    for name, value in values.items():
        if value is None or value is False:
            continue
        arguments.append(f"--{name.replace('_', '-')}")
        if value is not True:
            arguments.append(str(value))
    return tuple(arguments)


def _cpu_values(config: RelaxConfig, values: dict[str, Any], shape: dict[str, Any]) -> dict[str, Any]:
    """What differs on a CPU; the configuration's own values win where they can work there."""
    reproducible = config.sglang.sglang_enable_deterministic_inference
    running = config.sglang.sglang_max_running_requests
    if running is None:
        running = min(config.sglang.sglang_server_concurrency, CPU_RUNNING_REQUESTS)
    cpu: dict[str, Any] = {
        "attention_backend": "torch_native",
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "disable_cuda_graph": True,
        "disable_overlap_schedule": True,
        "skip_server_warmup": True,
        # An idle scheduler polls without a pause: seen, a third of a core taken from the trainer, or more.
        "sleep_on_idle": True,
        "enable_deterministic_inference": True,  # what makes SGLang use the seeds
        "max_running_requests": running,
        # max_total_tokens decides here; SGLang's default for this fraction, made for GPUs, can be negative.
        "mem_fraction_static": 0.9,
    }
    if reproducible:
        cpu |= {"max_running_requests": 1, "disable_radix_cache": True, "chunked_prefill_size": -1}
        running = 1
    if values.get("max_total_tokens") is None:
        context = values["context_length"] or shape.get("max_position_embeddings", 4096)
        fits = CPU_CACHE_BYTES // _cache_bytes_per_token(shape, values["dtype"])
        # One sequence of full length must fit, with a little room for the slots that SGLang keeps for itself.
        cpu["max_total_tokens"] = max(min(running * context, fits), context + 64)
    return cpu


def _cpu_environment(config: RelaxConfig, shape: dict[str, Any]) -> dict[str, str]:
    replicas, ranks = config.cluster.resource.get("rollout", (1, 1))[0], config.cluster.rollout_num_gpus_per_engine
    cores = os.cpu_count() or 1
    share = 1 if shape.get("hidden_size", SMALL_MODEL_WIDTH) < SMALL_MODEL_WIDTH else cores // (replicas * ranks)
    # SGLang wants one set of cores for each rank as soon as there are more ranks than NUMA nodes.
    binding = {"SGLANG_CPU_OMP_THREADS_BIND": "|".join(str(r % cores) for r in range(ranks))} if ranks > 1 else {}
    return binding | {
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, share)),
        # Threads that spin at a barrier take the core from the thread they wait for as soon as anything else runs
        # on the machine; seen: ten times slower on two cores.
        "OMP_WAIT_POLICY": "passive",
        "TORCH_COMPILE_DISABLE": "1",  # a first compilation stalls requests for seconds and needs a C++ compiler
    }


def _context_length(config: RelaxConfig, shape: dict[str, Any]) -> int | None:
    """Tokens that prompt and response need, as SGLang counts them; None: what the model's config.json says."""
    rollout, responses = config.rollout, [config.rollout.rollout_max_response_len, config.eval.eval_max_response_len]
    longest = max((length for length in responses if length is not None), default=None)
    if rollout.rollout_max_context_len is not None:
        needed = rollout.rollout_max_context_len
    elif rollout.rollout_max_prompt_len is not None and longest is not None:
        needed = rollout.rollout_max_prompt_len + longest
    else:
        return None
    return min(needed + CONTEXT_RESERVE, shape.get("max_position_embeddings", needed + CONTEXT_RESERVE))


def _cache_bytes_per_token(shape: dict[str, Any], dtype: str) -> int:
    heads = shape.get("num_attention_heads", 1)
    size = shape.get("head_dim") or shape.get("hidden_size", 1) // heads
    element = 4 if dtype == "float32" else 2
    kv_heads = shape.get("num_key_value_heads") or heads
    return 2 * shape.get("num_hidden_layers", 1) * kv_heads * size * element  # 2: keys and values


def _model_shape(model: str) -> dict[str, Any]:
    """The model's config.json; empty when it is not a local folder or cannot be read (SGLang will say why)."""
    try:
        shape = json.loads((Path(model) / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return shape if isinstance(shape, dict) else {}
