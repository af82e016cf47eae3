"""What the model folder says about itself: no torch, no transformers.

Guarantee: a folder that is missing, incomplete or of a family without a weight mapping is refused with the folder, what
is wrong with it and what would be right, in milliseconds. The shape is read where the trainer reads it, so that what is
accepted here is what can be computed.
"""

from pathlib import Path

from data.errors import UserError
from relax_core.training.shape import ModelShape

_TOKENIZER_FILES = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"))


def read_model_folder(folder: str, *, tokenizer: bool = True) -> ModelShape:
    """The shape of the model in a Hugging Face folder that also holds weights and, if ``tokenizer``, a tokenizer.

    Raises:
        UserError: no such folder, no or bad config.json, no tokenizer, no weights, or a model that is not supported.
    """
    shape = ModelShape.from_hf(folder)
    path = Path(folder)
    if tokenizer and not any(all((path / name).is_file() for name in names) for names in _TOKENIZER_FILES):
        raise UserError(
            f"{folder} has no tokenizer.", "It needs tokenizer.json, tokenizer.model, or vocab.json with merges.txt."
        )
    if not any(path.glob("*.safetensors")):
        raise UserError(f"{folder} has no weights.", "It needs *.safetensors files.")
    return shape
