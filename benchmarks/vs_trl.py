"""A step of Relax against a step of TRL's GRPOTrainer: same model, prompts and sizes, one after the other.

    python benchmarks/vs_trl.py MODEL_FOLDER [--steps 3]

8 prompts x 4 samples x up to 64 tokens on SmolLM2-135M in float32. TRL runs in a virtual environment of its own
(``build/trl``, made here). Prints seconds a step by stage and the ratio; the first step of each is left out, since
it pays for what is loaded once.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
TRAIN = ROOT / "data/samples/addition_train.jsonl"
LR = 5e-6


def trl_python() -> Path:
    """The interpreter of TRL's own environment, made when it is not there."""
    folder = ROOT / "build/trl"
    python = folder / "bin/python"
    if not (folder / ".installed").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        for packages in (["torch==2.13.0"], ["trl==1.16.*", "transformers==5.12.1", "accelerate", "datasets"]):
            subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True)
        (folder / ".installed").touch()
    return python


def run_trl(model: str, steps: int, folder: Path) -> dict[str, list[float]]:
    command = [str(trl_python()), str(ROOT / "benchmarks/trl_step.py"), model, str(TRAIN), str(steps), str(LR)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder)
    result: dict[str, list[float]] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def run_relax(model: str, steps: int, folder: Path) -> dict[str, list[float]]:
    run = folder / "run"
    script = ["bash", str(ROOT / "deployments/quickstart.sh"), "--skip-eval-before-train", "--eval-interval", "1000000"]
    relax = str(Path(sys.executable).parent / "relax")
    environment = {**os.environ, "RELAX": relax, "MODEL": model, "RUN": str(run), "STEPS": str(steps)}
    subprocess.run(script, check=True, env=environment)
    result: dict[str, list[float]] = {}
    for step in range(steps):
        manifest = json.loads((run / f"steps/{step:06d}/manifest.json").read_text())
        for name, seconds in manifest["seconds"].items():
            result.setdefault(name, []).append(seconds)
        result.setdefault("step", []).append(manifest["wall_seconds"])
        result.setdefault("response_tokens", []).append(manifest["metrics"]["tokens/response"])
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=3)
    chosen = parser.parse_args()
    model = str(Path(chosen.model).resolve())
    with tempfile.TemporaryDirectory() as folder:
        ours = run_relax(model, chosen.steps + 1, Path(folder))
        trl = run_trl(model, chosen.steps + 1, Path(folder))

    def middle(values: list[float]) -> float:
        return statistics.median(values[1:])

    print(f"\nmedian seconds of {chosen.steps} steps, 8 prompts x 4 samples x up to 64 tokens, float32")
    rows = [
        ("generate and score", middle(ours["generate"]) + middle(ours["reward"]), middle(trl["generate"])),
        ("whole step", middle(ours["step"]), middle(trl["step"])),
    ]
    rows.insert(1, ("the rest: learn, sync, store", rows[1][1] - rows[0][1], rows[1][2] - rows[0][2]))
    print(f"{'':30} {'Relax':>8} {'TRL':>8} {'ratio':>7}")
    for name, mine, theirs in rows:
        print(f"{name:30} {mine:8.1f} {theirs:8.1f} {mine / theirs:7.2f}")
    print(f"{'response tokens a step':30} {middle(ours['response_tokens']):8.0f} {middle(trl['response_tokens']):8.0f}")


if __name__ == "__main__":
    main()
