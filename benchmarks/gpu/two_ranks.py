"""What ``tensor_parallel.py`` does in each rank's process, the batches that all of them read, and their differences.

python benchmarks/gpu/two_ranks.py RANK PLAN      # started by tensor_parallel.py
"""

import faulthandler
import gc
import hashlib
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from models import ROOT  # noqa: F401  (the path of the project)

KINDS = ("float32", "bf16")
STEPS = 3
MEASURES = ("log-probs", "largest", "loss", "gradient norm", "weights", "worst tensor")
"""``log-probs`` and ``largest``: mean and largest difference of a token's, before and after training, whichever is the
larger. ``loss``: largest difference of a step's. ``gradient norm``: the same, relative. ``weights``: norm of the
difference between what two trainings changed, over the norm of the change; ``worst tensor``: the tensor with most (in
bfloat16 of the matrices: its numbers near 1, as in norms, are further apart than the change)."""


def write_batches(folder: Path, vocab: int, small: bool) -> None:
    """The stored batches: of random lengths for the numbers, and one of full length for the speed.

    The engine's log-probabilities in it are random; ``as_generated`` puts better ones there.
    """
    from data.store import RunStore

    store, rng = RunStore(str(folder / "batches")), np.random.default_rng(0)
    most = 48 if small else 1024
    for number in range(STEPS):
        lengths = rng.integers(most // 4, most + 1, 8)
        write_batch(store, f"{number}", rng, rng.integers(0, vocab, lengths.sum()), lengths)
    lengths = np.full(8, 96 if small else 2048)
    write_batch(store, "speed", rng, rng.integers(0, vocab, lengths.sum()), lengths)


def write_batch(store: Any, name: str, rng: Any, tokens: Any, lengths: Any, log_probs: Any = None) -> None:
    """Samples whose first eighth is the prompt; a tenth of the response's tokens is masked."""
    from data.ragged import Ragged
    from data.schema import BATCH
    from data.schema import table as make_table

    responses = lengths - lengths // 8
    total, advantages = int(responses.sum()), np.repeat(rng.normal(size=len(lengths)), responses).astype(np.float32)
    if log_probs is None:
        log_probs = np.full(total, -12.0)
    columns = {
        "loss_mask": (rng.random(total) > 0.1).astype(np.uint8),
        "rollout_log_probs": np.asarray(log_probs, np.float32),
        "advantages": advantages,
        "returns": advantages,
    }
    given: dict[str, Any] = {
        "sample_id": [f"000000-{i:04d}-000" for i in range(len(lengths))],
        "group_id": [f"000000-{i:04d}" for i in range(len(lengths))],
        "tokens": Ragged.from_lengths(tokens.astype(np.int32), lengths),
        "response_length": responses.astype(np.int32),
        "reward": np.zeros(len(lengths), np.float32),
        **{column: Ragged.from_lengths(values, responses) for column, values in columns.items()},
    }
    ref = store.write_table(f"{name}.parquet", make_table(BATCH, given))
    store.write_bytes(f"{name}.json", json.dumps(ref.to_json()).encode())


def write_moved(source: Path, target: Path) -> None:
    """The model with every weight moved at random by up to an ulp of float32."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(source, target)
    torch.manual_seed(1)
    for path in target.glob("*.safetensors"):
        moved = {
            name: value * (1 + (torch.rand_like(value) * 2 - 1) * 2.0**-23) for name, value in load_file(path).items()
        }
        save_file(moved, path, metadata={"format": "pt"})


def difference(folder: Path, one: tuple[str, str], other: tuple[str, str], device: str) -> dict[str, float]:
    """``MEASURES`` between two results, each a layout and a job's name; weights are compared on ``device``."""
    places = [folder / layout / name for layout, name in (one, other)]
    a, b = (json.loads((place / "metrics.json").read_text()) for place in places)
    tokens = np.stack(
        [
            np.abs(np.load(places[0] / f"{when}.npy") - np.load(places[1] / f"{when}.npy"))
            for when in ("before", "after")
        ]
    )
    losses = [abs(x["loss"] - y["loss"]) for x, y in zip(a, b, strict=True)]
    norms = [abs(x["grad_norm"] - y["grad_norm"]) / y["grad_norm"] for x, y in zip(a, b, strict=True)]
    whole, worst = changed_otherwise(folder, one, other, device)
    values = (tokens.mean(1).max(), tokens.max(), max(losses), max(norms), whole, worst)
    return dict(zip(MEASURES, map(float, values), strict=True))


def changed_otherwise(folder: Path, one: tuple[str, str], other: tuple[str, str], device: str) -> tuple[float, float]:
    """``weights`` and ``worst tensor`` of ``MEASURES``."""
    import torch
    from safetensors.torch import load_file

    def changes(layout: str, name: str) -> dict[str, Any]:
        start, end = read(folder / name.split("-")[0]), read(folder / layout / name / "weights")
        return {key: value.float() - start[key].to(value.dtype).float() for key, value in end.items()}

    def read(place: Path) -> dict[str, Any]:
        files = sorted(place.glob("*.safetensors"))
        return {key: value for file in files for key, value in load_file(file, device).items()}

    left, right = changes(*one), changes(*other)
    assert left.keys() == right.keys()
    pairs = {key: (float((left[key] - right[key]).norm()), float(right[key].norm())) for key in right}
    whole = [sum(pair[i] ** 2 for pair in pairs.values()) ** 0.5 for i in (0, 1)]
    exact = one[1].endswith("float32") and other[1].endswith("float32")
    told = [pairs[key] for key in pairs if exact or right[key].dim() > 1]
    if device == "cuda":
        left.clear(), right.clear()
        torch.cuda.empty_cache()
    return whole[0] / whole[1], max(apart / max(size, 1e-30) for apart, size in told)


# -- in a rank's process ---------------------------------------------------------------------------------------------


def main() -> None:
    rank, plan = int(sys.argv[1]), json.loads(sys.argv[2])
    faulthandler.enable()
    place = Path(plan["folder"], plan["layout"])
    place.mkdir(exist_ok=True)
    found: dict[str, Any] = {}
    for job in plan["jobs"]:
        began = time.monotonic()
        found[job["name"]] = (speed if job["speed"] else numbers)(rank, plan, job)
        print(f"{job['name']}: {time.monotonic() - began:.1f} s", flush=True)
    (place / f"{rank}.json").write_text(json.dumps(found))


def words(plan: dict[str, Any], job: dict[str, Any]) -> list[str]:
    """The options of a trainer."""
    folder, small = plan["folder"], plan["rehearse"]
    micro = 8 * (96 if small else 2048) if job["speed"] else 128 if small else 4096
    given = {
        "--run-dir": f"{folder}/run",
        "--hf-checkpoint": f"{folder}/{job['model']}",
        "--prompt-data": f"{folder}/prompts.jsonl",
        "--label-key": "label",
        "--rm-type": "random",
        "--num-rollout": "100",
        "--rollout-batch-size": "8",
        "--n-samples-per-prompt": "1",
        "--rollout-max-response-len": "2048",
        "--max-tokens-per-gpu": str(micro),
        "--lr": "3e-3" if small else "3e-4",  # a step moves a typical weight by more than bfloat16's spacing
        "--adam-eps": "1e-6",  # Adam divides by |gradient| + eps: less, and rounding would decide signs
        "--distributed-timeout-minutes": "4",
    }
    Path(folder, "prompts.jsonl").write_text('{"input": "1 + 1 =", "label": "2"}\n')
    flags = ["--use-dynamic-batch-size", "--use-rollout-logprobs", *(["--bf16"] if job["kind"] == "bf16" else [])]
    return [*(word for pair in given.items() for word in pair), *flags, *plan["words"]]


def trainer_of(rank: int, plan: dict[str, Any], job: dict[str, Any]) -> Any:
    """A rank's trainer at version 0."""
    import torch

    from relax_core.config.examine import prepare
    from relax_core.config.parser import read_given
    from relax_core.training.trainer import Trainer

    given = read_given(words(plan, job), {})
    assert not given.notes, given.notes
    gc.collect()  # the trainer of the job before
    if not plan["rehearse"]:
        torch.cuda.empty_cache()
    trainer = Trainer(prepare(given.config, "train", None), rank, plan["ranks"], "cpu" if plan["rehearse"] else "cuda")
    trainer.join(f"tcp://127.0.0.1:{plan['port']}")
    trainer.initialise()
    return trainer


def stored(plan: dict[str, Any], name: str) -> tuple[Any, Any]:
    """The store of the batches, and a batch's reference."""
    from data.store import RunStore, TableRef

    store = RunStore(f"{plan['folder']}/batches")
    return store, TableRef.from_json(json.loads(store.read_bytes(f"{name}.json")))


def numbers(rank: int, plan: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """Train; log-probs, metrics and weights go to the job's folder. The very first job completes the batches."""
    from relax_core.weights.export import iter_hf

    place = Path(plan["folder"], plan["layout"], job["name"])
    trainer = trainer_of(rank, plan, job)
    if plan["layout"] == "one" and job is plan["jobs"][0]:
        as_generated(plan, trainer)
    else:  # as a run does, before anything has gone through the model; it may not change what follows
        for _ in iter_hf(trainer.model):
            pass
    store, first = stored(plan, "0")
    place.mkdir(exist_ok=True)
    before = trainer.log_probs(first, store.url).values
    rows = []
    for number in range(STEPS):
        result = trainer.train(number, number + 1, stored(plan, f"{number}")[1], store.url, f"w{number}")
        rows.append(result.metrics)
        print(f"  step {number}: loss {rows[-1]['loss']:.6f}, norm {rows[-1]['grad_norm']:.6f}", flush=True)
    after = trainer.log_probs(first, store.url).values
    trainer.export_hf(str(place / "weights"))
    if rank == 0:
        np.save(place / "before.npy", before)
        np.save(place / "after.npy", after)
        (place / "metrics.json").write_text(json.dumps(rows))
    return {"metrics": rows, "shared": shared(trainer)}


def as_generated(plan: dict[str, Any], trainer: Any) -> None:
    """Make the engine's log-probs in the batches those of the policy with some noise: ratios near 1, a few clipped."""
    rng = np.random.default_rng(1)
    for number in range(STEPS):
        store, ref = stored(plan, f"{number}")
        scores, table = trainer.log_probs(ref, store.url).values, store.read_table(ref)
        tokens = table.column("tokens").combine_chunks()
        lengths = np.asarray(tokens.value_lengths())
        noise = rng.normal(0, 0.1, len(scores))
        write_batch(store, f"{number}", rng, np.asarray(tokens.flatten()), lengths, scores + noise)


def shared(trainer: Any) -> dict[str, str]:
    """Hashes of this rank's parameters of which another rank may have a copy."""
    import torch

    layout, tied, found = trainer.layout, ("word_embeddings.weight", "output_layer.weight"), {}
    for name, value in trainer.model.named_parameters():
        whole = layout.tp_size == 1 or not getattr(value, "tensor_model_parallel", False)
        if layout.pp_size > 1:  # stages have nothing in common but a tied embedding
            whole, name = name.endswith(tied), "tied embedding"
            whole = whole and trainer.model.module.shape.tie
        if whole:
            content = value.detach().contiguous().view(torch.uint8).cpu().numpy()
            found[name] = hashlib.sha256(content).hexdigest()
    return found


def speed(rank: int, plan: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """Tokens a second of the steps behind the first."""
    import torch

    trainer, (store, batch) = trainer_of(rank, plan, job), stored(plan, "speed")
    if not plan["rehearse"]:
        torch.cuda.reset_peak_memory_stats()
    spent, tokens = [], 0
    for number in range(job["speed"]):
        began = time.perf_counter()
        tokens = trainer.train(number, number + 1, batch, store.url, f"w{number}").tokens
        if not plan["rehearse"]:
            torch.cuda.synchronize()
        spent.append(time.perf_counter() - began)
        print(f"  step {number}: {1000 * spent[-1]:.0f} ms", flush=True)
    peak = None if plan["rehearse"] else torch.cuda.max_memory_allocated() / 2**30
    middle = sorted(spent[1:] or spent)[len(spent[1:]) // 2]
    return {"tokens": tokens, "tokens_per_second": tokens / middle, "seconds": spent, "peak_gib": peak}


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # collective libraries keep threads whose end may hang after the other rank has gone
