"""The real SGLang on a CPU: generation, control, weight updates, and its death."""

import asyncio
import gzip
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig
from relax_core.engines.actor import SGLangEngine
from relax_core.engines.client import Completion, EngineClient
from relax_core.engines.control import EngineControl
from relax_core.engines.errors import EngineRefused, EngineStartError
from relax_core.engines.profile import profiled
from relax_core.engines.spec import engine_spec
from relax_core.weights.transport import WeightsDiffer, check_equal, push_weights, stale_engines

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(400)]

PROMPTS = [np.array([1, 87, 85, 71, 84, 40 + i, 7]) for i in range(6)]
GREEDY = {"max_new_tokens": 12, "temperature": 0.0, "ignore_eos": True}
LONG = {"max_new_tokens": 900, "temperature": 1.0, "ignore_eos": True}


def generate(url: str, params: list[dict], order: list[int] | None = None) -> list[Completion]:
    """All prompts at once, sent in ``order``; results by prompt."""

    async def run() -> list[Completion]:
        async with EngineClient(url) as client:
            numbers = order or list(range(len(params)))
            done = await asyncio.gather(*(client.generate(PROMPTS[i], params[i]) for i in numbers))
        return [done[numbers.index(i)] for i in range(len(params))]

    return asyncio.run(run())


