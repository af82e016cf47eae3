"""The reward for programs: ``code`` runs the program of a response against the tests of its row.

Guarantee: the program runs in a sandbox (``relax_core.rewards.sandbox``) and what it returns or writes is judged
outside of it, so that it cannot pass but by being right; what it costs is bounded by its time, memory, processes and
output. A sandbox that cannot be made is an error, never a score.
"""

import json
import logging
import math
import time
from typing import Any

from data.errors import UserError
from relax_core.rewards.programs import Settings, Tests, program_of, settings_of, tests_of
from relax_core.rewards.registry import register
from relax_core.rewards.types import RewardInput

log = logging.getLogger(__name__)

SHARE_OF_TIMEOUT = 0.8
"""Of --reward-timeout: tests that did not run by then have failed."""

TOLERANCE = 1e-6
"""Relative and absolute, of numbers with a decimal point in what a program writes."""

_told: set[str] = set()


@register("code", isolated=True, options=("code_sandbox", "reward_timeout"), key="score")
def code(sample: RewardInput, code_sandbox: str, reward_timeout: float) -> dict[str, Any]:
    """1 when the program in the response passes the tests of its row, in a sandbox; else 0.

    The program is the last fenced block of Python, the tests are metadata.tests or the label (``programs.SHAPES``).

    Returns:
        ``score``, ``passed`` and ``tests`` (numbers of tests; those behind the first failure are not run unless
        metadata.code.score is ``share``), and ``error``, why the first test failed.

    Raises:
        UserError: no tests, or no sandbox.
    """
    settings, tests = settings_of(sample), tests_of(sample)
    program = program_of(sample, settings)
    if program is None:
        return {"score": 0.0, "passed": 0, "tests": len(tests), "error": "the response has no program"}
    end = time.monotonic() + SHARE_OF_TIMEOUT * reward_timeout
    try:
        compile_error = _compile_error(program)
        results = [compile_error] if compile_error else _results(program, tests, settings, end, code_sandbox == "full")
    except _broken_sandbox() as error:
        raise _no_sandbox(sample, error) from error
    except _BrokenTestsError as error:
        raise UserError(
            f"The tests of sample {sample.sample_id} cannot be run: {error}.", "Correct the row, or leave it out."
        ) from error
    failures = [why for why in results if why]
    passed = len(results) - len(failures)
    score = passed / len(tests) if settings.score == "share" else float(passed == len(tests))
    return {"score": score, "passed": passed, "tests": len(tests), **({"error": failures[0]} if failures else {})}


class _BrokenTestsError(Exception):
    pass


def _broken_sandbox() -> tuple[type[Exception], ...]:
    from relax_core.rewards.sandbox.run import NoIsolationError

    return NoIsolationError, RuntimeError


def _no_sandbox(sample: RewardInput, error: Exception) -> UserError:
    from relax_core.rewards.sandbox.run import NO_SANDBOX

    return UserError(
        f"The program of sample {sample.sample_id} was not run, since this machine gives no sandbox: {error}.",
        NO_SANDBOX,
    )


def _compile_error(program: str) -> str:
    """What is wrong with the text of a program: cheaper to know before there is a sandbox."""
    import ast

    try:
        ast.parse(program)
    except SyntaxError as error:
        return f"SyntaxError: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _results(program: str, tests: Tests, settings: Settings, end: float, isolated: bool) -> list[str]:
    """Why each test failed, empty where it passed; without ``share`` no further than the first failure."""
    if not isolated and "limits" not in _told:
        _told.add("limits")
        log.warning("--code-sandbox limits: programs of responses run with limits, but with network and files.")
    results: list[str] = []
    run = _streams if tests.streams else _pair
    while len(results) < len(tests):
        left = end - time.monotonic()
        results += run(program, tests, settings, len(results), isolated, left) if left > 0 else ["no time was left"]
        if settings.score == "all" and results[-1]:
            break
    return results


def _limits(settings: Settings, processor: float) -> Any:
    from relax_core.rewards.sandbox.run import Limits

    return Limits(seconds=processor, memory=int(settings.memory_mb) << 20)


_MAIN = (
    "import builtins, sys; builtins.exit = builtins.quit = sys.exit; sys.argv = ['program.py']; "
    "exec(compile(open('program.py', encoding='utf-8', errors='surrogatepass').read(), 'program.py', 'exec'))"
)
"""A program as Python itself would run it; ``exit`` comes from a module that is left out."""


def _streams(program: str, tests: Tests, settings: Settings, first: int, isolated: bool, left: float) -> list[str]:
    """The test ``first``: what the program writes when it reads its input."""
    from relax_core.rewards.sandbox.run import run

    given, expected = tests.streams[first]
    limits = _limits(settings, min(settings.seconds, left))
    ended = run({"program.py": program}, ["-c", _MAIN], limits, given, isolated=isolated)
    if ended.too_much:
        return ["it wrote too much"]
    if ended.late or ended.status == 128 + 24 or (ended.status == 128 + 9):  # SIGXCPU, SIGKILL behind it
        return [f"it took longer than {settings.seconds:g} s"]
    if ended.status != 0:
        last = ended.errors.decode(errors="replace").strip().rpartition("\n")[2]
        return [f"it ended with status {ended.status}: {last[:200]}"]
    return ["" if same_output(ended.output.decode(errors="replace"), expected) else "wrong output"]


def _pair(program: str, tests: Tests, settings: Settings, first: int, isolated: bool, left: float) -> list[str]:
    """The tests from ``first`` on, as far as one process of the program answers."""
    from relax_core.rewards.sandbox.run import START_SECONDS, Pair

    asked: dict[str, Any] = {"first": first, "count": len(tests)}
    if tests.calls:
        asked |= {"calls": tests.calls, "function": tests.function}
    else:
        asked |= {"tests": tests.asserts, "setup": tests.setup, "names": tests.names}
    left_over = len(tests) - first
    clock, late = 2 * settings.seconds, f"it took longer than {settings.seconds:g} s"
    end = time.monotonic() + left
    results: list[str] = []
    limits = _limits(settings, settings.seconds * left_over)
    with Pair({"program.py": program}, {"tests.json": json.dumps(asked)}, limits, isolated) as pair:
        line = pair.line(min(clock + START_SECONDS, left))
        if line is None or line.get("ready"):
            return [late if line is None else str(line["ready"])] * left_over
        while len(results) < left_over and "broken" not in line:
            line = pair.line(min(clock, end - time.monotonic()))
            if line is None:
                return [*results, late]
            if "ok" in line:
                results.append("" if line["ok"] else str(line["why"]))
                if line.get("gone") or (settings.score == "all" and not line["ok"]):
                    break
        if "broken" in line:
            raise _BrokenTestsError(line["broken"])
    return results


def same_output(written: str, expected: str) -> bool:
    """Whether what a program wrote is what was expected.

    Blanks at the ends of lines and empty lines at the end do not count; a number is compared as one, with
    ``TOLERANCE``, where the expected one has a decimal point.
    """
    left, right = ([line.rstrip() for line in text.rstrip().splitlines()] for text in (written, expected))
    return len(left) == len(right) and all(map(_same_line, left, right))


def _same_line(written: str, expected: str) -> bool:
    if written == expected:
        return True
    left, right = written.split(), expected.split()
    return len(left) == len(right) and all(map(_same_word, left, right))


def _same_word(written: str, expected: str) -> bool:
    if written == expected:
        return True
    if "." not in expected or len(expected) > 40 or len(written) > 40:
        return False
    try:
        return math.isclose(float(written), float(expected), rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    except ValueError:
        return False
