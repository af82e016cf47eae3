"""Arguments and environment of an engine from the configuration."""

import json
import pickle

import pytest

from relax_core.config.eval_set import EvalSet
from relax_core.config.options import OPTIONS, with_options
from relax_core.config.sections import RelaxConfig
from relax_core.engines.spec import EngineSpec, engine_spec


@pytest.fixture
def config(tmp_path) -> RelaxConfig:
    # 2 layers x 2 (keys, values) x 2 heads x 16 x 4 bytes = 512 bytes of KV cache a token
    shape = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(shape | {"max_position_embeddings": 2048}))
    made = RelaxConfig()
    made.checkpoint.hf_checkpoint = str(tmp_path)
    return made


def options(spec: EngineSpec) -> dict[str, str]:
    """Flag to value ("" for a flag without one)."""
    found: dict[str, str] = {}
    for word in spec.arguments:
        if word.startswith("--"):
            name = word
            found[name] = ""
        else:
            found[name] = word
    return found


def test_on_a_cpu_seeds_are_honoured_and_nothing_of_cuda_is_asked_for(config):
    flags = options(engine_spec(config, 0, "cpu", "logs"))
    assert flags["--device"] == "cpu"
    assert flags["--attention-backend"] == "torch_native"
    assert flags["--sampling-backend"] == "pytorch"
    assert flags["--dtype"] == "float32"
    for flag in ("--disable-cuda-graph", "--disable-overlap-schedule", "--enable-deterministic-inference"):
        assert flags[flag] == ""
    assert "--disable-radix-cache" not in flags
    assert "--tp-size" not in flags


def test_reproducible_on_a_cpu_is_one_request_at_a_time_without_prefix_cache(config):
    config.sglang.sglang_enable_deterministic_inference = True
    config.sglang.sglang_max_running_requests = 32
    flags = options(engine_spec(config, 0, "cpu", "logs"))
    assert flags["--max-running-requests"] == "1"
    assert flags["--disable-radix-cache"] == ""
    assert flags["--chunked-prefill-size"] == "-1"


def test_on_cuda_sglang_decides_what_was_not_set(config):
    config.backend.bf16 = True
    config.cluster.rollout_num_gpus_per_engine = 2
    config.sglang.sglang_mem_fraction_static = 0.7
    flags = options(engine_spec(config, 0, "cuda", "logs"))
    assert flags["--dtype"] == "bfloat16"
    assert flags["--tp-size"] == "2"
    assert flags["--mem-fraction-static"] == "0.7"
    assert not flags.keys() & {"--attention-backend", "--enable-deterministic-inference", "--disable-cuda-graph"}
    config.sglang.sglang_enable_deterministic_inference = True
    assert "--enable-deterministic-inference" in options(engine_spec(config, 0, "cuda", "logs"))


def test_the_context_is_what_the_options_say_in_order(config):
    def context() -> str | None:
        return options(engine_spec(config, 0, "cpu", "logs")).get("--context-length")

    # Two tokens more than asked: SGLang keeps them to itself.
    assert context() is None  # the model's own
    config.rollout.rollout_max_prompt_len = 100
    config.rollout.rollout_max_response_len = 64
    assert context() == "166"
    longer = EvalSet(name="a", path="a.jsonl", max_prompt_len=100, max_response_len=200)
    config.eval.eval_datasets = [EvalSet(name="b", path="b.jsonl", max_context_len=90), longer]
    assert context() == "302"  # of the longest set
    config.eval.eval_datasets = [EvalSet(name="b", path="b.jsonl")]
    assert context() is None  # nothing bounds the set
    config.eval.eval_datasets = None
    config.rollout.rollout_max_context_len = 256
    assert context() == "258"
    config.sglang.sglang_context_length = 512
    assert context() == "512"


