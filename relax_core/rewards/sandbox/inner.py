"""What runs inside the sandboxes of a program and of its tests: `python -I -S inner.py serve|test DESCRIPTOR ...`.

Guarantee: a program and its tests are in two processes that share nothing but a connection; over it go calls and plain
values, so that what a program does to itself, to the interpreter or to a value's `==` decides no test. A script of its
own, which imports the standard library only.
"""

import ast
import builtins
import collections
import decimal
import fractions
import io
import json
import math
import os
import struct
import sys
import types
from typing import Any

MAX_MESSAGE = 16 << 20
MAX_ITEMS = 1_000_000
TOLERANCE = 1e-6
"""Relative and absolute, of numbers with a decimal point."""

_LENGTH = struct.Struct("!I")


class UnsupportedError(Exception):
    """A value that cannot be handed over."""


class ProgramError(Exception):
    """The program failed otherwise than with an exception of Python's own."""


# Values


def encode(value: Any, keep: Any = None, depth: int = 0) -> Any:
    """A value as JSON: a list of its kind and its content.

    Args:
        keep: gives a number to a value that is not plain; None: there may be none.
        depth: of nesting so far.
    """
    if depth > 200:
        raise UnsupportedError("values are nested too deeply")
    if value is None or isinstance(value, bool | str):
        return ["v", value] if not isinstance(value, str) else ["s", str(value)]
    if isinstance(value, int):
        return ["i", hex(value)]
    if isinstance(value, float):
        return ["f", float(value).hex()]
    if isinstance(value, complex):
        return ["c", value.real.hex(), value.imag.hex()]
    if isinstance(value, bytes | bytearray):
        return ["b" if isinstance(value, bytes) else "B", bytes(value).hex()]
    if isinstance(value, fractions.Fraction):
        return ["q", hex(value.numerator), hex(value.denominator)]
    if isinstance(value, decimal.Decimal):
        return ["d", str(value)]
    if isinstance(value, range):
        return ["r", value.start, value.stop, value.step]
    if isinstance(value, dict):
        kind = "counter" if isinstance(value, collections.Counter) else "dict"
        items = [[encode(k, keep, depth + 1), encode(v, keep, depth + 1)] for k, v in dict.items(value)]
        return [kind, items]
    for kind, plain in _SEQUENCES.items():
        if isinstance(value, plain):
            return [kind, [encode(item, keep, depth + 1) for item in plain.__iter__(value)]]  # type: ignore[attr-defined]
    if hasattr(value, "__next__"):
        items = []
        for item in value:
            items.append(encode(item, keep, depth + 1))
            if len(items) > MAX_ITEMS:
                raise UnsupportedError("an iterator gives too many items")
        return ["list", items]
    if isinstance(value, Remote):
        return ["ref", *value._ref]
    if keep is None:
        raise UnsupportedError(f"a {type(value).__name__} cannot be handed over")
    return ["kept", keep(value)]


_SEQUENCES: dict[str, type] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": collections.deque,
}


def decode(value: Any, found: Any) -> Any:
    """The value of ``encode``.

    Args:
        found: gives what stands for a value that is not plain.
    """
    kind, content = value[0], value[1:]
    if kind in ("v", "s"):
        return content[0]
    if kind == "i":
        return int(content[0], 16)
    if kind == "f":
        return float.fromhex(content[0])
    if kind == "c":
        return complex(*map(float.fromhex, content))
    if kind in ("b", "B"):
        data = bytes.fromhex(content[0])
        return data if kind == "b" else bytearray(data)
    if kind == "q":
        return fractions.Fraction(*(int(part, 16) for part in content))
    if kind == "d":
        return decimal.Decimal(content[0])
    if kind == "r":
        return range(*map(int, content))
    if kind in ("dict", "counter"):
        items = {decode(k, found): decode(v, found) for k, v in content[0]}
        return collections.Counter(items) if kind == "counter" else items
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](decode(item, found) for item in content[0])
    return found(kind, content)


