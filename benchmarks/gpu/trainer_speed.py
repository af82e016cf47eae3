"""Tokens a second of a training step, on one GPU: the trainer alone, without engines, Ray and Prefect.

    python benchmarks/gpu/trainer_speed.py [--repeats 6] [--samples 8] [--length 2048] [--profile FILE] [-- options]
    python benchmarks/gpu/trainer_speed.py --rehearse      # without a GPU: a tiny model, in float32

A random model of Qwen3-0.6B's shape (28 layers, hidden 1024, FFN 3072, 16 heads and 8 KV heads of 128, vocabulary
151,936, tied) makes one optimiser step a stored batch: packed, bfloat16, forward, GRPO's loss, backward, Adam. A line
for each step: seconds, tokens/s, share of the measured matrix product, the phases of the trainer, and whether torch
compiled something, which belongs in the first step alone (``--vary`` tries other packings). ``--profile`` writes the
kernels of one step, by their time.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from models import SIZES, write_model

PROMPT = 32
"""Tokens of a sample's prompt."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="0.6b")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--length", type=int, default=2048, help="tokens of a sample, 32 of them the prompt")
    parser.add_argument("--vary", action="store_true", help="samples of half to all of the length, others each step")
    parser.add_argument("--out", type=Path, help="folder of trainer_speed.json; by default none")
    parser.add_argument("--profile", type=Path, help="file for the kernels of one more step")
    parser.add_argument("--rehearse", action="store_true", help="no GPU: a tiny model, in float32")
    parser.add_argument("more", nargs="*", help="further options of relax train, behind --")
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), parser.parse_args())


def measure(folder: Path, chosen: argparse.Namespace) -> None:
    import torch

    from data.store import RunStore

    size, device = ("tiny", "cpu") if chosen.rehearse else (chosen.size, "cuda")
    shape, rows, anew = SIZES[size], [], 0
    length = 96 if chosen.rehearse else chosen.length
    write_model(folder / "model", size)
    trainer = started(folder, [*words(folder, chosen, length), *chosen.more], device)
    store = RunStore(str(folder / "batches"))
    peak = None if chosen.rehearse else matmul_rate()
    flops = flops_of(shape, chosen.samples, length)
    for number in range(chosen.repeats + bool(chosen.profile)):
        batch = batch_of(store, number, chosen.samples, length, shape["vocab"], chosen.vary)
        if number == chosen.repeats:
            profiled(trainer, number, batch, store.url, chosen.profile)
            break
        known, began = graphs(), time.perf_counter()
        result = trainer.train(number, number + 1, batch, store.url, f"w{number}")
        if device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        compiled = graphs() - known
        anew += compiled if number else 0
        share = (
            "" if peak is None or chosen.vary else f"  {100 * flops / seconds / peak:.0f}% of {peak / 1e12:.0f} TFLOP/s"
        )
        memory = "" if peak is None else f"  {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"
        phases = " ".join(f"{name} {1000 * value:.0f}" for name, value in result.seconds.items())
        rate = f"{result.tokens / seconds:,.0f} tokens/s"
        told = f"  {compiled} graphs compiled" if compiled else ""
        print(f"step {number}: {1000 * seconds:.0f} ms  {rate}{share}{memory}  [{phases}]{told}", flush=True)
        rows.append((result.tokens / seconds, f"{rate}{share}{memory}".replace("  ", ", ")))
    if chosen.out is not None:
        median = sorted(rows[1:] or rows)[len(rows[1:]) // 2]
        what = f"training step, {size}, {chosen.samples} x {length}: median of {len(rows) - 1}; the first"
        first = f"{median[1]}; {rows[0][0]:,.0f} tokens/s"
        table = [
            [what, first, "75,000 tokens/s"],
            [f"graphs that torch compiled after the first of {len(rows)} steps", str(anew), "0"],
        ]
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / "trainer_speed.json").write_text(json.dumps({"rows": table}))


