"""The files that a configuration names.

Guarantee: a local file or folder that is not there is found at once; what lies behind a URL is left to the stage that
reads it.
"""

import os
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
    checkpoint = config.checkpoint
    shape = _model("--hf-checkpoint", checkpoint.hf_checkpoint, problems, tokenizer=True)
    reference = _model("--ref-load", checkpoint.ref_load, problems, tokenizer=False)
    if shape is not None and reference is not None and reference != shape:
        differing = [name for name in vars(shape) if getattr(shape, name) != getattr(reference, name)]
        reason = f"has another shape than --hf-checkpoint: {', '.join(differing)}."
        fix = "Actor and reference are one model with two weights."
        problems.append(Problem("--ref-load", checkpoint.ref_load, reason, fix))
    _load(checkpoint.load, problems)
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
    return None if "://" in url or "::" in url else Path(os.path.expanduser(url))


def _model(option: str, folder: str | None, problems: list[Problem], *, tokenizer: bool) -> ModelShape | None:
    if not folder:
        return None
    try:
        return read_model_folder(folder, tokenizer=tokenizer)
    except UserError as error:
        problems.append(Problem(option, None, error.problem, error.fix))
    except OSError as error:
        problems.append(Problem(option, folder, f"cannot be read: {error.strerror}."))
    return None


def _load(folder: str | None, problems: list[Problem]) -> None:
    if not folder:
        return
    path = Path(folder)
    try:
        if not path.is_dir():
            problems.append(Problem("--load", folder, "is no folder."))
        elif not (path / _MEGATRON_TRACKER).is_file() and not (path / "config.json").is_file():
            reason = f"is no checkpoint: it has neither {_MEGATRON_TRACKER} (Megatron) nor config.json (Hugging Face)."
            problems.append(Problem("--load", folder, reason))
    except OSError as error:
        problems.append(Problem("--load", folder, f"cannot be read: {error.strerror}."))


def _prompts(option: str, source: str | None, problems: list[Problem]) -> None:
    path = local_path(source) if source else None
    if path is None:
        return
    fix = "Give a JSONL or Parquet file."
    try:
        if path.is_dir():
            problems.append(Problem(option, source, "is a folder, not a file.", fix))
        elif not path.is_file():
            problems.append(Problem(option, source, f"does not exist (looked in {path.absolute().parent}).", fix))
    except OSError as error:
        problems.append(Problem(option, source, f"cannot be read: {error.strerror}."))
