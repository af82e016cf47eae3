"""How far bfloat16 is from float32 in a training step on one GPU, compiled and not.

    python benchmarks/gpu/numerics.py [--size 0.6b] [--samples 2] [--length 512] [--out FOLDER]
    python benchmarks/gpu/numerics.py --rehearse      # without a GPU: a tiny model, where all three are alike

The same model and batch go through three trainers: float32 without compilation, bfloat16 without, bfloat16 with it. A
line for each: the mean difference of a token's log-probability from float32's, the relative difference of the
gradient's norm, and the smallest and the mean cosine between a weight's gradient and float32's. Fails where compilation
is further from float32 than a third more than bfloat16 alone.
"""

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models import SIZES, write_model
from trainer_speed import batch_of, started, words

KINDS = {
    "float32": ["--disable-compile"],
    "bfloat16": ["--bf16", "--disable-compile"],
    "bfloat16, compiled": ["--bf16"],
}
MARGIN = 4 / 3
"""Compiled functions round less often than torch's single operations, so that they should not be further away."""


@dataclass
class Seen:
    """Of one trainer: log-probabilities [R], norm of the gradient, and each weight's gradient by name."""

    log_probs: Any
    norm: float
    gradients: dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="0.6b")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--length", type=int, default=512, help="tokens of a sample, 32 of them the prompt")
    parser.add_argument("--out", type=Path, help="folder of numerics.json; by default none")
    parser.add_argument("--rehearse", action="store_true", help="no GPU: a tiny model")
    chosen = parser.parse_args()
    if chosen.rehearse:
        chosen.size, chosen.length = "tiny", 96
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder) / "model", chosen.size)
        found = {kind: seen(Path(folder), kind, chosen) for kind in KINDS}
    return report(found, chosen.out)


def seen(folder: Path, kind: str, chosen: argparse.Namespace) -> Seen:
    from data.store import RunStore

    device = "cpu" if chosen.rehearse else "cuda"
    given = [word for word in words(folder, chosen, chosen.length) if word != "--bf16"]
    trainer = started(folder, [*given, *KINDS[kind]], device)
    store = RunStore(str(folder / "batches"))
    batch = batch_of(store, 0, chosen.samples, chosen.length, SIZES[chosen.size]["vocab"])
    log_probs = trainer.log_probs(batch, store.url).values.copy()
    norm = trainer.train(0, 1, batch, store.url, "w1").metrics["grad_norm"]
    # a step leaves the gradient, clipped or not, in the buffers
    gradients = {name: weight.main_grad.double().cpu() for name, weight in trainer.model.module.named_parameters()}
    print(f"{kind}: gradient norm {norm:.6f}", flush=True)
    return Seen(log_probs, norm, gradients)


def report(found: dict[str, Seen], out: Path | None) -> int:
    """Print the table; 1 where compilation is too far away."""
    import numpy as np
    import torch

    exact = found["float32"]
    print("\n| trainer | log-probs, mean difference | norm | smallest cosine | mean cosine |\n|---|---|---|---|---|")
    rows, away = [], {}
    for kind, one in found.items():
        gap = float(np.abs(one.log_probs - exact.log_probs).mean())
        cosines = [
            float(torch.nn.functional.cosine_similarity(one.gradients[name].flatten(), want.flatten(), dim=0))
            for name, want in exact.gradients.items()
        ]
        norm = abs(one.norm / exact.norm - 1)
        away[kind] = (gap, 1 - sum(cosines) / len(cosines))
        values = f"{gap:.2e} | {norm:.2e} | {min(cosines):.6f} | {sum(cosines) / len(cosines):.6f}"
        print(f"| {kind} | {values} |")
        if kind != "float32":
            mean = sum(cosines) / len(cosines)
            rows.append([f"{kind} against float32: log-probs; gradients' cosine", f"{gap:.1e}; {mean:.5f}", "-"])
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "numerics.json").write_text(json.dumps({"rows": rows}, indent=1))
    plain, compiled = away["bfloat16"], away["bfloat16, compiled"]
    if any(b > MARGIN * a + 1e-6 for a, b in zip(plain, compiled, strict=True)):
        print(f"Compiled is further from float32 than bfloat16 is: {compiled} against {plain}.")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
