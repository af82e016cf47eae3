"""Loading a user's function and knowing its source."""

import asyncio
import hashlib
import importlib
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from data.errors import UserError
from relax_core.functions import UserFunction, load_function, source_hash


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes modules into the working directory, forgets them afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    known = set(sys.modules)

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text)
        importlib.invalidate_caches()
        return path

    yield write
    for name in set(sys.modules) - known:
        if name.startswith(("user_", "relax_user_function_")):
            del sys.modules[name]


def load(path: str, arguments: int = 1, is_async: bool = False) -> UserFunction:
    return load_function(path, "--some-path", "make(thing)", arguments, is_async=is_async)


def test_a_function_by_file_and_by_module_of_the_working_directory(package):
    path = package("user_a.py", "def make(thing):\n    '''One for all.\n\n    More.'''\n    return 1.0\n")
    for place in (f"{path}:make", "user_a.py:make", "user_a.make", "user_a:make"):
        function = load(place)
        assert function.call(None) == 1.0
        assert (function.path, function.is_async, function.doc) == (place, False, "One for all.")
        assert function.source_hash == hashlib.sha256(path.read_bytes()).hexdigest()


def test_coroutine_functions_and_callable_objects(package):
    package(
        "user_b.py",
        "class Judge:\n    async def __call__(self, thing):\n        return 0.5\n"
        "judge = Judge()\nasync def make(thing):\n    return 0.25\n",
    )
    for name, value in (("make", 0.25), ("judge", 0.5)):
        function = load(f"user_b.{name}", is_async=True)
        assert function.is_async
        assert asyncio.run(function.call(None)) == value


@pytest.mark.parametrize("form", ["user_c.py:make", "user_c.make"])
def test_an_edited_file_is_loaded_anew(package, form):
    package("user_c.py", "def make(thing):\n    return 1.0\n")
    first = load(form)
    package("user_c.py", "def make(thing):\n    return 0.125\n")  # another size: no stale bytecode
    second = load(form)
    assert (first.call(None), second.call(None)) == (1.0, 0.125)
    assert first.source_hash != second.source_hash


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("make", "--some-path 'make' names no function"),
        ("user_none.make", "cannot be imported: ModuleNotFoundError"),
        ("nowhere/file.py:make", "there is no file"),
        ("user_d.maek", "Did you mean 'make'"),
        ("user_d.VALUE", "is of type int, not a function"),
        ("user_d.two", r"cannot be called with one argument: .*Define it as `def make\(thing\)`"),
    ],
)
def test_what_cannot_be_used_says_why_and_what_is_expected(package, path, message):
    package("user_d.py", "VALUE = 3\ndef make(thing):\n    return 1\ndef two(args, thing):\n    return 1\n")
    with pytest.raises(UserError, match=message):
        load(path)


def test_an_import_of_slime_says_what_to_import_instead(package):
    package("user_s.py", "from slime.utils.types import Sample\ndef make(thing):\n    return 1\n")
    with pytest.raises(UserError, match=r"No module named 'slime'.*relax_core.rollout.sample import Sample") as error:
        load("user_s.make")
    imports, call = re.findall("`(.*?)`", error.value.fix)[1:]
    sample = SimpleNamespace(prompt="1 + 1 =", response=r"\boxed{2}", label="2", metadata={})
    assert eval(call, {"sample": sample, **_executed(imports)}) == 1  # what is told works
    assert "Sample" in _executed(re.findall("`(.*?)`", error.value.fix)[0])


def _executed(line):
    names = {}
    exec(line, names)
    return names


def test_a_plain_function_where_a_coroutine_function_is_needed_is_an_error(package):
    package("user_p.py", "def make(thing):\n    return 1\n")
    with pytest.raises(UserError, match=r"is no coroutine function.*Define it as `async def make\(thing\)`"):
        load("user_p.make", is_async=True)


@pytest.mark.parametrize("form", ["user_e.py:make", "user_e.make"])
def test_a_module_that_fails_shows_its_line_and_can_be_mended(package, form):
    package("user_e.py", "x = 1\ny = x / 0\n")
    with pytest.raises(UserError, match=r"ZeroDivisionError") as error:
        load(form)
    assert "y = x / 0" in error.value.details
    package("user_e.py", "def make(thing):\n    return 1.0\n")
    assert load(form).call(None) == 1.0


@pytest.mark.parametrize("form", ["user_g.py:make", "user_g.make"])
def test_threads_that_load_a_module_at_once_all_get_the_whole_of_it(package, form):
    """The module takes a while before it defines its function, and counts how often it is executed."""
    package(
        "user_g.py",
        "import threading, time\nCOUNTS = getattr(threading, 'user_g_counts', [])\nthreading.user_g_counts = COUNTS\n"
        "COUNTS.append(1)\ntime.sleep(0.1)\ndef make(thing):\n    return len(COUNTS)\n",
    )
    try:
        with ThreadPoolExecutor(8) as pool:
            functions = list(pool.map(lambda _: load(form), range(8)))
        assert [function.call(None) for function in functions] == [1] * 8
    finally:
        del threading.user_g_counts  # type: ignore[attr-defined]


def test_what_a_function_raised_is_told_with_its_line(package):
    package("user_h.py", "def make(thing):\n    return thing['key']\n")
    function = load("user_h.make")
    try:
        function.call({})
    except KeyError as error:
        failure = function.failure("on sample 7", error)
    assert "--some-path user_h.make failed on sample 7: KeyError: 'key'" in failure.problem
    assert "thing['key']" in failure.details


def test_whether_a_function_takes_an_argument(package):
    package("user_i.py", "def make(thing, evaluation=False):\n    return 1\n")
    assert load("user_i.make").takes("evaluation")
    assert not load("user_i.make").takes("other")


def test_source_hash_covers_helpers_in_the_same_file(package):
    package("user_f.py", "SCALE = 1\ndef make(thing):\n    return SCALE\n")
    before = load("user_f.py:make").source_hash
    package("user_f.py", "SCALE = 2\ndef make(thing):\n    return SCALE\n")
    assert load("user_f.py:make").source_hash != before


def test_source_hash_of_a_partial_is_that_of_its_function():
    assert source_hash(partial(load_function, "x")) == source_hash(load_function)


def test_a_function_without_source_is_an_error():
    scope: dict = {"__name__": "no_such_module"}
    exec("def make(thing): return 1", scope)
    with pytest.raises(UserError, match="Define it in a file"):
        source_hash(scope["make"])
