"""A batch from the driver to another process: Ray's shared memory against TransferQueue, in the same run.

    python benchmarks/transport.py [--samples 512] [--tokens 2000] [--slices 8] [--units 1] [--repeats 5]

Columns are those of a batch to train on, half of each sample its response. Prints for each way, best of
``--repeats``: milliseconds to hand the batch over as ``--slices`` slices, and to open them in another process up to
Arrow tables all of whose tokens have been summed; and the ratio of both together. TransferQueue needs the extra
``queue``.
"""

import argparse
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray

from data.ragged import Ragged
from data.schema import BATCH
from data.schema import table as make_table
from relax_core.cluster.head import connected
from relax_core.run.transport.base import Transport
from relax_core.run.transport.ray_objects import RayTransport
from relax_core.run.transport.transfer_queue import QueueTransport


def batch(samples: int, tokens: int) -> pa.Table:
    """Random samples of about ``tokens`` tokens each, half of them a response."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(tokens // 2, tokens * 3 // 2, samples) // 2
    total = int(lengths.sum())

    def rows(values: Any, times: int = 1) -> Ragged:
        return Ragged.from_lengths(values, times * lengths)

    return make_table(
        BATCH,
        {
            "sample_id": [f"000000-{i // 8:04d}-{i % 8:03d}" for i in range(samples)],
            "group_id": [f"000000-{i // 8:04d}" for i in range(samples)],
            "tokens": rows(rng.integers(0, 150_000, 2 * total).astype(np.int32), 2),
            "response_length": lengths.astype(np.int32),
            "loss_mask": rows(np.ones(total, np.uint8)),
            **{
                name: rows(rng.normal(size=total).astype(np.float32))
                for name in ("rollout_log_probs", "advantages", "returns")
            },
            "reward": rng.normal(size=samples).astype(np.float32),
        },
    )


class Reader:
    """The process that the batch goes to."""

    def read(self, tickets: Sequence[Any]) -> tuple[float, int]:
        """Seconds that opening took, and the sum of all tokens."""
        began = time.perf_counter()
        found = sum(pc.sum(pc.list_flatten(ticket.open()["tokens"])).as_py() for ticket in tickets)
        return time.perf_counter() - began, found


def measure(transport: Transport, rows: pa.Table, slices: int, repeats: int, reader: Any) -> tuple[float, float]:
    """Best milliseconds to put and to open."""
    wanted = pc.sum(pc.list_flatten(rows["tokens"])).as_py()
    size = -(-rows.num_rows // slices)
    times: list[tuple[float, float]] = []
    for step in range(repeats):
        began = time.perf_counter()
        tickets = [transport.put(step, i, rows.slice(i * size, size)) for i in range(slices)]
        put = time.perf_counter() - began
        opened, found = ray.get(reader.read.remote(tickets))
        assert found == wanted
        transport.clear(step)
        times.append((1e3 * put, 1e3 * opened))
    transport.close()
    return min(put for put, _ in times), min(opened for _, opened in times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("samples", 512), ("tokens", 2000), ("slices", 8), ("units", 1), ("repeats", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    rows = batch(options.samples, options.tokens)
    print(f"{rows.num_rows} samples, {rows.nbytes / 1e6:.1f} MB, {options.slices} slices")
    with connected():
        reader = ray.remote(Reader).options(num_cpus=0).remote()
        ways: dict[str, Callable[[], Transport]] = {
            "ray": RayTransport,
            "transfer_queue": lambda: QueueTransport("benchmark", options.units, 2 * rows.num_rows),
        }
        totals = []
        for name, make in ways.items():
            put, opened = measure(make(), rows, options.slices, options.repeats, reader)
            totals.append(put + opened)
            print(f"{name:15} put {put:7.1f} ms   open {opened:7.1f} ms")
    print(f"ratio transfer_queue / ray: {totals[1] / totals[0]:.1f}")


if __name__ == "__main__":
    main()
