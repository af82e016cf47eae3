"""The files that a configuration names.

Guarantee: a local file or folder that is not there is found at once; what lies behind a URL is left to the stage that
reads it.
"""

import os
import re
from pathlib import Path
from typing import Literal

from data.errors import UserError
from relax_core.config.derived import needs_critic, needs_teacher
from relax_core.config.eval_sets import read_eval_config, sets_from_pairs
from relax_core.config.model_files import read_model_folder
from relax_core.config.problems import Problem
from relax_core.config.sections import RelaxConfig
from relax_core.config.weight_files import owner_problems, weight_problems
from relax_core.training.shape import ModelShape

_SLICE = re.compile(r"@\[[^\]]*\]$")


def check_files(
    config: RelaxConfig, purpose: Literal["train", "evaluate"] = "train"
) -> tuple[ModelShape | None, list[Problem]]:
    """The shape of ``--hf-checkpoint``'s model (None when it cannot be used), and what is wrong with the files."""
    problems: list[Problem] = []
    checkpoint = config.checkpoint
    shape = _model("--hf-checkpoint", checkpoint.hf_checkpoint, problems, tokenizer=True)
    step, reference = checkpoint.ref_ckpt_step, checkpoint.ref_load
    problems += weight_problems("--ref-load", reference, shape, step=step, checked=True)
    if needs_teacher(config):
        step, teacher = config.opd.opd_teacher_ckpt_step, config.opd.opd_teacher_load
        problems += weight_problems("--opd-teacher-load", teacher, shape, step=step, checked=True)
    if checkpoint.load != checkpoint.ref_load:  # else it follows --ref-load, where a mistake is told
        problems += weight_problems("--load", checkpoint.load, shape)
    if purpose == "train" and needs_critic(config) and checkpoint.critic_load != checkpoint.load:
        problems += weight_problems("--critic-load", checkpoint.critic_load, shape)
    if purpose == "train":
        _prompts("--prompt-data", config.data.prompt_data, problems)
        for option, place in (("--save", checkpoint.save), ("--critic-save", checkpoint.critic_save)):
            _folder(option, place, problems)
            problems += owner_problems(option, place, config.run.run_dir)
    _folder("--run-dir", config.run.run_dir, problems)
    _evaluation(config, problems)
    return shape, problems


def local_path(url: str) -> Path | None:
    """The local path of an fsspec URL without its row slice; None when it is not local."""
    url = _SLICE.sub("", url)
    if url.startswith("file://"):
        url = url.removeprefix("file://")
    return None if "://" in url or "::" in url else Path(os.path.expanduser(url))


def _evaluation(config: RelaxConfig, problems: list[Problem]) -> None:
    options = config.eval
    option, sets = "--eval-prompt-data" if options.eval_prompt_data else "--eval-datasets", options.eval_datasets
    if options.eval_config:
        option = "--eval-config"
        read, wrong = read_eval_config(options.eval_config)
        problems += wrong
        sets = sets or read
    elif sets is None and options.eval_prompt_data:
        pairs = options.eval_prompt_data
        sets = sets_from_pairs(pairs) if len(pairs) == 1 or len(pairs) % 2 == 0 else []
    for one in sets or []:
        _prompts(option, one.path, problems, f"evaluation set {one.name}")


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


def _folder(option: str, place: str | None, problems: list[Problem]) -> None:
    """A folder that will be written to: it, or the nearest of its parents that is there, must be one."""
    path = local_path(place) if place else None
    try:
        while path is not None and not path.exists() and path != path.parent:
            path = path.parent
        if path is not None and path.exists() and not path.is_dir():
            reason = "is a file, and a folder is meant." if str(path) == place else f"cannot be made: {path} is a file."
            problems.append(Problem(option, place, reason, "Name another folder."))
    except OSError as error:
        problems.append(Problem(option, place, f"cannot be made: {error.strerror}."))


def _prompts(option: str, source: str | None, problems: list[Problem], origin: str = "") -> None:
    path = local_path(source) if source else None
    fix = "Give a JSONL or Parquet file."
    reason = "names no file." if source == "" and origin else ""  # --prompt-data is required anyway
    try:
        if path is not None and path.is_dir():
            reason = "is a folder, not a file."
        elif path is not None and not path.is_file():
            reason = f"does not exist (looked in {path.absolute().parent})."
    except OSError as error:
        reason, fix = f"cannot be read: {error.strerror}.", ""
    if reason:
        problems.append(Problem(option, source, reason, fix, origin=origin))
