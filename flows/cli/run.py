"""``relax train`` and ``relax evaluate``.

Guarantee: options are read and checked before anything heavy is imported, so that a mistake in them is told within a
second.
"""

import logging
import os
import sys
import time
import warnings

from relax_core import signs
from relax_core.config import Given, RelaxConfig, Source
from relax_core.config.examine import accept, examine_given
from relax_core.config.help import options_help
from relax_core.config.parser import read_given, read_words
from relax_core.config.sources import DERIVED

AGAIN = """
--again  also where these weights were evaluated before with the same sets and options
"""


def train(arguments: list[str], own_process: bool = False) -> int:
    """Train, or go on with a run, or say that it is complete.

    Args:
        own_process: whether this process was started for this command, so that it can be started again.
    """
    if _help_wanted(arguments):
        print(_usage("train"))
        return 0
    watched = signs.adopt()
    _quiet_logs()
    given = read_given(arguments)
    report = examine_given(given)
    if not watched:
        accept(report)  # before the imports below, which take seconds
    config, sources = _with_run_dir(given, "runs/%Y%m%d-%H%M%S")
    if config.fault_tolerance.use_health_check and not watched and own_process:
        from flows.supervise import supervise

        return supervise([sys.executable, *sys.orig_argv[1:], "--run-dir", str(config.run.run_dir)], config)
    from flows.restarts import telling_the_watcher

    with telling_the_watcher():
        accept(report)
        if signs.attempt():
            config.run.takeover = False  # from whoever has taken the run over meanwhile
        from flows.train import train as run_training

        run_training(config, sources)
    return 0


def evaluate(arguments: list[str]) -> int:
    """Score weights on evaluation sets."""
    if _help_wanted(arguments):
        print(_usage("evaluate", AGAIN))
        return 0
    again, arguments = "--again" in arguments, [word for word in arguments if word != "--again"]
    _quiet_logs()
    given = read_given(with_options_of_the_run(arguments))
    accept(examine_given(given, "evaluate"))
    config, _ = _with_run_dir(given, "runs/evaluation-%Y%m%d-%H%M%S")
    from flows.evaluate import evaluate as run_evaluation

    run_evaluation(config, again=again)
    return 0


def with_options_of_the_run(arguments: list[str]) -> list[str]:
    """What the run was given counts unless it is given anew; the run's own file takes the place of ``--config``."""
    run_dir = read_words(arguments)[0].get("run_dir", os.environ.get("RELAX_RUN_DIR"))
    if not run_dir or any(word.partition("=")[0] == "--config" for word in arguments):
        return arguments
    from data.store import RunStore  # here: pyarrow takes time that a mistake in the options does not need

    if not RunStore(run_dir).exists("config.yaml"):
        return arguments
    return ["--config", f"{run_dir.rstrip('/')}/config.yaml", *arguments]


def _help_wanted(arguments: list[str]) -> bool:
    return any(argument in ("-h", "--help") for argument in arguments)


def _usage(command: str, more: str = "") -> str:
    return f"usage: relax {command} [--config RUN.yaml] [options]\n{more}\n{options_help()}"


def _with_run_dir(given: Given, default: str) -> tuple[RelaxConfig, dict[str, Source]]:
    config, sources, _ = given
    if config.run.run_dir is None:
        config.run.run_dir = time.strftime(default)
        sources["run_dir"] = DERIVED
        print(
            f"relax: the run is {config.run.run_dir}; with --run-dir {config.run.run_dir} it goes on.", file=sys.stderr
        )
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
