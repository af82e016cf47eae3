"""What the model folder says about itself, read as JSON: no torch, no transformers.

Guarantee: a folder that is missing, incomplete or of a family without a weight mapping is refused with the folder, what
is wrong with it and what would be right, in milliseconds.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from data.errors import UserError

Family = Literal["llama", "qwen2", "qwen3"]

FAMILIES: dict[str, Family] = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""``model_type`` of config.json -> the family whose weight mapping serves it (dense models)."""

_TOKENIZER_FILES = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"))


@dataclass(frozen=True)
class ModelFacts:
    """The shape of a model: sizes and counts as in config.json, lengths in tokens."""

    folder: str
    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    tie_word_embeddings: bool


def read_model_facts(folder: str, *, tokenizer: bool = True) -> ModelFacts:
    """Read `<folder>/config.json` and see that the folder holds weights and, if ``tokenizer``, a tokenizer.

    Raises:
        UserError: no such folder, no or bad config.json, no tokenizer, no weights, or a family that is not supported.
    """
    path = Path(folder)
    if not path.is_dir():
        raise UserError(
            f"{folder} is no folder.", "Give a local folder in Hugging Face format; download a model of a hub first."
        )
    config = _read_json(path / "config.json")
    model_type = config.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise UserError(
            f"{folder} holds a model of type {model_type!r}, for which there is no weight mapping.",
            f"Supported: {', '.join(FAMILIES)} (dense).",
        )
    if tokenizer and not any(all((path / name).is_file() for name in names) for names in _TOKENIZER_FILES):
        raise UserError(
            f"{folder} has no tokenizer.", "It needs tokenizer.json, tokenizer.model, or vocab.json with merges.txt."
        )
    if not any(path.glob("*.safetensors")):
        raise UserError(f"{folder} has no weights.", "It needs *.safetensors files.")
    return _facts(folder, family, config)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist.", "Give a folder in Hugging Face format.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise UserError(f"{path} is no valid JSON: {error}.", "Is the download complete?") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object.", "Is it a model's config.json?")
    return content


def _facts(folder: str, family: Family, config: dict[str, Any]) -> ModelFacts:
    def count(key: str, default: int | None = None) -> int:
        value = config.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            shown = "is missing" if value is None else f"is {value!r}"
            raise UserError(f"{key} {shown} in {folder}/config.json.", "It must be a positive whole number.")
        return value

    heads = count("num_attention_heads")
    return ModelFacts(
        folder=folder,
        family=family,
        vocab_size=count("vocab_size"),
        hidden_size=count("hidden_size"),
        intermediate_size=count("intermediate_size"),
        num_layers=count("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=count("num_key_value_heads", heads),
        head_dim=count("head_dim", count("hidden_size") // heads),
        max_position_embeddings=count("max_position_embeddings"),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", False)),
    )
