"""What is given to a deployment: parameters of a flow run, and the run file that they are laid over.

Guarantee: they are read and checked as the command line is, with the same messages, and without Prefect; what is wrong
with them is known before a flow run is made.
"""

from collections.abc import Mapping
from typing import Any

from relax_core.config.examine import examine_given
from relax_core.config.parser import Given, read_given
from relax_core.config.problems import Problem

CHECKED = ("train", "evaluate")
"""Flows whose parameters are a configuration of a whole run."""


def given_parameters(
    config: Mapping[str, Any] | None, config_file: str | None = None, environ: Mapping[str, str] | None = None
) -> Given:
    """The configuration that a flow run is given.

    Args:
        config: options by section, as in a run file.
        config_file: a run file that they are laid over.
        environ: the environment, which stands between the two; default: this process's.
    """
    return read_given(["--config", config_file] if config_file else [], environ, config or {})


def run_file_of(run_dir: str | None) -> str | None:
    """The ``config.yaml`` of a run directory; None where there is none."""
    if not run_dir:
        return None
    from data.store import RunStore  # here: pyarrow takes time that a mistake in the options does not need

    return f"{run_dir.rstrip('/')}/config.yaml" if RunStore(run_dir).exists("config.yaml") else None


def submission_problems(flow: str, parameters: Mapping[str, Any], files: bool = True) -> list[Problem]:
    """What is wrong with the parameters of a flow run; nothing for flows whose parameters are no configuration.

    Args:
        flow: its flow's name.
        parameters: those of the deployment, and those of the flow run over them.
        files: whether files and folders that are named are on this machine; without them they are not looked at.
    """
    config = parameters.get("config") or {}
    if flow not in CHECKED or not isinstance(config, Mapping):  # the schema says what is wrong with the latter
        return []
    config_file = parameters.get("config_file")
    if flow == "evaluate":
        config_file = run_file_of(parameters.get("run_dir")) if files else None
        if config_file is None:
            return []  # a run that has not begun yet, which is no mistake of a schedule
    unread = bool(config_file) and not files  # what is missing here may stand there
    given = given_parameters(config, None if unread else config_file)
    found = examine_given(given, "evaluate" if flow == "evaluate" else "train", files).errors
    return [problem for problem in found if not (unread and problem.reason.startswith("is required"))]
