"""``relax train`` and ``relax evaluate``.

Guarantee: options are read and checked before anything heavy is imported, so that a mistake in them is told within a
second.
"""

import logging
import os
import sys
import tempfile
import time
import warnings

from data.store import RunStore
from relax_core.config import RelaxConfig, Source, options_help, parse_arguments, read_config, validate


def train(arguments: list[str]) -> int:
    """Train, or go on with a run, or say that it is complete."""
    if _help_wanted(arguments):
        print(_usage("train"))
        return 0
    config, sources = _configuration(arguments)
    validate(config)  # before the imports below, which take seconds
    _quiet_logs()
    from flows.train import train as run_training

    run_training(config, sources)
    return 0


def evaluate(arguments: list[str]) -> int:
    """Score weights on evaluation sets."""
    if _help_wanted(arguments):
        print(_usage("evaluate"))
        return 0
    config, _ = read_config(_with_options_of_the_run(arguments))
    if config.run.run_dir is None:
        config.run.run_dir = time.strftime("runs/evaluation-%Y%m%d-%H%M%S")
    validate(config, "evaluate")
    _quiet_logs()
    from flows.evaluate import evaluate as run_evaluation

    run_evaluation(config)
    return 0


def _with_options_of_the_run(arguments: list[str]) -> list[str]:
    """What the run was given counts unless it is given anew; the run's own file takes the place of ``--config``."""
    given = parse_arguments(arguments)
    run_dir = given.get("run_dir")
    if run_dir is None or "config" in given or not RunStore(run_dir).exists("config.yaml"):
        return arguments
    with tempfile.NamedTemporaryFile("wb", suffix=".yaml", delete=False) as file:
        file.write(RunStore(run_dir).read_bytes("config.yaml"))
    return ["--config", file.name, *arguments]


def _help_wanted(arguments: list[str]) -> bool:
    return any(argument in ("-h", "--help") for argument in arguments)


def _usage(command: str) -> str:
    return f"usage: relax {command} [--config RUN.yaml] [options]\n\n{options_help()}"


def _configuration(arguments: list[str]) -> tuple[RelaxConfig, dict[str, Source]]:
    config, sources = read_config(arguments)
    if config.run.run_dir is None:
        config.run.run_dir = time.strftime("runs/%Y%m%d-%H%M%S")
        sources["run_dir"] = "derived"
    return config, sources


def _quiet_logs() -> None:
    """Our own warnings on stderr; those of libraries do not help the person at the keyboard.

    Prefect would show the traceback of every error, ours included, three times; its interface still has them.
    """
    warnings.filterwarnings("ignore")
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    for name in ("relax_core", "data", "tasks", "flows"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(logging.WARNING)
        logger.propagate = False
    logging.getLogger("transformers").setLevel(logging.ERROR)
