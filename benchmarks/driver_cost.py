"""What it costs the driver to take a token from an engine: processor time of the way from prompts to stored tables.

    python benchmarks/driver_cost.py [--requests 512] [--tokens 512] [--rounds 5] [--model FOLDER] [--profile]

An engine in a process of its own answers at once, in SGLang's JSON, with log-probabilities. Three ways ask it for the
same: a client of a few lines that counts tokens alone, the project's client, and the step of ``relax train`` with its
stages generate and reward (Prefect left out). Printed: microseconds of this process's processor time for each token
and each request, and the seconds of the stage by phase. ``benchmarks/gpu/generation.py`` does the same with SGLang.
"""

import argparse
import asyncio
import cProfile
import functools
import json
import multiprocessing
import os
import pstats
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

LABEL = "0.000000000000"
"""Weight version of an engine that has the first weights."""

PER_PROMPT = 8
"""Samples of a prompt."""


# The engine that answers at once


def answer(number: int, tokens: int, vocabulary: int) -> bytes:
    """SGLang's answer to ``/generate``: random tokens with log-probs, 32-bit floats as Python writes them."""
    import numpy as np
    import orjson

    rng = np.random.default_rng(number)
    ids = rng.integers(0, vocabulary, tokens).tolist()
    log_probs = (-5 * rng.random(tokens)).astype(np.float32).tolist()
    meta = {
        "id": f"{number}",
        "finish_reason": {"type": "length", "length": tokens},
        "prompt_tokens": 64,
        "weight_version": LABEL,
        "num_retractions": 0,
        "input_token_logprobs": [],
        "output_token_logprobs": [[log_prob, one, None] for log_prob, one in zip(log_probs, ids, strict=True)],
        "reasoning_tokens": 0,
        "completion_tokens": tokens,
        "cached_tokens": 0,
        "e2e_latency": 1.0,
    }
    return orjson.dumps({"text": "abcd " * tokens, "output_ids": ids, "meta_info": meta})


class Connection(asyncio.Protocol):
    """One HTTP connection, kept open; every request gets one of the answers."""

    answers: Sequence[bytes] = ()

    def connection_made(self, transport: Any) -> None:
        self.transport, self.got = transport, b""

    def data_received(self, data: bytes) -> None:
        self.got += data
        while (end := self.got.find(b"\r\n\r\n")) >= 0:
            head = self.got[:end].lower()
            size = int(head.split(b"content-length:")[1].split(b"\r\n")[0]) if b"content-length:" in head else 0
            if len(self.got) < end + 4 + size:
                return
            self.got = self.got[end + 4 + size :]
            body = random.choice(self.answers)
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
            self.transport.write(head + body)


def serve(pipe: Any, tokens: int, vocabulary: int) -> None:
    """Answer until killed."""

    async def work() -> None:
        Connection.answers = [answer(number, tokens, vocabulary) for number in range(64)]
        server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0, backlog=1024)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(work())


@contextmanager
def immediate_engine(tokens: int, vocabulary: int) -> Iterator[str]:
    """Address of an engine that answers at once."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there, tokens, vocabulary), daemon=True)
    process.start()
    there.close()  # so that the end of the process is told
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        process.kill()


# The ways to ask


class Engines:
    """The ``EnginesPort`` of engines that run."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = list(urls)

    def stale(self, label: str) -> bool:
        return False

    def release(self, parts: Sequence[str]) -> None:
        pass

    def resume(self, parts: Sequence[str]) -> None:
        pass

    def abort_all(self) -> None:
        pass

    def check(self) -> None:
        pass


def backend_of(urls: Sequence[str]) -> Any:
    """A ``Backend`` of engines that run and have the first weights, without a trainer."""
    from fakes import FakeBackend

    class Running(FakeBackend):
        def ensure_rollout(self, weights_id: str) -> Any:
            return Engines(urls)

    return Running()


