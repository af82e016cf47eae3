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
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from relax_core.config.options import passed_values
from relax_core.config.passthrough import pass_throughs, server_words
from relax_core.config.sections import RelaxConfig
from relax_core.proxy import proxy_environment

Device = Literal["cpu", "cuda"]

CPU_RUNNING_REQUESTS = 64
"""Sequences decoded together on a CPU unless the configuration says otherwise: more no longer raises throughput."""
CPU_CACHE_BYTES = 2 * 1024**3
"""Most memory of the KV cache on a CPU unless the configuration says otherwise."""
CONTEXT_RESERVE = 2
"""Tokens of its context that SGLang never gives to a response: with 32, a prompt of 20 gets 10 tokens."""
MEMORY_SAVER, WEIGHTS_BACKUP = "--enable-memory-saver", "--enable-weights-cpu-backup"
"""SGLang's switches for giving up memory, and for keeping the content of weights meanwhile."""
SMALL_MODEL_WIDTH = 256
"""Below this hidden size one thread is faster than several: the threads would only wait for each other."""


@dataclass(frozen=True)
class EngineSpec:
    """One engine: how to start it and how to talk to it.

    Attributes:
        index: number of the engine, from 0.
        device: ``cpu`` or ``cuda``.
        model: Hugging Face folder.
        arguments: SGLang's arguments, without host and port.
        environment: variables set for its processes, over those of whoever starts it; the run's own are among them.
        host: address it listens at.
        port: fixed port; None: any free one.
        log_path: file of its output.
        start_timeout: seconds until it must answer.
        concurrency: most requests in flight at it.
        tp_size: tensor-parallel size.
        kind: ``engine``, or ``judge``.
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
    kind: Literal["engine", "judge"] = "engine"

    @property
    def name(self) -> str:
        return f"{self.kind} {self.index}"

    @property
    def releases_memory(self) -> bool:
        """Whether it can give up its device memory and take it again."""
        return MEMORY_SAVER in self.arguments

    @property
    def keeps_weights(self) -> bool:
        """Whether weights that it gives up are in host memory, and come back by themselves."""
        return WEIGHTS_BACKUP in self.arguments

    def at(self, host: str, port: int | None = None) -> "EngineSpec":
        """The same engine at another address."""
        return replace(self, host=host, port=port)

    def seeing(self, devices: Mapping[str, str]) -> "EngineSpec":
        """The same engine with variables that say which devices it sees."""
        return replace(self, environment=tuple(sorted({**dict(self.environment), **devices}.items())))


def engine_spec(
    config: RelaxConfig,
    index: int,
    device: Device,
    log_dir: str | Path,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> EngineSpec:
    """Describe engine number ``index``.

    Args:
        config: resolved; ``checkpoint.hf_checkpoint`` must name a folder.
        index: number of the engine; it shifts SGLang's random seed, which only unseeded requests see.
        device: ``cpu`` or ``cuda``.
        log_dir: folder of the log files.
        variables: the run's environment variables; what the engine cannot do without wins over them.
    """
    model = config.checkpoint.hf_checkpoint
    if model is None:
        raise ValueError("engine_spec needs checkpoint.hf_checkpoint")
    shape = model_shape(model)
    return EngineSpec(
        index=index,
        device=device,
        model=model,
        arguments=_arguments(config, index, device, shape),
        environment=tuple(sorted(_environment(config, device, shape, variables).items())),
        log_path=str(Path(log_dir) / f"engine-{index}.log"),
        start_timeout=config.run.engine_start_timeout,
        concurrency=config.sglang.sglang_server_concurrency,
        tp_size=config.cluster.rollout_num_gpus_per_engine,
    )


def _arguments(config: RelaxConfig, index: int, device: Device, shape: dict[str, Any]) -> tuple[str, ...]:
    """SGLang's command line: our defaults, over them what the person chose, over that what must be so."""
    values = {"context_length": _context_length(config, shape), **_given(config)}
    tp_size = config.cluster.rollout_num_gpus_per_engine
    owned: dict[str, Any] = {
        "model_path": config.checkpoint.hf_checkpoint,
        "device": device,
        "tp_size": tp_size if tp_size > 1 else None,
        "random_seed": config.data.rollout_seed + index,
    }
    if device == "cuda" and config.cluster.offload_rollout:
        owned["enable_memory_saver"] = True
    if device == "cpu":
        values = _cpu_defaults(config, values, shape) | values
        owned |= _cpu_owned(config)
    words = {name: _words(name, value) for name, value in {**owned, **values}.items()}
    for name, value in passed_values(config, "sglang").items():
        option = pass_throughs()[name]
        if option.role != "owned":
            words[option.field] = server_words(option, value)
    words |= {name: _words(name, value) for name, value in owned.items()}
    return tuple(word for part in words.values() for word in part)


def _given(config: RelaxConfig) -> dict[str, Any]:
    """SGLang's arguments that are options of our own, where they are set."""
    sglang = config.sglang
    values = {
        "dtype": sglang.sglang_dtype or ("bfloat16" if config.backend.bf16 else "float32"),
        "mem_fraction_static": sglang.sglang_mem_fraction_static,
        "context_length": sglang.sglang_context_length,
        "max_running_requests": sglang.sglang_max_running_requests,
        "max_total_tokens": sglang.sglang_max_total_tokens,
        "attention_backend": sglang.sglang_attention_backend,
        "enable_deterministic_inference": sglang.sglang_enable_deterministic_inference or None,
        "disable_radix_cache": sglang.sglang_disable_radix_cache or None,
        "log_level": sglang.sglang_log_level,
    }
    return {name: value for name, value in values.items() if value is not None}


