"""Programs in responses, and the tests that rows bring for them, as data sets have them.

Guarantee: a row whose tests cannot be read is an error that names the sample and the shapes that can; nothing of either
is executed here.
"""

import ast
import json
import re
from dataclasses import dataclass
from typing import Any

from data.errors import UserError
from relax_core.rewards.types import RewardInput

_FENCE = re.compile(r"^ {0,3}(```+|~~~+)[ \t]*([^\s`{]*)[^\n`]*$", re.MULTILINE)
_PYTHON = ("", "python", "py", "python3", "python2", "pycon", "ipython")

SHAPES = (
    '{"inputs": [...], "outputs": [...]} of texts, or with "fn_name" of arguments and results; '
    '[{"input": ..., "output": ...}]; {"asserts": [...], "setup": ...}, a list or a text of assert statements; '
    '{"test": a text that defines check(candidate), "entry_point": a name}'
)
"""What a row's tests may look like."""

MAX_SECONDS, MAX_MEMORY_MB = 60.0, 16_384


@dataclass(frozen=True)
class Tests:
    """The tests of a program; one of the kinds has some.

    Attributes:
        streams: what it reads and what it must write, for each test.
        asserts: statements of Python, a text for each test, after those of ``setup``.
        setup: statements.
        names: that mean the program's own, even where Python has one of that name.
        calls: arguments and what must be returned, for each call of ``function``.
        function: see ``calls``.
    """

    streams: tuple[tuple[str, str], ...] = ()
    asserts: tuple[str, ...] = ()
    setup: str = ""
    names: tuple[str, ...] = ()
    calls: tuple[tuple[list[Any], Any], ...] = ()
    function: str = ""

    def __len__(self) -> int:
        return len(self.streams) + len(self.asserts) + len(self.calls)


@dataclass(frozen=True)
class Settings:
    """metadata.code of a row.

    Attributes:
        score: ``all``: 1 when every test passes, else 0; ``share``: the share of tests that pass.
        seconds: processor seconds of a test.
        memory_mb: address space of a process.
        program: in place of the response's.
        before, after: text round the program.
    """

    score: str = "all"
    seconds: float = 5.0
    memory_mb: int = 1024
    program: str | None = None
    before: str = ""
    after: str = ""


def program_of(sample: RewardInput, settings: Settings) -> str | None:
    """The program: the last fenced block of the response that is Python or says nothing; None without one.

    A block that is not closed reaches to the end of the response.
    """
    program = settings.program
    if program is None:
        program = _last_block(sample.response)
    return None if program is None else f"{settings.before}{program}{settings.after}"


def _last_block(text: str) -> str | None:
    found, opened, begin = None, None, 0
    for match in _FENCE.finditer(text):
        mark, language = match[1], match[2].lower()
        if opened is None:
            opened, begin = match, match.end() + 1
        elif mark[0] == opened[1][0] and len(mark) >= len(opened[1]) and not match[0].strip().strip(mark[0]):
            if opened[2].lower() in _PYTHON:
                found = text[begin : match.start()]
            opened = None
        elif language in _PYTHON[1:]:  # the one before was never closed
            opened, begin = match, match.end() + 1
    if opened is not None and opened[2].lower() in _PYTHON:
        found = text[begin:]
    return found


def settings_of(sample: RewardInput) -> Settings:
    """What the row says of how its program is run.

    Raises:
        UserError: what cannot be.
    """
    given = sample.metadata.get("code")
    if given is None:
        return Settings()
    if not isinstance(given, dict) or not set(given) <= set(Settings.__dataclass_fields__):
        names = ", ".join(Settings.__dataclass_fields__)
        raise _wrong(sample, "its metadata.code", given, f"It is an object with some of {names}.")
    made = Settings(**given)
    limits = ((made.seconds, MAX_SECONDS), (made.memory_mb, MAX_MEMORY_MB))
    right = made.score in ("all", "share") and all(
        isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most for value, most in limits
    )
    if not right or not all(isinstance(text, str | None) for text in (made.program, made.before, made.after)):
        fix = f"score is all or share, seconds up to {MAX_SECONDS:g}, memory_mb up to {MAX_MEMORY_MB}, the rest texts."
        raise _wrong(sample, "its metadata.code", given, fix)
    return made