class Connection:
    """Messages in JSON over a socket.

    Args:
        descriptor: of the socket.
    """

    def __init__(self, descriptor: int) -> None:
        self._in, self._out = os.fdopen(descriptor, "rb", closefd=False), descriptor

    def send(self, message: Any) -> None:
        """Send one; it must be JSON."""
        data = json.dumps(message).encode()
        if len(data) > MAX_MESSAGE:
            raise UnsupportedError("a value is too large")
        left = memoryview(_LENGTH.pack(len(data)) + data)
        while left:
            left = left[os.write(self._out, left) :]

    def receive(self) -> Any:
        """The next one.

        Raises:
            EOFError: the other side is gone.
        """
        head = self._in.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            raise EOFError
        (length,) = _LENGTH.unpack(head)
        if length > MAX_MESSAGE:
            raise EOFError
        data = self._in.read(length)
        if len(data) < length:
            raise EOFError
        return json.loads(data)


# The side of the program


def serve(descriptor: int) -> None:
    """Load program.py and answer: calls of what it defines, and of what these return."""
    connection = Connection(descriptor)
    program = types.ModuleType("program")
    sys.modules["program"] = program
    kept: list[Any] = []

    def keep(value: Any) -> int:
        kept.append(value)
        return len(kept) - 1

    def found(kind: str, content: list[Any]) -> Any:
        value = kept[content[1]] if content[0] == "kept" else _named(program, content[1])
        for name in content[2:]:
            value = getattr(value, name)
        return value

    def answer(make: Any) -> Any:
        try:
            return {"value": encode(make(), keep)}
        except UnsupportedError as error:
            return {"raised": "UnsupportedError", "text": str(error)}
        except BaseException as error:
            return {"raised": type(error).__name__, "text": str(error)[:500]}

    def load() -> None:
        with open("program.py", encoding="utf-8", errors="surrogatepass") as file:
            exec(compile(file.read(), "program.py", "exec"), program.__dict__)

    connection.send(answer(load))
    while True:
        try:
            asked = connection.receive()
        except EOFError:
            os._exit(0)
        ref = asked["ref"]

        def make(asked: Any = asked, ref: Any = ref) -> Any:
            value = found("ref", ref)
            if asked["call"] is None:
                return value
            positional, named = asked["call"]
            arguments = [decode(item, lambda kind, content: found(kind, content)) for item in positional]
            return value(*arguments, **{name: decode(item, found) for name, item in named.items()})

        connection.send(answer(make))


def _named(program: types.ModuleType, name: str) -> Any:
    """What a program defines by a name, at its top or in the class Solution."""
    if hasattr(program, name):
        return getattr(program, name)
    if hasattr(program, "Solution"):
        return getattr(program.Solution(), name)
    raise NameError(f"name {name!r} is not defined")


# The side of the tests


class Remote:
    """What stands in tests for something of the program's that is no plain value."""

    def __init__(self, client: "Client", ref: tuple[Any, ...]) -> None:
        self._client, self._ref = client, ref

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._client.get((*self._ref, name))

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._client.ask(self._ref, (arguments, named))