def test_the_cache_on_a_cpu_holds_all_running_requests_within_its_bound(config):
    def tokens() -> int:
        return int(options(engine_spec(config, 0, "cpu", "logs"))["--max-total-tokens"])

    config.rollout.rollout_max_context_len = 256
    assert tokens() == 64 * 258  # 64 is the default bound of running requests
    config.sglang.sglang_server_concurrency = 8
    assert tokens() == 8 * 258
    config.sglang.sglang_max_running_requests = 10**6
    assert tokens() == 2 * 1024**3 // 512  # two GiB / 512 bytes a token
    config.sglang.sglang_context_length = 10**7
    assert tokens() >= 10**7  # one full sequence always fits
    config.sglang.sglang_max_total_tokens = 999
    assert tokens() == 999


def test_threads_follow_the_user_then_the_size_of_the_model(config, tmp_path, monkeypatch):
    def threads() -> str:
        return dict(engine_spec(config, 0, "cpu", "logs").environment)["OMP_NUM_THREADS"]

    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert threads() == "1"  # hidden size 64
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 576}))
    assert threads() == "8"
    config.cluster.resource = {"actor": (1, 1), "rollout": (2, 1)}
    assert threads() == "4"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads() == "3"


def test_ranks_of_an_engine_on_a_cpu_share_the_cores(config, tmp_path, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 576}))
    config.cluster.rollout_num_gpus_per_engine = 2
    spec = engine_spec(config, 0, "cpu", "logs")
    assert options(spec)["--tp-size"] == "2"
    environment = dict(spec.environment)
    assert environment["SGLANG_CPU_OMP_THREADS_BIND"] == "0|1"  # an entry for each rank
    assert environment["OMP_NUM_THREADS"] == "2"


def test_each_engine_has_its_own_seed_and_log_and_can_be_sent_to_another_process(config):
    first, second = (engine_spec(config, index, "cpu", "logs") for index in (0, 1))
    assert options(first)["--random-seed"] != options(second)["--random-seed"]
    assert (first.log_path, second.log_path) == ("logs/engine-0.log", "logs/engine-1.log")
    assert pickle.loads(pickle.dumps(first)) == first == engine_spec(config, 0, "cpu", "logs")


def test_a_model_that_cannot_be_read_is_left_to_sglang_to_complain_about(config, tmp_path):
    (tmp_path / "config.json").write_text("no json")
    assert "--max-total-tokens" in options(engine_spec(config, 0, "cpu", "logs"))


def words_after(spec: EngineSpec, flag: str) -> list[str]:
    """The words of a flag on the command line."""
    words = list(spec.arguments)
    assert words.count(flag) == 1, words
    rest = words[words.index(flag) + 1 :]
    return rest[: next((i for i, word in enumerate(rest) if word.startswith("--")), len(rest))]


def test_every_option_of_the_server_that_is_passed_reaches_its_command_line(config):
    passed = {
        "sglang_schedule_policy": "lpm",
        "sglang_gc_threshold": [700, 10, 5],
        "sglang_preferred_sampling_params": {"min_p": 0.1},
        "sglang_enable_torch_compile": True,
        "sglang_disable_custom_all_reduce": False,
        "sglang_dllm_fdfo": False,
        "sglang_fp8_gemm_backend": "triton",
    }
    for device in ("cpu", "cuda"):
        spec = engine_spec(with_options(config, passed), 0, device, "logs")
        assert words_after(spec, "--schedule-policy") == ["lpm"]
        assert words_after(spec, "--gc-threshold") == ["700", "10", "5"]
        assert json.loads(words_after(spec, "--preferred-sampling-params")[0]) == {"min_p": 0.1}
        assert words_after(spec, "--enable-torch-compile") == []
        assert "--disable-custom-all-reduce" not in spec.arguments  # off is what it is without the flag
        assert words_after(spec, "--no-dllm-fdfo") == []
        assert words_after(spec, "--fp8-gemm-backend") == ["triton"]  # its field has another name


