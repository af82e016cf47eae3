"""How the judge's engines are described."""

from pathlib import Path
from typing import Any

from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig
from relax_core.engines.judge import judge_spec, num_judges
from relax_core.engines.spec import Device, engine_spec


def config(**options: Any) -> RelaxConfig:
    return with_options(RelaxConfig(), {"hf_checkpoint": "policy", "genrm_model_path": "judge", **options})


def arguments(options: RelaxConfig, device: Device = "cuda") -> dict[str, str]:
    words = judge_spec(options, 0, device, "logs").arguments
    pairs = zip(words, [*words[1:], "--"], strict=True)
    return {word: "" if value.startswith("--") else value for word, value in pairs if word.startswith("--")}


def test_there_are_as_many_as_the_devices_of_the_judge_make() -> None:
    assert num_judges(with_options(RelaxConfig(), {"genrm_num_gpus": 4})) == 0  # no judge
    assert num_judges(config(genrm_num_gpus=4)) == 4
    assert num_judges(config(genrm_num_gpus=4, genrm_num_gpus_per_engine=2)) == 2
    roles = {"actor": (1, 1), "rollout": (1, 1), "genrm": (1, 8)}
    assert num_judges(config(resource=roles, genrm_num_gpus_per_engine=2)) == 4


def test_it_serves_the_judges_model_under_a_name_and_a_log_of_its_own(tiny_model: Path) -> None:
    spec = judge_spec(config(genrm_model_path=str(tiny_model)), 1, "cpu", "logs", {"COLOUR": "red"})
    assert (spec.model, spec.name, spec.log_path) == (str(tiny_model), "judge 1", "logs/genrm-1.log")
    assert dict(spec.environment)["COLOUR"] == "red"
    assert spec.arguments[spec.arguments.index("--context-length") + 1] == "2048"  # what the model has, below 8192


def test_its_options_are_its_own() -> None:
    rollout: dict[str, Any] = {
        "sglang_mem_fraction_static": 0.5,
        "sglang_context_length": 100,
        "sglang_schedule_policy": "lpm",
        "rollout_max_context_len": 50,
    }
    given = arguments(config(**rollout))
    assert given["--context-length"] == "8192"
    assert given["--dtype"] == "auto"
    assert "--mem-fraction-static" not in given
    assert "--schedule-policy" not in given
    assert arguments(config(), "cpu")["--dtype"] == "float32"
    own = {"max_context_len": 4096, "mem_fraction_static": 0.3, "max_total_tokens": 9000, "schedule_policy": "fcfs"}
    given = arguments(config(**rollout, genrm_engine_config=own))
    assert given["--context-length"] == "4096"
    assert given["--mem-fraction-static"] == "0.3"
    assert given["--max-total-tokens"] == "9000"
    assert given["--schedule-policy"] == "fcfs"
    before = engine_spec(config(**rollout), 0, "cuda", "logs")
    assert engine_spec(config(**rollout, genrm_engine_config=own), 0, "cuda", "logs") == before


def test_its_devices_are_tensor_times_pipeline_times_data_parallel() -> None:
    def sizes(devices: int, **own: Any) -> tuple[str | None, ...]:
        given = arguments(config(genrm_num_gpus_per_engine=devices, genrm_engine_config=own))
        return tuple(given.get(name) for name in ("--tp-size", "--pp-size", "--dp-size", "--ep-size"))

    assert sizes(4) == ("4", None, None, None)
    assert sizes(8, pp_size=2, dp_size=2, ep_size=2) == ("2", "2", "2", "2")
    assert sizes(2, pp_size=2) == (None, "2", None, None)
    # with attention in data parallel the copies are among the tensor-parallel ranks
    assert sizes(4, dp_size=2, enable_dp_attention=True) == ("4", None, "2", None)


def test_it_is_reproducible_where_the_run_is() -> None:
    flag = "--enable-deterministic-inference"
    assert flag not in arguments(config())
    assert flag in arguments(config(sglang_enable_deterministic_inference=True))
    other = {"enable_deterministic_inference": False}
    assert flag not in arguments(config(sglang_enable_deterministic_inference=True, genrm_engine_config=other))


def test_a_judge_that_gives_up_its_memory_keeps_its_weights() -> None:
    spec = judge_spec(config(offload_rollout=True), 0, "cuda", "logs")
    assert spec.releases_memory
    assert spec.keeps_weights
    assert not judge_spec(config(offload_rollout=True), 0, "cpu", "logs").keeps_weights
    assert not judge_spec(config(), 0, "cuda", "logs").keeps_weights
