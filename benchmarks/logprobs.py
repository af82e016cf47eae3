"""Log-probabilities of tokens: ``token_log_probs`` against autograd through ``log_softmax``.

    python benchmarks/logprobs.py [--rows 1000] [--hidden 576] [--vocab 49152] [--threads 2] [--repeats 3]

Prints, for forward and backward pass together, the best time of each way, its ratio to plain autograd, and the peak of
memory above the start. Each way runs in its own process, since a process gives memory back unreliably; the ways take
turns, so that other work on the machine meets all of them.
"""

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch

from relax_core.algorithms.logprobs import token_log_probs

WAYS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "log_softmax, autograd": lambda h, w, y: torch.log_softmax((h @ w.t()).float(), -1).gather(1, y[:, None])[:, 0],
    "exponentials kept": lambda h, w, y: token_log_probs(h, w, y)[0],
    "chunks of 256 rows": lambda h, w, y: token_log_probs(h, w, y, chunk_size=256)[0],
    "with entropy": lambda h, w, y: token_log_probs(h, w, y, with_entropy=True)[0],
}


def measure(way: str, rows: int, hidden: int, vocab: int, dtype: str) -> dict[str, float]:
    """Seconds of one forward and backward pass after a warm-up, CPU seconds, and peak MiB above the start."""
    torch.manual_seed(0)
    h = torch.randn(rows, hidden, dtype=getattr(torch, dtype), requires_grad=True)
    w = (torch.randn(vocab, hidden) * 0.05).to(h.dtype).requires_grad_()
    y, upstream = torch.randint(0, vocab, (rows,)), torch.randn(rows)
    process, done, peak = psutil.Process(), threading.Event(), [0]

    def watch() -> None:
        while not done.wait(0.002):
            peak[0] = max(peak[0], process.memory_info().rss)

    start = process.memory_info().rss
    threading.Thread(target=watch, daemon=True).start()
    WAYS[way](h, w, y).backward(upstream)
    done.set()
    h.grad = w.grad = None
    begin, cpu = time.perf_counter(), time.process_time()
    WAYS[way](h, w, y).backward(upstream)
    return {
        "seconds": time.perf_counter() - begin,
        "cpu": time.process_time() - cpu,
        "mib": (peak[0] - start) / 2**20,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 1000), ("hidden", 576), ("vocab", 49152), ("threads", 2), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        torch.set_num_threads(options.threads)
        print(json.dumps(measure(options.way, options.rows, options.hidden, options.vocab, options.dtype)))
        return
    best: dict[str, dict[str, float]] = {}
    for _ in range(options.repeats):
        for way in WAYS:
            command = [sys.executable, str(Path(__file__)), *sys.argv[1:], "--way", way]
            result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            best[way] = {key: min(value, best.get(way, result)[key]) for key, value in result.items()}
    plain = best["log_softmax, autograd"]
    print(f"{options.rows} rows, hidden {options.hidden}, vocabulary {options.vocab}, {options.dtype}")
    print(f"{'way':24}{'seconds':>9}{'ratio':>8}{'CPU s':>9}{'ratio':>8}{'peak MiB':>10}{'ratio':>8}")
    for way, row in best.items():
        cells = "".join(
            f"{row[key]:{width}.{digits}f}{row[key] / plain[key]:8.2f}"
            for key, width, digits in (("seconds", 9, 3), ("cpu", 9, 3), ("mib", 10, 0))
        )
        print(f"{way:24}{cells}")


if __name__ == "__main__":
    main()