def words(folder: Path, model: Path, requests: int, tokens: int, rounds: int) -> list[str]:
    """Options of ``relax train`` for ``rounds`` steps of so many samples that are generated and scored alone."""
    prompts = folder / "prompts.jsonl"
    rng = random.Random(0)
    rows = [
        {"input": " ".join(f"{rng.randrange(10)} + {rng.randrange(10)} =" for _ in range(11)), "label": "1"}
        for _ in range(requests // PER_PROMPT)
    ]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {
        "--run-dir": str(folder / "run"),
        "--hf-checkpoint": str(model),
        "--prompt-data": str(prompts),
        "--label-key": "label",
        "--rm-type": "random",
        "--num-rollout": str(rounds),
        "--rollout-batch-size": str(requests // PER_PROMPT),
        "--n-samples-per-prompt": str(PER_PROMPT),
        "--rollout-max-response-len": str(tokens),
        "--rollout-max-context-len": str(tokens + 128),
    }
    return [*(word for pair in given.items() for word in pair), "--debug-rollout-only"]


def bodies_of(config: Any, tokens: int) -> list[bytes]:
    """What a step asks the engine, as JSON: one request for each sample."""
    import orjson

    from data.cursor import Cursor
    from relax_core.rollout.requests import step_requests
    from relax_core.rollout.sampling import Sampling
    from relax_core.run.prompts import RunPrompts

    run = RunPrompts()
    run.config = config
    requests, _ = step_requests(run.prompts, Cursor(), 0, config)
    sampling = Sampling.for_training(config)
    return [
        orjson.dumps(
            {
                "input_ids": request.prompt.tokens.tolist(),
                "sampling_params": {**sampling.params(request.seed, tokens), "ignore_eos": True},
                "return_logprob": True,
            }
        )
        for request in requests
    ]


async def alone(url: str, bodies: Sequence[bytes], concurrency: int) -> tuple[int, float, float]:
    """A client that counts tokens and does nothing else: tokens, seconds, seconds of this process's processor time."""
    import aiohttp
    import orjson

    turns = asyncio.Semaphore(concurrency)
    async with aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=600),
        connector=aiohttp.TCPConnector(limit=0),
        headers={"content-type": "application/json"},
    ) as session:

        async def one(body: bytes) -> int:
            async with turns, session.post(f"{url}/generate", data=body) as response:
                found = orjson.loads(await response.read())
                if len(found["meta_info"]["output_token_logprobs"]) != len(found["output_ids"]):
                    raise ValueError(f"no log-probs: {found['meta_info']}")
                return len(found["output_ids"])

        began, worked = time.perf_counter(), time.process_time()
        tokens = sum(await asyncio.gather(*(one(body) for body in bodies)))
        return tokens, time.perf_counter() - began, time.process_time() - worked


async def client(url: str, bodies: Sequence[bytes], concurrency: int) -> tuple[int, float, float]:
    """The project's client, and nothing round it: as ``alone``."""
    import numpy as np
    import orjson

    from relax_core.engines.client import EngineClient

    asked = [orjson.loads(body) for body in bodies]
    inputs = [np.array(one["input_ids"], np.int32) for one in asked]
    turns = asyncio.Semaphore(concurrency)
    async with EngineClient(url, connections=concurrency) as engine:

        async def one(number: int) -> int:
            async with turns:
                found = await engine.generate(inputs[number], asked[number]["sampling_params"], f"{number:06d}")
            return len(found.output_ids)

        began, worked = time.perf_counter(), time.process_time()
        tokens = sum(await asyncio.gather(*(one(number) for number in range(len(asked)))))
        return tokens, time.perf_counter() - began, time.process_time() - worked


class Round:
    """What a step of the loop took.

    Attributes:
        tokens: of the responses.
        seconds: from the begin of the stage generate to the end of the stage reward.
        cpu: seconds of this process's processor time meanwhile.
        marks: seconds from the begin, by what had happened then.
    """

    def __init__(self) -> None:
        self.tokens, self.seconds, self.cpu = 0, 0.0, 0.0
        self.marks: dict[str, float] = {}

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds

    @property
    def phases(self) -> dict[str, float]:
        """Seconds between one mark and the next."""
        times = sorted(self.marks.items(), key=lambda mark: mark[1])
        return {name: at - before for (name, at), before in zip(times, [0.0, *(at for _, at in times)], strict=False)}