def seeded(seed: int) -> dict:
    return {"max_new_tokens": 24, "temperature": 1.0, "ignore_eos": True, "sampling_seed": seed}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def greedy_reference(folder: Path, prompt: np.ndarray, tokens: int) -> tuple[list[int], list[float]]:
    """Greedy continuation and its log-probs by transformers, without a cache."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids, log_probs = prompt.tolist(), []
    with torch.no_grad():
        for _ in range(tokens):
            scores = torch.log_softmax(model(torch.tensor([ids])).logits[0, -1], -1)
            log_probs.append(float(scores.max()))
            ids.append(int(scores.argmax()))
    return ids[len(prompt) :], log_probs


def assert_same(a: list[Completion], b: list[Completion]) -> None:
    for one, other in zip(a, b, strict=True):
        np.testing.assert_array_equal(one.output_ids, other.output_ids)
        np.testing.assert_array_equal(one.log_probs, other.log_probs)  # bit by bit


def test_greedy_tokens_and_log_probs_are_those_of_transformers(sglang_engine):
    push_weights(weights(sglang_engine.folders[0]).items(), [sglang_engine.url], 1, 2**20)
    done = generate(sglang_engine.url, [GREEDY] * 2)
    for completion, prompt in zip(done, PROMPTS, strict=False):
        ids, log_probs = greedy_reference(sglang_engine.folders[0], prompt, 12)
        assert completion.output_ids.tolist() == ids
        np.testing.assert_allclose(completion.log_probs, log_probs, atol=1e-4)
        assert completion.finish_reason["type"] == "length"
        assert completion.prompt_tokens == len(prompt)


def test_log_probs_of_a_sample_are_those_of_the_tempered_distribution(sglang_engine):
    push_weights(weights(sglang_engine.folders[0]).items(), [sglang_engine.url], 1, 2**20)
    (sample,) = generate(sglang_engine.url, [seeded(5) | {"temperature": 0.7}])
    ids = torch.tensor([[*PROMPTS[0].tolist(), *sample.output_ids.tolist()]])
    model = AutoModelForCausalLM.from_pretrained(sglang_engine.folders[0], dtype=torch.float32).eval()
    with torch.no_grad():
        scores = torch.log_softmax(model(ids).logits[0, len(PROMPTS[0]) - 1 : -1] / 0.7, -1)
    expected = scores.gather(1, torch.tensor(sample.output_ids, dtype=torch.int64)[:, None])[:, 0]
    np.testing.assert_allclose(sample.log_probs, expected, atol=1e-4)


def test_seeded_samples_depend_on_nothing_but_the_seed(sglang_engine):
    push_weights(weights(sglang_engine.folders[0]).items(), [sglang_engine.url], 1, 2**20)
    params = [seeded(100 + i) for i in range(6)]
    together = generate(sglang_engine.url, params)
    assert_same(together, generate(sglang_engine.url, params, order=[5, 3, 1, 0, 2, 4]))
    assert_same(together[:1], generate(sglang_engine.url, params[:1]))  # alone
    other = generate(sglang_engine.url, [seeded(7)])[0]
    assert other.output_ids.tolist() != together[0].output_ids.tolist()
    with_top_p = [seeded(100) | {"top_p": 0.9, "top_k": 20}]
    assert_same(generate(sglang_engine.url, with_top_p), generate(sglang_engine.url, with_top_p))


def test_a_request_without_seed_is_random(sglang_engine):
    free = {"max_new_tokens": 24, "temperature": 1.0, "ignore_eos": True}
    a, b = generate(sglang_engine.url, [free])[0], generate(sglang_engine.url, [free])[0]
    assert a.output_ids.tolist() != b.output_ids.tolist()


def test_a_stop_token_ends_the_response(sglang_engine):
    greedy = {"max_new_tokens": 12, "temperature": 0.0}  # ignore_eos would ignore stop tokens too
    first = generate(sglang_engine.url, [GREEDY])[0].output_ids.tolist()
    stopped = generate(sglang_engine.url, [greedy | {"stop_token_ids": [first[3]]}])[0]
    assert stopped.finish_reason["type"] == "stop"
    assert stopped.output_ids.tolist() == first[: first.index(first[3]) + 1]


def test_abort_returns_what_was_generated(sglang_engine):
    async def run() -> list[Completion]:
        async with EngineClient(sglang_engine.url) as client:
            requests = [asyncio.create_task(client.generate(p, LONG, rid=f"abort-{i}")) for i, p in enumerate(PROMPTS)]
            await asyncio.sleep(0.3)
            await asyncio.to_thread(sglang_engine.engine.abort_all)
            return await asyncio.gather(*requests)

    done = asyncio.run(run())
    assert {completion.finish_reason["type"] for completion in done} == {"abort"}
    lengths = [len(completion.output_ids) for completion in done]
    assert 0 < max(lengths) < 900  # the running one; those that waited have none
    assert all(len(c.log_probs) == len(c.output_ids) for c in done)


def test_one_request_can_be_aborted(sglang_engine):
    async def run() -> Completion:
        async with EngineClient(sglang_engine.url) as client:
            request = asyncio.create_task(client.generate(PROMPTS[0], LONG, rid="only-this"))
            await asyncio.sleep(0.3)
            with EngineControl(sglang_engine.url) as control:
                await asyncio.to_thread(control.abort, "only-this")
            return await request

    assert asyncio.run(run()).finish_reason["type"] == "abort"


def test_a_retracted_request_goes_on_after_the_pause(sglang_engine):
    async def run() -> Completion:
        async with EngineClient(sglang_engine.url) as client:
            request = asyncio.create_task(client.generate(PROMPTS[0], LONG))
            await asyncio.sleep(0.2)
            with EngineControl(sglang_engine.url) as control:
                await asyncio.to_thread(control.pause, "retract")
                await asyncio.to_thread(control.flush_cache)
                assert not request.done()
                await asyncio.to_thread(control.resume)
            return await request

    completion = asyncio.run(run())
    assert completion.finish_reason["type"] == "length"
    assert len(completion.output_ids) == 900


def test_options_that_are_passed_and_the_runs_variables_reach_the_server(sglang_engine):
    with EngineControl(sglang_engine.url) as control:
        arguments = control.server_info()
    assert arguments["gc_threshold"] == [700, 10, 5]
    assert (arguments["schedule_policy"], arguments["dllm_fdfo"]) == ("lpm", False)
    assert psutil.Process(sglang_engine.info.pid).environ()["COLOUR"] == "red"


# One session only: torch's profiler has been seen to end the process with a segmentation fault when it is started again
# and again on a CPU.
def test_a_profiled_step_leaves_a_trace_and_the_same_samples(sglang_engine, tmp_path):
    params = [seeded(i) for i in range(3)]
    plain = generate(sglang_engine.url, params)
    options = {"sglang_profile": True, "sglang_profile_output_dir": str(tmp_path)}
    with profiled(with_options(RelaxConfig(), options), [sglang_engine.url], 4):
        recorded = generate(sglang_engine.url, params)
    for before, after in zip(plain, recorded, strict=True):
        assert before.output_ids.tolist() == after.output_ids.tolist()
    [trace] = (tmp_path / "rollout_4").glob("engine0-*.trace.json.gz")
    assert json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]


def test_a_request_that_cannot_fit_is_refused_with_the_reason(sglang_engine):
    async def run() -> None:
        async with EngineClient(sglang_engine.url) as client:
            await client.generate(np.ones(2000, dtype=np.int32), GREEDY)

    with pytest.raises(EngineRefused, match="longer than the model's context length"):
        asyncio.run(run())


def test_a_push_makes_the_engine_the_other_model(sglang_engine):
    url = [sglang_engine.url]
    push_weights(weights(sglang_engine.folders[0]).items(), url, 10, 2**20)
    before = generate(sglang_engine.url, [seeded(3)])
    report = push_weights(weights(sglang_engine.folders[1]).items(), url, 11, 100_000)
    assert report.buckets > 1
    assert report.bytes == sum(t.nbytes for t in weights(sglang_engine.folders[1]).values())
    assert sglang_engine.engine.info().weight_version == 11
    done = generate(sglang_engine.url, [GREEDY])[0]
    assert done.output_ids.tolist() == greedy_reference(sglang_engine.folders[1], PROMPTS[0], 12)[0]
    assert (done.weight_version, done.weight_versions) == ("11", ("11",))
    push_weights(weights(sglang_engine.folders[0]).items(), url, 12, 2**30)
    assert_same(before, generate(sglang_engine.url, [seeded(3)]))


def test_a_push_of_the_version_that_is_there_reads_no_tensor(sglang_engine):
    push_weights(weights(sglang_engine.folders[0]).items(), [sglang_engine.url], 20, 2**20)
    assert stale_engines([sglang_engine.url], 20) == []

    def untouched():
        raise AssertionError("read")
        yield

    assert push_weights(untouched(), [sglang_engine.url], 20, 2**20).buckets == 0


def test_a_push_that_breaks_off_shows_and_can_be_repeated(sglang_engine):
    tensors = weights(sglang_engine.folders[1])

    def breaks_off():
        yield from list(tensors.items())[:5]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        push_weights(breaks_off(), [sglang_engine.url], 30, 50_000)
    assert sglang_engine.engine.info().weight_version is None
    assert stale_engines([sglang_engine.url], 30) == [sglang_engine.url]
    push_weights(tensors.items(), [sglang_engine.url], 30, 50_000)
    assert sglang_engine.engine.info().weight_version == 30
    done = generate(sglang_engine.url, [GREEDY])[0]
    assert done.output_ids.tolist() == greedy_reference(sglang_engine.folders[1], PROMPTS[0], 12)[0]


def test_the_comparison_passes_for_equal_weights_and_changes_nothing(sglang_engine):
    tensors = weights(sglang_engine.folders[0])
    push_weights(tensors.items(), [sglang_engine.url], 40, 2**20)
    before = generate(sglang_engine.url, [seeded(3)])
    check_equal(tensors.items(), [sglang_engine.url])
    assert sglang_engine.engine.info().weight_version == 40
    assert_same(before, generate(sglang_engine.url, [seeded(3)]))


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ("model.norm.weight", "model.norm.weight"),
        ("model.layers.1.self_attn.k_proj.weight", "model.layers.1.self_attn.qkv_proj.weight"),
        ("lm_head.weight", "lm_head.weight"),
    ],
)
def test_the_comparison_finds_a_single_element(sglang_engine, changed, named):
    tensors = weights(sglang_engine.folders[0])
    push_weights(tensors.items(), [sglang_engine.url], 50, 2**20)
    one = tensors[changed].view(-1)
    one[-1] = torch.nextafter(one[-1], torch.tensor(9.0))  # the smallest change there is
    with pytest.raises(WeightsDiffer) as raised:
        check_equal(tensors.items(), [sglang_engine.url])
    assert named in str(raised.value)
    assert "0.mlp" not in str(raised.value)
    assert sglang_engine.engine.info().weight_version is None


def test_an_engine_that_dies_while_starting_says_why(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    config = RelaxConfig()
    config.checkpoint.hf_checkpoint = str(tmp_path)
    config.rollout.rollout_max_context_len = 64
    engine = SGLangEngine(engine_spec(config, 3, "cpu", tmp_path / "logs"))
    with pytest.raises(EngineStartError) as raised:
        engine.start()
    assert raised.value.problem.startswith("engine 3 died while starting: ")
    assert "model_type" in str(raised.value)
    assert str(tmp_path / "logs" / "engine-3.log") in str(raised.value)
    assert not engine.alive()


def test_the_engines_processes_are_copies_of_its_server(sglang_engine):
    def place_of_torch(process: psutil.Process) -> set[str]:
        """Where it is in memory, which is drawn anew for each program that is started."""
        lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
        return {line.split("-")[0] for line in lines if line.endswith("libtorch_cpu.so")}

    server = psutil.Process(sglang_engine.info.pid)
    workers = [child for child in server.children() if place_of_torch(child)]
    assert len(workers) == 2  # scheduler and detokenizer
    assert all(place_of_torch(worker) & place_of_torch(server) for worker in workers)


def test_an_engine_does_not_outlive_its_killed_owner(sglang_engine, tmp_path):
    script = f"""
        import threading, time
        import psutil
        from relax_core.config.sections import RelaxConfig
        from relax_core.engines.process import EngineProcess
        from relax_core.engines.spec import engine_spec
        config = RelaxConfig()
        config.checkpoint.hf_checkpoint = {str(sglang_engine.folders[0])!r}
        config.rollout.rollout_max_context_len = 64
        process = EngineProcess(engine_spec(config, 0, "cpu", {str(tmp_path)!r}))
        threading.Thread(target=process.start, daemon=True).start()
        while len(psutil.Process().children(recursive=True)) < 3:  # server and its workers: not yet ready, but born
            time.sleep(0.1)
        print(process.pid, flush=True)
        time.sleep(600)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        server = psutil.Process(int(owner.stdout.readline()))
        tree = [server, *server.children(recursive=True)]
        assert len(tree) >= 3
        os.kill(owner.pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while (left := [p for p in tree if runs(p)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