def tests_of(sample: RewardInput) -> Tests:
    """The tests of a row: its metadata.tests, else its label.

    Raises:
        UserError: there are none, or they have none of ``SHAPES``.
    """
    where = "its metadata.tests" if "tests" in sample.metadata else "its label"
    given = sample.metadata.get("tests", sample.label)
    try:
        tests = _read(given, sample.metadata)
    except (LookupError, TypeError, ValueError, AttributeError, SyntaxError, RecursionError, MemoryError):
        tests = Tests()
    if not len(tests):
        raise _wrong(sample, where, given, f"Tests are {SHAPES}.")
    return tests


def _read(given: Any, metadata: dict[str, Any]) -> Tests:
    if isinstance(given, str):
        text = given.strip()
        if text[:1] in ("[", "{"):
            return _read(json.loads(text), metadata)
        return _of_python(text, str(metadata.get("entry_point") or ""))
    if isinstance(given, dict):
        return _of_dict(given, metadata)
    if not isinstance(given, list):
        raise TypeError
    if all(isinstance(one, str) for one in given):
        return _asserts(given, "")
    inputs, outputs = [one["input"] for one in given], [one["output"] for one in given]
    functional = any(one.get("testtype") == "functional" for one in given)
    name = str(metadata.get("fn_name") or metadata.get("func_name") or "")
    if functional and not name:
        raise ValueError("the name of the function is missing")
    return _of_pairs(inputs, outputs, name)


def _of_dict(given: dict[str, Any], metadata: dict[str, Any]) -> Tests:
    if "asserts" in given:
        return _asserts(given["asserts"], given.get("setup") or "")
    if "test" in given:
        return _of_python(given["test"], str(given.get("entry_point") or metadata.get("entry_point") or ""))
    if "inputs" in given:
        name = given.get("fn_name") or given.get("func_name") or metadata.get("fn_name") or metadata.get("func_name")
        return _of_pairs(given["inputs"], given["outputs"], str(name or ""))
    return _of_pairs([given["input"]], [given["output"]], "")


def _of_pairs(inputs: list[Any], outputs: list[Any], name: str) -> Tests:
    if len(inputs) != len(outputs):
        raise ValueError("not as many outputs as inputs")
    if name:
        pairs = tuple((_arguments(one), _value(other)) for one, other in zip(inputs, outputs, strict=True))
        return Tests(calls=pairs, function=name)
    return Tests(streams=tuple((_text(one), _text(other)) for one, other in zip(inputs, outputs, strict=True)))


def _arguments(given: Any) -> list[Any]:
    """A list of them, or a text with one a line, in JSON."""
    if isinstance(given, str):
        return [json.loads(line) for line in given.splitlines() if line.strip()]
    if not isinstance(given, list):
        raise TypeError
    return given


def _value(given: Any) -> Any:
    """A result: a text that is JSON is what it says."""
    if isinstance(given, str):
        try:
            return json.loads(given)
        except ValueError:
            return given
    return given


def _text(given: Any) -> str:
    """What is read or written: a list has a text for each line."""
    if isinstance(given, list):
        return "\n".join(map(_text, given))
    if not isinstance(given, str | int | float) or isinstance(given, bool):
        raise TypeError
    return str(given)


def _asserts(given: Any, setup: Any) -> Tests:
    if not isinstance(given, list) or not all(isinstance(one, str) for one in [*given, setup]):
        raise TypeError
    for text in [*given, setup]:
        ast.parse(text)
    return Tests(asserts=tuple(given), setup=setup)


def _of_python(text: str, entry_point: str) -> Tests:
    """Assertions at the top are tests, the rest prepares them; with ``check`` there is one test, a call of it."""
    body = ast.parse(text).body
    if any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in body):
        if not entry_point.isidentifier():
            raise ValueError("the name of the function is missing")
        return Tests(asserts=(f"check({entry_point})",), setup=text, names=(entry_point,))
    tests = [ast.unparse(node) for node in body if isinstance(node, ast.Assert)]
    setup = "\n".join(ast.unparse(node) for node in body if not isinstance(node, ast.Assert))
    return Tests(asserts=tuple(tests), setup=setup)


def _wrong(sample: RewardInput, where: str, given: Any, fix: str) -> UserError:
    shown = repr(given)
    return UserError(
        f"Sample {sample.sample_id} is to be scored by code, and cannot be by {where}: {shown[:120]}"
        f"{'…' * (len(shown) > 120)}.",
        fix,
    )
