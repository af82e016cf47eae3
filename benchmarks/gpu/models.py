"""The random models that the programs of this folder measure, and where processes find the project."""

import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
# processes that Ray and the engine start find the project by this
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))

_SMALL: dict[str, Any] = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "head": 16, "ffn": 128, "vocab": 512}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {**_SMALL, "tie": False},
    "135m": {"layers": 30, "hidden": 576, "heads": 9, "kv_heads": 3, "head": 64, "ffn": 1536, "vocab": 4096},
    "0.6b": {"layers": 28, "hidden": 1024, "heads": 16, "kv_heads": 8, "head": 128, "ffn": 3072, "vocab": 151936},
    "0.9b": {"layers": 28, "hidden": 2048, "heads": 16, "kv_heads": 8, "head": 128, "ffn": 3072, "vocab": 4096},
}
"""Shapes, of Qwen3's architecture, with tied embeddings but the tiny one. 135m is SmolLM2-135M's and 0.6b Qwen3-0.6B's.
Heads of 128 are what FA3 is often cut to."""


def write_model(folder: Path, size: str) -> Path:
    """A random model in Hugging Face format, float32, with a tokenizer of at most 4,096 words."""
    from tiny import make_tiny

    # logits near zero, as of a trained model: bfloat16 then rounds probabilities alike in engine and trainer
    spread = 0.2 if size == "tiny" else 0.02
    shape = {"tie": True, **SIZES[size]}
    words = min(shape["vocab"], 4096)
    return make_tiny(folder, **shape, words=words, initializer_range=spread, max_position_embeddings=4096)
