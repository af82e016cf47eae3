"""``relax``: train, evaluate, and the other ``COMMANDS``.

Guarantee: a mistake is one paragraph on stderr and an exit code that is not 0; a traceback appears with ``--debug``
only. ``relax --help`` imports neither torch, Ray nor Prefect.
"""

import argparse
import io
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import ModuleType

from data.errors import Lost, UserError
from data.nearest import nearest
from flows.cli.stop import end_in_time, say_stopped
from relax_core import __version__

COMMANDS = {
    "train": "train a policy; the same --run-dir again goes on where it stopped",
    "evaluate": "score a run's newest weights, or a Hugging Face folder, on evaluation sets",
    "convert": "write a checkpoint of a run as a Hugging Face folder",
    "doctor": "say what is wrong with a configuration, and what a run of it would do",
    "reward": "score one case, or a recorded rollout again, or list rewards",
    "replay": "compute a recorded step again, also with other options, and compare",
    "diff": "compare two runs step by step",
    "show": "show a run's steps and rollouts, on the terminal or as one HTML page",
    "events": "print the timeline of a run: what started, died, was rewound, and why",
    "options": "list or search options: relax options [WORDS]",
    "explain": "tell everything about one option: relax explain --lr",
    "algorithms": "list the advantage estimators and what each needs",
    "schema": "print the JSON Schema of the run file",
    "import-args": "turn a bash launch script into a run file",
    "up": "start the standing Ray head and Prefect server",
    "status": "show what stands and which actors live",
    "down": "end what `relax up` started",
    "models": "prepare a model folder: relax models smollm2 DIR, or a toy: relax models toy DIR",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that cannot write a character gets its number
            stream.reconfigure(errors="backslashreplace")
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
        if argv is None and arguments[:1] in (["train"], ["evaluate"]):
            end_in_time()
    try:
        return _run(arguments, argv is None)
    except UserError as error:
        if debug:
            raise
        print(f"relax: {_shown(error)}", file=sys.stderr)
        return error.exit_code
    except SystemExit as leaving:
        if leaving.code == signal.SIGTERM:  # Ray's own handler, which takes the place of ours
            return say_stopped(signal.SIGTERM)
        raise
    except BrokenPipeError:  # `relax options | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return say_stopped(signal.SIGINT)
    except Exception as error:
        if debug:
            raise
        if _was_terminated(error):
            return say_stopped(signal.SIGTERM)
        print(f"relax: {type(error).__name__}: {_shown(error)} (--debug shows where)", file=sys.stderr)
        from flows.restarts import mendable

        return Lost.exit_code if mendable(error) else 1


def _shown(error: Exception) -> str:
    """The text of an error, without secrets and without characters that a terminal would act on."""
    from relax_core.config.problems import printable
    from relax_core.config.secrets import redact_text

    return "\n".join(map(printable, redact_text(str(error)).split("\n")))


def _terminate(number: int, frame: object) -> None:
    """Prefect catches SIGTERM first, ends the flow, and then sends it again."""
    raise SystemExit(say_stopped(signal.SIGTERM))


def _was_terminated(error: BaseException | None) -> bool:
    """Whether a SIGTERM is behind an error: Prefect turns it into an exception, which Ray wraps into another one."""
    while error is not None:
        if type(error).__name__ == "TerminationSignal":
            return True
        error = error.__cause__ or error.__context__
    return False


def _run(arguments: list[str], own_process: bool) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if arguments[0] in ("-V", "--version", "version"):
        print(f"relax {__version__}")
        return 0
    command, rest = arguments[0], arguments[1:]
    if command not in COMMANDS:
        raise UserError(f"relax {command or repr(command)}: there is no such command.", _nearest(command))
    if command in ("train", "evaluate"):
        from flows.cli import run

        return run.train(rest, own_process) if command == "train" else run.evaluate(rest)
    if command == "doctor":
        from flows.cli import ask

        return ask.doctor(rest)
    parser = argparse.ArgumentParser(prog=f"relax {command}", description=COMMANDS[command], allow_abbrev=False)
    return int(getattr(_module_of(command), command.replace("-", "_"))(parser, rest))


def _module_of(command: str) -> ModuleType:
    if command in ("options", "explain", "algorithms", "schema", "import-args"):
        from flows.cli import ask

        return ask
    if command == "convert":
        from flows.cli import convert

        return convert
    if command == "show":
        from flows.cli import show

        return show
    if command == "events":
        from flows.cli import events

        return events
    if command in ("replay", "diff"):
        from flows.cli import replay

        return replay
    if command == "reward":
        from flows.cli import reward

        return reward
    from flows.cli import standing

    return standing


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: relax COMMAND [options]",
            "",
            "Post-training of language models as a durable pipeline.",
            "",
            *lines,
            "",
            "`relax COMMAND --help` lists a command's options.",
        ]
    )


def _nearest(command: str) -> str:
    return f"{nearest(command.lower(), COMMANDS, '`relax {}`')} Commands: {', '.join(COMMANDS)}.".lstrip()


if __name__ == "__main__":
    sys.exit(main())
