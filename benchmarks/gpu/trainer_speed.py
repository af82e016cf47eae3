"""Tokens a second of a training step, on one GPU: the trainer alone, without engines, Ray and Prefect.

    python benchmarks/gpu/trainer_speed.py [--repeats 6] [--samples 8] [--length 2048] [--profile FILE] [-- options]
    python benchmarks/gpu/trainer_speed.py --rehearse      # without a GPU: a tiny model, in float32

A random model of Qwen3-0.6B's shape (28 layers, hidden 1024, FFN 3072, 16 heads and 8 KV heads of 128, vocabulary
151,936, tied) makes one optimiser step a stored batch: packed, bfloat16, forward, GRPO's loss, backward, Adam. A line
for each step: seconds, tokens/s, share of the measured matrix product, and the phases of the trainer. ``--profile``
writes the kernels of one step, by their time.
"""

import argparse
import os
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from models import SIZES, write_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="0.6b")
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--length", type=int, default=2048, help="tokens of a sample, 64 of them the prompt")
    parser.add_argument("--profile", type=Path, help="file for the kernels of one more step")
    parser.add_argument("--rehearse", action="store_true", help="no GPU: a tiny model, in float32")
    parser.add_argument("more", nargs="*", help="further options of relax train, behind --")
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), parser.parse_args())


def measure(folder: Path, chosen: argparse.Namespace) -> None:
    os.environ |= {"NCCL_CUMEM_ENABLE": "0", "OMP_WAIT_POLICY": "passive", "GLOO_SOCKET_IFNAME": "lo"}
    import torch

    from data.store import RunStore
    from relax_core.config.examine import prepare
    from relax_core.config.parser import read_given
    from relax_core.training.trainer import Trainer

    size, device = ("tiny", "cpu") if chosen.rehearse else (chosen.size, "cuda")
    shape = SIZES[size]
    length = 96 if chosen.rehearse else chosen.length
    write_model(folder / "model", size)
    (folder / "prompts.jsonl").write_text('{"input": "1 + 1 =", "label": "2"}\n')
    given = read_given([*words(folder, chosen, length), *chosen.more], {})
    assert not given.notes, given.notes
    trainer = Trainer(prepare(given.config, "train", None), 0, 1, device)
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    trainer.join(f"tcp://127.0.0.1:{port}")
    trainer.initialise()
    store = RunStore(str(folder / "batches"))
    peak = None if chosen.rehearse else matmul_rate()
    flops = flops_of(shape, chosen.samples, length)
    for number in range(chosen.repeats + bool(chosen.profile)):
        batch = batch_of(store, number, chosen.samples, length, shape["vocab"])
        if number == chosen.repeats:
            profiled(trainer, number, batch, store.url, chosen.profile)
            break
        began = time.perf_counter()
        result = trainer.train(number, number + 1, batch, store.url, f"w{number}")
        if device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        share = "" if peak is None else f"  {100 * flops / seconds / peak:.0f}% of {peak / 1e12:.0f} TFLOP/s"
        memory = "" if peak is None else f"  {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB"
        phases = " ".join(f"{name} {1000 * value:.0f}" for name, value in result.seconds.items())
        rate = f"{result.tokens / seconds:,.0f} tokens/s"
        print(f"step {number}: {1000 * seconds:.0f} ms  {rate}{share}{memory}  [{phases}]")


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
        "--rollout-max-response-len": str(length - 64),
        "--max-tokens-per-gpu": str(chosen.samples * length),
        "--lr": "1e-6",
    }
    exact = [] if chosen.rehearse else ["--bf16"]
    return [*(word for pair in given.items() for word in pair), "--use-dynamic-batch-size", *exact]


def batch_of(store: Any, number: int, samples: int, length: int, vocab: int) -> Any:
    """Random tokens with advantages, stored."""
    from data.ragged import Ragged
    from data.schema import BATCH
    from data.schema import table as make_table

    rng = np.random.default_rng(number)
    response = length - 64
    tokens = rng.integers(0, vocab, samples * length).astype(np.int32)
    rewards = rng.normal(size=samples)

    def rows(values: Any, size: int) -> Any:
        return Ragged.from_lengths(np.asarray(values), np.full(samples, size))

    advantages = np.repeat(rewards, response).astype(np.float32)
    given: dict[str, Any] = {
        "sample_id": [f"{number:06d}-{i:04d}-000" for i in range(samples)],
        "group_id": [f"{number:06d}-{i:04d}" for i in range(samples)],
        "tokens": rows(tokens, length),
        "response_length": np.full(samples, response, np.int32),
        "loss_mask": rows(np.ones(samples * response, np.uint8), response),
        "rollout_log_probs": rows(np.full(samples * response, -11.9, np.float32), response),
        "advantages": rows(advantages, response),
        "returns": rows(advantages, response),
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
    out.write_text(f"{table}\n{host}\n")
    print(f"kernels: {out}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