def _words(name: str, value: Any) -> tuple[str, ...]:
    """One argument: None and False are left out, True is a flag without a value."""
    if value is None or value is False:
        return ()
    flag = f"--{name.replace('_', '-')}"
    return (flag,) if value is True else (flag, str(value))


def _cpu_defaults(config: RelaxConfig, values: dict[str, Any], shape: dict[str, Any]) -> dict[str, Any]:
    """What differs on a CPU unless the person says otherwise."""
    running = config.sglang.sglang_max_running_requests
    if running is None:
        running = min(config.sglang.sglang_server_concurrency, CPU_RUNNING_REQUESTS)
    context = values["context_length"] or shape.get("max_position_embeddings", 4096)
    sequences = 1 if config.sglang.sglang_enable_deterministic_inference else running
    fits = CPU_CACHE_BYTES // _cache_bytes_per_token(shape, values["dtype"])
    return {
        "sampling_backend": "pytorch",
        "grammar_backend": "none",
        "disable_cuda_graph": True,
        "disable_overlap_schedule": True,
        "skip_server_warmup": True,
        # An idle scheduler polls without a pause: seen, a third of a core taken from the trainer, or more.
        "sleep_on_idle": True,
        "max_running_requests": running,
        # max_total_tokens decides here; SGLang's default for this fraction, made for GPUs, can be negative.
        "mem_fraction_static": 0.9,
        # One sequence of full length must fit, with a little room for the slots that SGLang keeps for itself.
        "max_total_tokens": max(min(sequences * context, fits), context + 64),
    }


def _cpu_owned(config: RelaxConfig) -> dict[str, Any]:
    """What cannot be otherwise on a CPU, or with a reproducible engine on it."""
    owned: dict[str, Any] = {
        "attention_backend": "torch_native",
        "enable_deterministic_inference": True,  # what makes SGLang use the seeds
    }
    if config.sglang.sglang_enable_deterministic_inference:
        owned |= {"max_running_requests": 1, "disable_radix_cache": True, "chunked_prefill_size": -1}
    return owned


def _environment(
    config: RelaxConfig, device: Device, shape: dict[str, Any], variables: Mapping[str, str]
) -> dict[str, str]:
    """Variables of the engine's processes: our defaults, over them the run's, over those what must be so."""
    proxy = proxy_environment(config.debug.http_proxy, {**os.environ, **variables})
    # the folder holds everything: no look-ups
    defaults = {"HF_HUB_OFFLINE": "1"} if Path(str(config.checkpoint.hf_checkpoint)).exists() else {}
    if device == "cuda":
        # As in the trainer: with cuMem handles the first NCCL broadcast between the two hangs.
        return {**defaults, **variables, **proxy, "NCCL_CUMEM_ENABLE": "0"}
    replicas, ranks = config.cluster.resource.get("rollout", (1, 1))[0], config.cluster.rollout_num_gpus_per_engine
    cores = os.cpu_count() or 1
    share = 1 if shape.get("hidden_size", SMALL_MODEL_WIDTH) < SMALL_MODEL_WIDTH else cores // (replicas * ranks)
    defaults |= {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, share)),
        # Threads that spin at a barrier take the core from the thread they wait for as soon as anything else runs
        # on the machine; seen: ten times slower on two cores.
        "OMP_WAIT_POLICY": "passive",
        "TORCH_COMPILE_DISABLE": "1",  # a first compilation stalls requests for seconds and needs a C++ compiler
    }
    owned = {"CUDA_VISIBLE_DEVICES": ""}
    if ranks > 1:  # SGLang wants one set of cores for each rank as soon as there are more ranks than NUMA nodes
        owned["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(str(rank % cores) for rank in range(ranks))
    return {**defaults, **variables, **proxy, **owned}


def _context_length(config: RelaxConfig, shape: dict[str, Any]) -> int | None:
    """Tokens that prompt and response need, as SGLang counts them; None: what the model's config.json says."""
    rollout = config.rollout
    needs = [
        _tokens(rollout.rollout_max_context_len, rollout.rollout_max_prompt_len, rollout.rollout_max_response_len),
        *(
            _tokens(one.max_context_len, one.max_prompt_len, one.max_response_len)
            for one in config.eval.eval_datasets or []
        ),
    ]
    known = [tokens for tokens in needs if tokens is not None]
    if len(known) < len(needs):
        return None
    needed = max(known) + CONTEXT_RESERVE
    return min(needed, shape.get("max_position_embeddings", needed))


def _tokens(context: int | None, prompt: int | None, response: int | None) -> int | None:
    """Most tokens of a sample; None where nothing bounds it."""
    if context is not None or prompt is None or response is None:
        return context
    return prompt + response


def _cache_bytes_per_token(shape: dict[str, Any], dtype: str) -> int:
    heads = shape.get("num_attention_heads", 1)
    size = shape.get("head_dim") or shape.get("hidden_size", 1) // heads
    element = 4 if dtype == "float32" else 2
    kv_heads = shape.get("num_key_value_heads") or heads
    return 2 * shape.get("num_hidden_layers", 1) * kv_heads * size * element  # 2: keys and values


def model_shape(model: str) -> dict[str, Any]:
    """The model's config.json; empty when it is not a local folder or cannot be read (SGLang will say why)."""
    try:
        shape = json.loads((Path(model) / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return shape if isinstance(shape, dict) else {}