def staged(
    config: Any, url: str, profile: cProfile.Profile | None = None, warm: int = 1, prefect: bool = False
) -> list[Round]:
    """The steps of a run that generates and scores, at an engine that runs; the first ``warm`` ones are left out.

    Args:
        config: from ``words``.
        profile: gets all that the steps do in the main thread.
        prefect: stages are Prefect's tasks, as in ``relax train``; else plain functions.
    """
    from loop import plain_functions

    import flows.train
    from relax_core.engines.client import EngineClient
    from relax_core.rollout.collect import Collector
    from relax_core.rollout.sampling import Sampling
    from tasks import generate as generating

    rounds: list[Round] = []
    begun, worked = [0.0], [0.0]

    def mark(name: str, first: bool = False) -> None:
        if not (first and name in rounds[-1].marks):
            rounds[-1].marks[name] = time.perf_counter() - begun[0]

    def params(real: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        return {**real(*arguments), "ignore_eos": True}

    async def ask(real: Callable[..., Any], *arguments: Any) -> Any:
        mark("first request", first=True)
        found = await real(*arguments)
        mark("last answer")
        return found

    def marked(real: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(*arguments: Any, **named: Any) -> Any:
            found = real(*arguments, **named)
            mark(name)
            return found

        return call

    def step(real: Callable[..., Any], run: Any, number: int) -> Any:
        import flows.debug

        rounds.append(Round())
        this = rounds[-1]

        def generate(*given: Any) -> Any:
            begun[0], worked[0] = time.perf_counter(), time.process_time()
            if profile is not None and number >= warm:
                profile.enable()
            return original(*given)

        def reward(*given: Any) -> Any:
            mark("rollout record")
            found = scored(*given)
            if profile is not None:
                profile.disable()
            this.seconds, this.cpu = time.perf_counter() - begun[0], time.process_time() - worked[0]
            mark("reward record")
            return found

        original, scored = flows.debug.generate, flows.debug.reward
        with mock.patch.object(flows.debug, "generate", generate), mock.patch.object(flows.debug, "reward", reward):
            manifest = real(run, number)
        lengths = run.store.read_table(run.store.step_path(number, "rollout.parquet"), ["response_length"])
        this.tokens = sum(lengths["response_length"].to_pylist())
        return manifest

    with (
        nullcontext() if prefect else plain_functions(),
        mock.patch.object(Sampling, "params", functools.partialmethod(_with, params, Sampling.params)),
        mock.patch.object(EngineClient, "generate", functools.partialmethod(_with, ask, EngineClient.generate)),
        mock.patch.object(generating, "run_generation", marked(generating.run_generation, "all results")),
        mock.patch.object(Collector, "table", marked(Collector.table, "rows")),
        mock.patch.object(generating, "_write", marked(generating._write, "rollout file")),
        mock.patch.object(flows.train, "rollout_only_step", functools.partial(step, flows.train.rollout_only_step)),
    ):
        flows.train.train(config, backend=backend_of([url]))
    return rounds[warm:]


def _with(self: Any, call: Callable[..., Any], real: Callable[..., Any], *arguments: Any) -> Any:
    return call(real, self, *arguments)


def print_profile(profile: cProfile.Profile) -> None:
    """The functions that took most."""
    for order in ("tottime", "cumulative"):
        pstats.Stats(profile, stream=sys.stdout).sort_stats(order).print_stats(35)


def median_phases(rounds: Sequence[Round]) -> dict[str, float]:
    """Milliseconds by phase."""
    names = rounds[0].phases
    return {name: 1000 * statistics.median(one.phases.get(name, 0.0) for one in rounds) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=512, help="of each response")
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", type=Path, help="folder with a tokenizer; default: a tiny one")
    parser.add_argument("--profile", action="store_true", help="the steps under cProfile")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PREFECT_HOME"], os.environ["RELAX_HOME"] = f"{folder}/prefect", f"{folder}/relax"
        Path(os.environ["PREFECT_HOME"]).mkdir()
        measure(Path(folder), chosen)


def measure(folder: Path, chosen: argparse.Namespace) -> None:
    from tiny import make_tiny
    from transformers import AutoTokenizer

    from relax_core.config.examine import prepare
    from relax_core.config.parser import read_given

    model = chosen.model or make_tiny(folder / "model", vocab=512)
    given = words(folder, model, chosen.requests, chosen.tokens, chosen.rounds + 1)
    given += ["--sglang-server-concurrency", str(chosen.concurrency)]
    config = read_given(given, {}).config
    prepared = prepare(config.model_copy(deep=True), "train", None)
    bodies = bodies_of(prepared, chosen.tokens)
    with immediate_engine(chosen.tokens, len(AutoTokenizer.from_pretrained(model))) as url:
        found: dict[str, list[tuple[int, float, float]]] = {"a client of a few lines": [], "the project's client": []}
        for _ in range(chosen.rounds + 1):
            for name, ask in zip(found, (alone, client), strict=True):
                found[name].append(asyncio.run(ask(url, bodies, chosen.concurrency)))
        profile = cProfile.Profile() if chosen.profile else None
        rounds = staged(config, url, profile)
    print(f"\n{chosen.requests} responses of {chosen.tokens} tokens, {chosen.concurrency} at a time; median of rounds")
    print("| who asks | CPU us a token | CPU us a request | wall s |")
    print("|---|---|---|---|")
    found["the stages generate and reward"] = [(0, 0.0, 0.0), *((one.tokens, one.seconds, one.cpu) for one in rounds)]
    for name, times in found.items():
        cpu, wall = (statistics.median(one[place] for one in times[1:]) for place in (2, 1))
        tokens = times[1][0]
        print(f"| {name} | {1e6 * cpu / tokens:.2f} | {1e6 * cpu / chosen.requests:.0f} | {wall:.3f} |")
    print("ms of the stages by phase, up to: " + "  ".join(f"{n} {ms:.0f}" for n, ms in median_phases(rounds).items()))
    if profile is not None:
        print_profile(profile)


if __name__ == "__main__":
    main()