def graphs() -> int:
    """That torch has compiled in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def started(folder: Path, given: list[str], device: str) -> Any:
    """A trainer of one rank at version 0.

    Args:
        given: options of the command line; ``folder`` has the model of them, and prompts that nobody reads.
    """
    os.environ |= {"NCCL_CUMEM_ENABLE": "0", "OMP_WAIT_POLICY": "passive", "GLOO_SOCKET_IFNAME": "lo"}
    from relax_core.config.examine import prepare
    from relax_core.config.parser import read_given
    from relax_core.engines.meeting import LOOPBACK, meeting_place
    from relax_core.training.trainer import Trainer

    (folder / "prompts.jsonl").write_text('{"input": "1 + 1 =", "label": "2"}\n')
    read = read_given(given, {})
    assert not read.notes, read.notes
    trainer = Trainer(prepare(read.config, "train", None), 0, 1, device)
    trainer.join(meeting_place(LOOPBACK))
    trainer.initialise()
    return trainer


def words(folder: Path, chosen: argparse.Namespace, length: int) -> list[str]:
    given = {
        "--run-dir": str(folder / "run"),
        "--hf-checkpoint": str(folder / "model"),
        "--prompt-data": str(folder / "prompts.jsonl"),
        "--label-key": "label",
        "--rm-type": "random",
        "--num-rollout": "100",
        "--rollout-batch-size": str(chosen.samples),
        "--n-samples-per-prompt": "1",
        "--rollout-max-response-len": str(length - PROMPT),
        "--max-tokens-per-gpu": str(chosen.samples * length),
        "--lr": "1e-6",
    }
    exact = [] if chosen.rehearse else ["--bf16"]
    return [*(word for pair in given.items() for word in pair), "--use-dynamic-batch-size", *exact]


def batch_of(store: Any, number: int, samples: int, length: int, vocab: int, vary: bool = False) -> Any:
    """Random tokens with advantages, stored.

    Args:
        vary: samples have half to all of the length.
    """
    from data.ragged import Ragged
    from data.schema import BATCH
    from data.schema import table as make_table

    rng = np.random.default_rng(number)
    lengths = rng.integers(length // 2, length + 1, samples) if vary else np.full(samples, length)
    responses = lengths - PROMPT
    tokens = rng.integers(0, vocab, lengths.sum()).astype(np.int32)
    rewards = rng.normal(size=samples)

    def rows(values: Any, sizes: Any) -> Any:
        return Ragged.from_lengths(np.asarray(values), sizes)

    advantages = np.repeat(rewards, responses).astype(np.float32)
    given: dict[str, Any] = {
        "sample_id": [f"{number:06d}-{i:04d}-000" for i in range(samples)],
        "group_id": [f"{number:06d}-{i:04d}" for i in range(samples)],
        "tokens": rows(tokens, lengths),
        "response_length": responses.astype(np.int32),
        "loss_mask": rows(np.ones(responses.sum(), np.uint8), responses),
        "rollout_log_probs": rows(np.full(responses.sum(), -11.9, np.float32), responses),
        "advantages": rows(advantages, responses),
        "returns": rows(advantages, responses),
        "reward": rewards.astype(np.float32),
    }
    return store.write_table(f"{number}.parquet", make_table(BATCH, given))


def flops_of(shape: dict[str, Any], samples: int, length: int) -> float:
    """Of a forward and a backward pass: 6 for each weight of a matrix and token, and attention's products."""
    hidden, head = shape["hidden"], shape["head"]
    queries, keys = shape["heads"] * head, shape["kv_heads"] * head
    layer = hidden * (queries + 2 * keys) + queries * hidden + 3 * hidden * shape["ffn"]
    weights = shape["layers"] * layer + hidden * shape["vocab"]
    attention = shape["layers"] * 6 * queries * length * length  # causal: half of 12
    return samples * (6.0 * weights * length + attention)


def matmul_rate() -> float:
    """FLOP/s of a large product of bfloat16 matrices on this GPU."""
    import torch

    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        a @ b
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(20):
        a @ b
    torch.cuda.synchronize()
    return 20 * 2 * 8192.0**3 / (time.perf_counter() - began)


def profiled(trainer: Any, number: int, batch: Any, url: str, out: Path) -> None:
    """One step under torch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        trainer.train(number, number + 1, batch, url, f"w{number}")
    averages = found.key_averages()
    table = averages.table(sort_by="self_cuda_time_total", row_limit=40, max_name_column_width=70)
    host = averages.table(sort_by="self_cpu_time_total", row_limit=25, max_name_column_width=70)
    out.write_text(f"{table}\n{host}\n{idle(found.events())}\n")
    print(f"kernels: {out}")
    sys.stdout.flush()


def idle(events: Any, shown: int = 15) -> str:
    """When the GPU had nothing to do in a profiled step, the longest times first, with the kernels on both sides."""
    from torch.autograd import DeviceType

    kernels = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in events
        if event.device_type == DeviceType.CUDA and not event.name.startswith(("Optimizer", "##"))
    )
    if not kernels:
        return "no kernels"
    gaps, busy_until, before, total = [], kernels[0][1], kernels[0][2], 0.0
    for start, end, name in kernels:
        if start > busy_until:
            gaps.append((start - busy_until, busy_until - kernels[0][0], before, name))
            total += start - busy_until
        if end > busy_until:
            busy_until, before = end, name
    lines = [f"idle {total / 1000:.1f} ms of {(busy_until - kernels[0][0]) / 1000:.1f} ms"]
    lines += [f"{gap:8.0f} us at {at / 1000:7.1f} ms: {one[:60]} -> {other[:60]}" for gap, at, one, other in
              sorted(gaps, reverse=True)[:shown]]  # fmt: skip
    return "\n".join(lines)


if __name__ == "__main__":
    main()
