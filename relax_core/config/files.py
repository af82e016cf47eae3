"""The files that a configuration names.

Guarantee: a local file or folder that is not there is found at once; what lies behind a URL is left to the stage that
reads it.
"""

import re
from pathlib import Path
from typing import Literal

from data.errors import UserError
from relax_core.config.model_files import read_model_folder
from relax_core.config.problems import Problem
from relax_core.config.sections import RelaxConfig
from relax_core.training.shape import ModelShape

_SLICE = re.compile(r"@\[[^\]]*\]$")
_MEGATRON_TRACKER = "latest_checkpointed_iteration.txt"


def check_files(
    config: RelaxConfig, purpose: Literal["train", "evaluate"] = "train"
) -> tuple[ModelShape | None, list[Problem]]:
    """The shape of ``--hf-checkpoint``'s model (None when it cannot be used), and what is wrong with the files."""
    problems: list[Problem] = []
    shape = _model(config.checkpoint.hf_checkpoint, problems)
    _load(config.checkpoint.load, problems)
    _reference(config.checkpoint.ref_load, shape, problems)
    if purpose == "train":
        _prompts("--prompt-data", config.data.prompt_data, problems)
    pairs = config.eval.eval_prompt_data or []
    for path in pairs if len(pairs) == 1 else pairs[1::2] if len(pairs) % 2 == 0 else []:
        _prompts("--eval-prompt-data", path, problems)
    return shape, problems


def local_path(url: str) -> Path | None:
    """The local path of an fsspec URL without its row slice; None when it is not local."""
    url = _SLICE.sub("", url)
    if url.startswith("file://"):
        url = url.removeprefix("file://")
    return None if "://" in url or "::" in url else Path(url).expanduser()


def _model(folder: str | None, problems: list[Problem]) -> ModelShape | None:
    if not folder:
        return None
    try:
        return read_model_folder(folder)
    except UserError as error:
        problems.append(Problem("--hf-checkpoint", None, error.problem, error.fix))
        return None


def _load(folder: str | None, problems: list[Problem]) -> None:
    if not folder:
        return
    path = Path(folder)
    if not path.is_dir():
        problems.append(Problem("--load", folder, "is no folder."))
    elif not (path / _MEGATRON_TRACKER).is_file() and not (path / "config.json").is_file():
        reason = f"is no checkpoint: it has neither {_MEGATRON_TRACKER} (Megatron) nor config.json (Hugging Face)."
        problems.append(Problem("--load", folder, reason))


def _reference(folder: str | None, shape: ModelShape | None, problems: list[Problem]) -> None:
    if not folder:
        return
    try:
        reference = read_model_folder(folder, tokenizer=False)
    except UserError as error:
        problems.append(Problem("--ref-load", None, error.problem, error.fix))
        return
    if shape is not None and reference != shape:
        differing = [name for name in vars(shape) if getattr(shape, name) != getattr(reference, name)]
        reason = f"has another shape than --hf-checkpoint: {', '.join(differing)}."
        problems.append(Problem("--ref-load", folder, reason, "Actor and reference are one model with two weights."))


def _prompts(option: str, source: str | None, problems: list[Problem]) -> None:
    path = local_path(source) if source else None
    if path is None or path.is_file():
        return
    reason = "is a folder, not a file." if path.is_dir() else f"does not exist (looked in {path.absolute().parent})."
    problems.append(Problem(option, source, reason, "Give a JSONL or Parquet file."))
