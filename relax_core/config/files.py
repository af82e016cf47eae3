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
from relax_core.training.shape import ModelShape

_SLICE = re.compile(r"@\[[^\]]*\]$")
_MEGATRON_TRACKER, _MEGATRON_MARKER = "latest_checkpointed_iteration.txt", "relax_state.json"
_STEP_OPTIONS = {"--ref-load": "--ref-ckpt-step", "--opd-teacher-load": "--opd-teacher-ckpt-step"}
_FIRST_RUN = (
    "Leave it out for a first run, which starts from --ref-load, else --hf-checkpoint; to go on with a run, give its"
    " --run-dir."
)


def check_files(
    config: RelaxConfig, purpose: Literal["train", "evaluate"] = "train"
) -> tuple[ModelShape | None, list[Problem]]:
    """The shape of ``--hf-checkpoint``'s model (None when it cannot be used), and what is wrong with the files."""
    problems: list[Problem] = []
    checkpoint = config.checkpoint
    shape = _model("--hf-checkpoint", checkpoint.hf_checkpoint, problems, tokenizer=True)
    _other_weights("--ref-load", checkpoint.ref_load, checkpoint.ref_ckpt_step, shape, problems)
    if needs_teacher(config):
        options = config.opd
        _other_weights("--opd-teacher-load", options.opd_teacher_load, options.opd_teacher_ckpt_step, shape, problems)
    if checkpoint.load != checkpoint.ref_load:  # else it follows --ref-load, where a mistake is told
        _load("--load", checkpoint.load, None, problems)
    if purpose == "train" and needs_critic(config) and checkpoint.critic_load != checkpoint.load:
        _load("--critic-load", checkpoint.critic_load, None, problems)
    if purpose == "train":
        _prompts("--prompt-data", config.data.prompt_data, problems)
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


def _other_weights(
    option: str, folder: str | None, step: int | None, shape: ModelShape | None, problems: list[Problem]
) -> None:
    """The reference's or the teacher's: of the actor's shape, as far as a config.json tells."""
    if folder and _is_checkpoints(folder):
        _load(option, folder, step, problems)
        return
    other = _model(option, folder, problems, tokenizer=False)
    differing = shape.differences(other) if shape is not None and other is not None else []
    if differing:
        reason = f"has another shape than --hf-checkpoint: {', '.join(differing)}."
        fix = "The trainer computes with one model, and these are other weights of it."
        if option == "--opd-teacher-load":
            fix = "A teacher in the trainer is other weights of the same shape; another one takes --opd-type sglang."
        problems.append(Problem(option, folder, reason, fix))


def _is_checkpoints(folder: str) -> bool:
    """Whether this is a folder of Megatron checkpoints, one of them, or a URL, behind which only checkpoints may be."""
    try:
        found = any((Path(folder) / name).is_file() for name in (_MEGATRON_TRACKER, _MEGATRON_MARKER))
    except OSError:  # no name that a file could have
        return False
    return found or "://" in folder


def _load(option: str, folder: str | None, step: int | None, problems: list[Problem]) -> None:
    if not folder or "://" in folder:
        return
    path = Path(folder)
    try:
        if not path.is_dir():
            problems.append(Problem(option, folder, "is no folder.", _FIRST_RUN if option == "--load" else ""))
        elif not _is_checkpoints(folder) and not (path / "config.json").is_file():
            reason = f"is no checkpoint: it has neither {_MEGATRON_TRACKER} (Megatron) nor config.json (Hugging Face)."
            problems.append(Problem(option, folder, reason, _FIRST_RUN if option == "--load" else ""))
        elif step is not None and not (path / f"iter_{step:07d}" / _MEGATRON_MARKER).is_file():
            named = _STEP_OPTIONS[option]
            reason = f"has no complete checkpoint of step {step}, which {named} names."
            problems.append(Problem(option, folder, reason, f"Leave {named} out for the newest."))
    except OSError as error:
        problems.append(Problem(option, folder, f"cannot be read: {error.strerror}."))


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
