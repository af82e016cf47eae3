"""The shape of a dense decoder, read from a Hugging Face folder.

Guarantee: :meth:`ModelShape.from_hf` either describes the model completely or raises a ``UserError`` that names the key
of config.json, its value and what is supported: a variant that the trainer would compute differently from transformers
never passes. Needs neither torch nor transformers, so a run can be checked before anything starts.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

from data.errors import UserError

Family = Literal["llama", "qwen2", "qwen3"]

FAMILIES: tuple[Family, ...] = ("llama", "qwen2", "qwen3")
_WITHOUT = {  # keys that would change the computation, with the values under which they do not
    "hidden_act": ("silu",),
    "mlp_bias": (False, None),
    "use_sliding_window": (False, None),
    "partial_rotary_factor": (1.0, 1, None),
    "pretraining_tp": (1, None),
    "quantization_config": (None,),
}


@dataclass(frozen=True)
class Llama3Scaling:
    """Rotary scaling of Llama 3.1 and later; the names are those of config.json's ``rope_scaling``."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class ModelShape:
    """Everything that decides a dense decoder's tensors and arithmetic.

    Attributes:
        ffn: inner size of the gated MLP.
        head_dim: size of one attention head; heads x head_dim need not be ``hidden``.
        vocab: rows of the embedding.
        tie: the output layer uses the embedding's weights.
        qkv_bias: query, key and value projections have biases (Qwen2).
        qk_norm: RMSNorm over each query and key head (Qwen3).
        values: in place of the output layer the model has a head that gives one value for each token.
    """

    family: Family
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tie: bool
    rope_theta: float
    rope_scaling: Llama3Scaling | None
    norm_eps: float
    qkv_bias: bool
    qk_norm: bool
    max_positions: int
    values: bool = False

    @classmethod
    def from_hf(cls, folder: str | Path) -> "ModelShape":
        """The shape that a folder's config.json describes.

        Missing keys take the defaults of transformers' configuration class of the family.

        Raises:
            UserError: no such folder or config.json, an unknown family, or a variant without an exact counterpart.
        """
        config = read_config(folder)
        where = str(Path(folder) / "config.json")
        family = config.get("model_type")
        if family not in FAMILIES:
            raise UserError(
                f"{where} describes a model of type {family!r}, which has no weight mapping.",
                f"Use a dense model of one of the types {', '.join(FAMILIES)}.",
            )
        for key, allowed in _WITHOUT.items():
            if config.get(key, allowed[0]) not in allowed:
                raise UserError(f"{where}: {key}={config[key]!r} is not supported.", f"Only {allowed[0]!r} is.")
        if any(kind != "full_attention" for kind in config.get("layer_types") or ()):
            raise UserError(f"{where}: layer_types has layers without full attention, which are not supported.")
        if family != "qwen2" and config.get("attention_bias", False):
            raise UserError(f"{where}: attention_bias=true is not supported for {family} models.")

        def size(key: str, default: int | None = None) -> int:
            value = config.get(key)
            value = default if value is None else value
            if not isinstance(value, int) or value < 1:
                raise UserError(f"{where}: {key} should be a positive whole number, not {value!r}.")
            return value

        hidden, heads = size("hidden_size"), size("num_attention_heads")
        rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
        shape = cls(
            family=cast(Family, family),
            layers=size("num_hidden_layers"),
            hidden=hidden,
            ffn=size("intermediate_size"),
            heads=heads,
            kv_heads=size("num_key_value_heads", heads),
            head_dim=size("head_dim", 128 if family == "qwen3" else max(1, hidden // heads)),
            vocab=size("vocab_size"),
            tie=bool(config.get("tie_word_embeddings", False)),
            rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
            rope_scaling=_scaling(rope, where),
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            qkv_bias=family == "qwen2",
            qk_norm=family == "qwen3",
            max_positions=size("max_position_embeddings", 2048 if family == "llama" else 32768),
        )
        if shape.heads % shape.kv_heads:
            raise UserError(
                f"{where}: num_attention_heads={shape.heads} is no multiple of num_key_value_heads={shape.kv_heads}."
            )
        if shape.head_dim % 2:
            raise UserError(f"{where}: head_dim={shape.head_dim} is odd, and rotary positions need pairs.")
        return shape

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> "ModelShape":
        """From ``to_json()``'s object.

        Raises:
            TypeError: it is that of another version.
        """
        scaling = obj.get("rope_scaling")
        return cls(**{**obj, "rope_scaling": None if scaling is None else Llama3Scaling(**scaling)})

    def differences(self, other: "ModelShape") -> list[str]:
        """What makes the other one another model: fields that differ, but for the length that samples may have."""
        return [name for name in vars(self) if name != "max_positions" and getattr(self, name) != getattr(other, name)]

    def check_parallel(self, tensor: int, pipeline: int) -> None:
        """Refuse sizes of tensor and pipeline parallelism that do not divide the model evenly.

        Raises:
            UserError: naming the option, its value and the number that it does not divide.
        """
        for name, count in (
            ("attention heads", self.heads),
            ("key-value heads", self.kv_heads),
            ("rows of the MLP", self.ffn),
            ("entries of the vocabulary", self.vocab),
        ):
            if count % tensor:
                raise UserError(
                    f"--tensor-model-parallel-size {tensor} does not divide the model's {count} {name}.",
                    f"Use a size that divides {count}.",
                )
        if self.layers % pipeline:
            raise UserError(
                f"--pipeline-model-parallel-size {pipeline} does not divide the model's {self.layers} layers.",
                f"Use a size that divides {self.layers}.",
            )


def hf_folder(folder: str | Path) -> Path:
    """The folder as a path.

    Raises:
        UserError: a URL or a hub name instead of a local folder, or a folder without config.json.
    """
    path = Path(folder)
    if "://" in str(folder):
        raise UserError(f"{folder} is a URL.", "Copy the model to a local folder and give that.")
    if not path.is_dir():
        raise UserError(
            f"There is no model folder {folder}.", "Give a local Hugging Face folder (config.json, *.safetensors)."
        )
    if not (path / "config.json").is_file():
        raise UserError(f"{folder} has no config.json.", "Give a Hugging Face folder (config.json, *.safetensors).")
    return path


def read_config(folder: str | Path) -> dict[str, Any]:
    """The folder's config.json.

    Raises:
        UserError: no such folder or file, or no JSON object in it.
    """
    path = hf_folder(folder) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(config, dict):
        raise UserError(f"{path} should hold a JSON object.")
    return config


def _scaling(rope: dict[str, Any], where: str) -> Llama3Scaling | None:
    """The rotary scaling of config.json, of which only the kind ``llama3`` is computed exactly."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise UserError(
            f"{where}: rotary scaling of type {kind!r} is not supported.", "Only 'llama3' and 'default' are."
        )
    try:
        return Llama3Scaling(
            factor=float(rope["factor"]),
            low_freq_factor=float(rope["low_freq_factor"]),
            high_freq_factor=float(rope["high_freq_factor"]),
            original_max_position_embeddings=int(rope["original_max_position_embeddings"]),
        )
    except KeyError as error:
        raise UserError(f"{where}: rotary scaling 'llama3' lacks the key {error}.") from error