class Client:
    """Asks the program.

    Args:
        connection: to it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def loaded(self) -> None:
        """Wait until the program is loaded.

        Raises:
            Exception: it is not.
        """
        self._value(())

    def get(self, ref: tuple[Any, ...]) -> Any:
        """An attribute; one that is no plain value can be called."""
        return self.ask(ref, None)

    def ask(self, ref: tuple[Any, ...], call: Any) -> Any:
        """The value of a name or attribute, or what a call of it gives."""
        if call is not None:
            arguments, named = call
            call = [encode(item) for item in arguments], {name: encode(item) for name, item in named.items()}
        self._connection.send({"ref": list(ref), "call": call})
        return self._value(ref)

    def _value(self, ref: tuple[Any, ...]) -> Any:
        answer = self._connection.receive()
        if "value" in answer:
            return decode(answer["value"], lambda kind, content: Remote(self, ("kept", content[0])))
        kind = getattr(builtins, str(answer["raised"]), None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            raise kind(answer["text"])
        raise ProgramError(f"{answer['raised']}: {answer['text']}")


def test(descriptor: int, report: int) -> None:
    """Run the tests of tests.json against the program, and report each as a line of JSON.

    A line is ``{"ready": error or null}``: whether the program could be loaded; ``{"test": place, "ok": bool, "why":
    text}``, with ``"gone"`` where the program has ended; or ``{"broken": error}``: the tests themselves are no good.
    """
    out = os.fdopen(report, "w", buffering=1)
    with open("tests.json", encoding="utf-8", errors="surrogatepass") as file:
        asked = json.load(file)

    def tell(**line: Any) -> None:
        out.write(json.dumps(line) + "\n")

    client = Client(Connection(descriptor))
    try:
        client.loaded()
    except BaseException as error:
        tell(ready=_text(error))
        return
    try:
        run_one = _calls(client, asked) if "calls" in asked else _statements(client, asked)
    except (SyntaxError, ImportError, UnsupportedError) as error:
        tell(broken=_text(error))
        return
    except BaseException as error:  # what the lines before the tests ask of the program
        tell(ready=_text(error))
        return
    tell(ready=None)
    for place in range(asked["first"], asked["count"]):
        try:
            why = run_one(place)
        except UnsupportedError as error:
            tell(broken=f"test {place + 1}: {error}")
            return
        except EOFError:
            tell(test=place, ok=False, why="the program has ended", gone=True)
            return
        except BaseException as error:
            why = _text(error)
        tell(test=place, ok=not why, why=why)


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def _statements(client: Client, asked: dict[str, Any]) -> Any:
    """Tests that are Python: assertions after some lines that prepare them."""
    tests = [ast.parse(text) for text in asked["tests"]]
    setup = ast.parse(asked["setup"])
    namespace: dict[str, Any] = {"__name__": "tests"}
    for tree in [setup, *tests]:
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and not (hasattr(builtins, node.id) and node.id not in asked["names"]):
                namespace[node.id] = _of_the_tests(client, node.id, asked["names"])
    exec(compile(setup, "setup", "exec"), namespace)

    def run_one(place: int) -> str:
        try:
            exec(compile(tests[place], f"test {place + 1}", "exec"), namespace)
        except AssertionError as error:
            return str(error)[:300] or "wrong"
        return ""

    return run_one


def _of_the_tests(client: Client, name: str, names: list[str]) -> Any:
    """What a name means in tests: a module of the standard library, else something of the program's."""
    if name in sys.stdlib_module_names and name not in names:
        try:
            return __import__(name)
        except ImportError:
            pass
    return Remote(client, ("name", name))


def _calls(client: Client, asked: dict[str, Any]) -> Any:
    """Tests that are arguments and what comes of them."""

    def run_one(place: int) -> str:
        arguments, expected = asked["calls"][place]
        returned = client.ask(("name", asked["function"]), (arguments, {}))
        return "" if same(returned, expected) else f"wrong: {returned!r}"[:300]

    return run_one


def same(returned: Any, expected: Any) -> bool:
    """Whether a value is the expected one, which comes from JSON: a tuple equals a list, keys may be texts, and numbers
    with a decimal point are compared with ``TOLERANCE``."""
    if isinstance(expected, float) and isinstance(returned, int | float) and not isinstance(returned, bool):
        return returned == expected or math.isclose(returned, expected, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    if isinstance(expected, list) and isinstance(returned, list | tuple):
        return len(returned) == len(expected) and all(map(same, returned, expected))
    if isinstance(expected, dict) and isinstance(returned, dict):
        by_text = {str(key): value for key, value in returned.items()}
        return by_text.keys() == expected.keys() and all(same(by_text[key], expected[key]) for key in expected)
    return type(returned) is type(expected) and returned == expected


if __name__ == "__main__":
    sys.stdin = io.StringIO()
    if sys.argv[1] == "serve":
        serve(int(sys.argv[2]))
    else:
        test(int(sys.argv[2]), int(sys.argv[3]))