def test_what_is_passed_wins_over_our_defaults_and_not_over_what_must_be_so(config):
    passed = {
        "sglang_sampling_backend": "ascend",
        "sglang_disable_cuda_graph": False,
        "sglang_chunked_prefill_size": 512,
        "sglang_mem_fraction_static": 0.5,
    }
    changed = with_options(config, passed)
    spec = engine_spec(changed, 0, "cpu", "logs")
    assert words_after(spec, "--sampling-backend") == ["ascend"]
    assert "--disable-cuda-graph" not in spec.arguments
    assert words_after(spec, "--chunked-prefill-size") == ["512"]
    assert words_after(spec, "--mem-fraction-static") == ["0.5"]
    changed.sglang.sglang_enable_deterministic_inference = True
    assert words_after(engine_spec(changed, 0, "cpu", "logs"), "--chunked-prefill-size") == ["-1"]


def test_what_relax_sets_itself_is_on_the_command_line_once(config):
    owned = with_options(config, {"sglang_device": "cpu", "sglang_port": 1, "sglang_tp_size": 1})
    assert engine_spec(owned, 0, "cpu", "logs") == engine_spec(config, 0, "cpu", "logs")
    assert all(name not in " ".join(engine_spec(owned, 0, "cpu", "logs").arguments) for name in ("--port", "--tp-size"))


def test_options_of_the_profiler_do_not_reach_the_command_line(config):
    profiler = [name for name in OPTIONS if name.startswith("sglang_profile")]
    assert len(profiler) == 10
    values = {
        "sglang_profile": True,
        "sglang_profile_steps": [0],
        "sglang_profile_step_start": 1,
        "sglang_profile_output_dir": "traces",
        "sglang_profile_by_stage": True,
    }
    changed = with_options(config, values)
    assert engine_spec(changed, 0, "cpu", "logs") == engine_spec(config, 0, "cpu", "logs")


def test_the_runs_variables_reach_the_engine_below_what_it_cannot_do_without(config):
    plain = engine_spec(config, 0, "cpu", "logs")
    variables = {"COLOUR": "red", "OMP_NUM_THREADS": "7", "CUDA_VISIBLE_DEVICES": "0", "HF_HUB_OFFLINE": "0"}
    spec = engine_spec(config, 0, "cpu", "logs", variables)
    environment = dict(spec.environment)
    assert (environment["COLOUR"], environment["OMP_NUM_THREADS"], environment["HF_HUB_OFFLINE"]) == ("red", "7", "0")
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["OMP_WAIT_POLICY"] == "passive"
    assert spec != plain  # so that a standing engine with other variables is replaced
    assert dict(engine_spec(config, 0, "cuda", "logs", {"NCCL_CUMEM_ENABLE": "1"}).environment) == {
        "HF_HUB_OFFLINE": "1",
        "NCCL_CUMEM_ENABLE": "0",
    }


def test_the_proxy_is_for_the_outside_only(config):
    config.debug.http_proxy = "http://proxy:3128"
    environment = dict(engine_spec(config, 0, "cuda", "logs", {"NO_PROXY": "inner.example"}).environment)
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"):
        assert environment[name] == "http://proxy:3128"
    for name in ("no_proxy", "NO_PROXY"):
        assert environment[name].split(",") == ["inner.example", "localhost", "127.0.0.1", "::1"]


def test_engines_that_give_up_memory_are_started_so_on_cuda_alone(config):
    config.cluster.offload_rollout = True
    given, kept = (engine_spec(config, 0, device, "logs") for device in ("cuda", "cpu"))
    assert given.releases_memory
    assert not given.keeps_weights  # the trainer sends them again
    assert not kept.releases_memory
    assert given.seeing({"CUDA_VISIBLE_DEVICES": "3,0"}).environment == tuple(
        sorted({**dict(given.environment), "CUDA_VISIBLE_DEVICES": "3,0"}.items())
    )
