"""The engines of the judge (GenRM), described as the rollout's are.

Guarantee: they hold the weights of --genrm-model-path and never get others; of the options of the rollout's engines
they take none but the reproducible mode, which --genrm-engine-config may change; what that says wins.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from relax_core.config.derived import role_devices
from relax_core.config.options import find_option, with_options
from relax_core.config.sections import RelaxConfig
from relax_core.config.sections.sglang import SglangSection
from relax_core.engines.spec import WEIGHTS_BACKUP, Device, EngineSpec, engine_spec, model_shape

CONTEXT = 8192
"""Tokens of its context where nothing is given, or what the model has if that is less."""

_NAMES = {"max_context_len": "context_length"}
"""Key of --genrm-engine-config -> SGLang's name; every other key is SGLang's."""


def has_judge(config: RelaxConfig) -> bool:
    """Whether a run has a judge."""
    return config.genrm.genrm_model_path is not None


def num_judges(config: RelaxConfig) -> int:
    """Engines of the judge: its devices, of the role genrm or of --genrm-num-gpus, over those of an engine."""
    if not has_judge(config):
        return 0
    devices = role_devices(config, "genrm") or config.genrm.genrm_num_gpus
    return devices // config.genrm.genrm_num_gpus_per_engine


def judge_spec(
    config: RelaxConfig,
    index: int,
    device: Device,
    log_dir: str | Path,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> EngineSpec:
    """Describe the judge's engine number ``index``; see ``engine_spec``.

    Args:
        config: resolved, with ``genrm.genrm_model_path``.
    """
    given = dict(config.genrm.genrm_engine_config or {})
    pipeline = int(given.pop("pp_size", 1))
    copies = 1 if given.get("enable_dp_attention") else int(given.get("dp_size", 1))
    tensor = config.genrm.genrm_num_gpus_per_engine // (pipeline * copies)
    spec = engine_spec(_as_rollout(config, device, given, tensor), index, device, log_dir, variables)
    words: tuple[str, ...] = ("--pp-size", str(pipeline)) if pipeline > 1 else ()
    if spec.releases_memory and not spec.keeps_weights:
        words += (WEIGHTS_BACKUP,)  # nobody would send them again
    log_path = str(Path(log_dir) / f"genrm-{index}.log")
    return replace(spec, kind="judge", arguments=spec.arguments + words, log_path=log_path)


def _as_rollout(config: RelaxConfig, device: Device, given: Mapping[str, Any], tensor: int) -> RelaxConfig:
    """A configuration whose rollout engines are the judge's."""
    model = str(config.genrm.genrm_model_path)
    values: dict[str, Any] = {
        "sglang_dtype": "auto" if device == "cuda" else "float32",
        "sglang_context_length": min(CONTEXT, model_shape(model).get("max_position_embeddings", CONTEXT)),
        "sglang_enable_deterministic_inference": config.sglang.sglang_enable_deterministic_inference,
        "hf_checkpoint": model,
        "rollout_num_gpus_per_engine": tensor,
    }
    for key, value in given.items():
        option = find_option(f"sglang_{_NAMES.get(key, key)}")
        assert option is not None, f"the rules know no key {key}"
        values[option.name] = option.convert(value)
    return with_options(config.model_copy(update={"sglang": SglangSection()}), values)
