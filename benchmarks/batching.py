"""Packing, balancing and the way of columns to micro-batches, against plain implementations in the same run.

    python benchmarks/batching.py [--items 16384] [--budget 16384] [--ranks 64] [--samples 512] [--tokens 1070000]

Lengths are log-normal (``--mu 7 --sigma 1``, cut at the budget). Prints the best time of ``--repeats`` runs, the time
of a plain implementation and their ratio, and what came out of both: the fill of the bins (tokens / (bins x budget)),
the spread of the ranks (largest minus smallest sum of tokens), or whether the columns came back as they were. The plain
ones: the first-fit loop over decreasing lengths; Karmarkar-Karp with a heap of tuples; columns as Python lists. One
core is used.
"""

import argparse
import heapq
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pyarrow as pa
import torch

from data.ragged import Ragged
from relax_core.batching.balance import balance
from relax_core.batching.columns import Packing
from relax_core.batching.pack import pack

Bins = list[list[int]]
COLUMNS = {
    "tokens": np.int32,
    "loss_mask": np.uint8,
    "rollout_log_probs": np.float32,
    "log_probs": np.float32,
    "ref_log_probs": np.float32,
    "advantages": np.float32,
    "returns": np.float32,
}


def first_fit(lengths: list[int], budget: int) -> Bins:
    """First-fit decreasing as a loop over all open bins."""
    bins: Bins = []
    rooms: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        for number, room in enumerate(rooms):
            if lengths[i] <= room:
                bins[number].append(i)
                rooms[number] -= lengths[i]
                break
        else:
            bins.append([i])
            rooms.append(budget - lengths[i])
    return bins


def karmarkar_karp(lengths: list[int], parts: int, equal: bool) -> Bins:
    """Largest differencing on tuples of (sum, items), smallest sum first."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    step = parts if equal else 1
    heap = []
    for number, start in enumerate(range(0, len(order), step)):
        items = [(lengths[i], (i,)) for i in order[start : start + step]]
        subsets = [(0, ())] * (parts - len(items)) + items[::-1]
        heap.append((subsets[0][0] - subsets[-1][0], number, subsets))
    heapq.heapify(heap)
    number = len(heap)
    while len(heap) > 1:
        first, second = heapq.heappop(heap)[2], heapq.heappop(heap)[2]
        merged = sorted((a + b, x + y) for (a, x), (b, y) in zip(first, reversed(second), strict=True))
        heapq.heappush(heap, (merged[0][0] - merged[-1][0], number, merged))
        number += 1
    return [list(items) for _, items in heap[0][2]]


def through_tensors(table: pa.Table, micro_batches: Bins) -> pa.Table:
    """All columns to packed tensors and back."""
    packing = Packing.of(micro_batches)
    result = {}
    for name in table.column_names:
        packed = packing.pack(Ragged.from_arrow(table[name]))
        tensor = torch.from_numpy(packed.values)  # what a trainer works on, here given back as it is
        result[name] = packing.unpack(Ragged(tensor.numpy(), packed.offsets)).to_arrow()
    return pa.table(result)


def through_lists(table: pa.Table, micro_batches: Bins) -> pa.Table:
    """The same with a Python list of each row."""
    order = [i for micro_batch in micro_batches for i in micro_batch]
    result = {}
    for name in table.column_names:
        rows = table[name].to_pylist()
        kind = torch.from_numpy(np.empty(0, COLUMNS[name])).dtype
        tensor = torch.tensor([value for i in order for value in rows[i]], dtype=kind)
        values, back, place = tensor.tolist(), [[]] * len(rows), 0
        for i in order:
            back[i] = values[place : place + len(rows[i])]
            place += len(rows[i])
        result[name] = pa.array(back, table.schema.field(name).type)
    return pa.table(result)


def table_of(lengths: np.ndarray, rng: np.random.Generator) -> pa.Table:
    """A table whose columns all have these lengths."""
    values = {name: (rng.random(int(lengths.sum())) * 100).astype(kind) for name, kind in COLUMNS.items()}
    return pa.table({name: Ragged.from_lengths(column, lengths).to_arrow() for name, column in values.items()})


def timed(function: Callable[..., Any], arguments: Sequence[Any], repeats: int) -> tuple[float, Any]:
    """Best milliseconds, and the result."""
    best, result = float("inf"), None
    for _ in range(repeats):
        start = time.perf_counter()
        result = function(*arguments)
        best = min(best, time.perf_counter() - start)
    return best * 1000, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"items": 16384, "budget": 16384, "ranks": 64, "samples": 512, "tokens": 1_070_000, "repeats": 7, "seed": 0}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--mu", type=float, default=7.0)
    parser.add_argument("--sigma", type=float, default=1.0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    lengths = rng.lognormal(options.mu, options.sigma, options.items).astype(np.int64).clip(1, options.budget)
    as_list, total = lengths.tolist(), int(lengths.sum())

    def fill(bins: Bins) -> str:
        return f"{total / (len(bins) * options.budget):.4%} of {len(bins)} bins"

    def spread(parts: Bins) -> str:
        sums = [int(lengths[part].sum()) for part in parts]
        return f"spread {max(sums) - min(sums)}"

    weights = rng.lognormal(0, 0.5, options.samples)
    rows = rng.multinomial(options.tokens, weights / weights.sum())
    table, micro_batches = table_of(rows, rng), pack(rows, options.budget)

    def sameness(result: pa.Table) -> str:
        return "as they were" if result.equals(table) else "DIFFERENT"

    counts = "numbers of items"
    work: list[tuple[str, Callable[..., Any], tuple[Any, ...], Callable[..., Any], Callable[[Any], str]]] = [
        ("pack", pack, (lengths, options.budget), first_fit, fill),
        (f"balance, free {counts}", balance, (lengths, options.ranks, False), karmarkar_karp, spread),
        (f"balance, equal {counts}", balance, (lengths, options.ranks, True), karmarkar_karp, spread),
        (
            f"{len(COLUMNS)} columns to tensors and back",
            through_tensors,
            (table, micro_batches),
            through_lists,
            sameness,
        ),
    ]
    print(f"{options.items} lengths, {total} tokens, bins of {options.budget}, {options.ranks} ranks;", end=" ")
    print(f"{options.samples} samples, {options.tokens} tokens, {table.nbytes / 1e6:.0f} MB in {len(COLUMNS)} columns")
    print(f"{'what':32}{'ms':>8}{'plain ms':>10}{'ratio':>8}  {'result':26}plain result")
    for name, function, arguments, plain, shown in work:
        ours, result = timed(function, arguments, options.repeats)
        theirs, expected = timed(plain, (as_list if arguments[0] is lengths else arguments[0], *arguments[1:]), 1)
        print(f"{name:32}{ours:8.1f}{theirs:10.0f}{ours / theirs:8.4f}  {shown(result):26}{shown(expected)}")


if __name__ == "__main__":
    main()
