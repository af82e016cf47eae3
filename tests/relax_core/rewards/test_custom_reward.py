"""Loading a user's reward function and knowing its source."""

import asyncio
import hashlib
import importlib
import sys
from functools import partial
from pathlib import Path

import pytest

from data.errors import UserError
from relax_core.rewards.custom import load_custom, source_hash
from relax_core.rewards.types import RewardInput

SAMPLE = RewardInput("s", "p", "r")


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
        if name.startswith(("user_", "relax_custom_reward_")):
            del sys.modules[name]


def test_a_function_by_file_and_by_module_of_the_working_directory(package):
    path = package("user_a.py", "def reward(sample):\n    '''One for all.\n\n    More.'''\n    return 1.0\n")
    for place in (f"{path}:reward", "user_a.py:reward", "user_a.reward", "user_a:reward"):
        spec = load_custom(place)
        assert spec.function(SAMPLE) == 1.0
        assert (spec.name, spec.custom, spec.is_async, spec.doc) == (place, True, False, "One for all.")
        assert spec.source_hash == hashlib.sha256(path.read_bytes()).hexdigest()


def test_coroutine_functions_and_callable_objects(package):
    package(
        "user_b.py",
        "class Judge:\n    async def __call__(self, sample):\n        return 0.5\n"
        "judge = Judge()\nasync def reward(sample):\n    return 0.25\n",
    )
    for name, value in (("reward", 0.25), ("judge", 0.5)):
        spec = load_custom(f"user_b.{name}")
        assert spec.is_async
        assert asyncio.run(spec.function(SAMPLE)) == value


@pytest.mark.parametrize("form", ["user_c.py:reward", "user_c.reward"])
def test_an_edited_file_is_loaded_anew(package, form):
    package("user_c.py", "def reward(sample):\n    return 1.0\n")
    first = load_custom(form)
    package("user_c.py", "def reward(sample):\n    return 0.125\n")  # another size: no stale bytecode
    second = load_custom(form)
    assert (first.function(SAMPLE), second.function(SAMPLE)) == (1.0, 0.125)
    assert first.source_hash != second.source_hash


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("reward", "names no function"),
        ("user_none.reward", "cannot be imported: ModuleNotFoundError"),
        ("nowhere/file.py:reward", "there is no file"),
        ("user_d.rewrad", "Did you mean 'reward'"),
        ("user_d.VALUE", "is of type int, not a function"),
        ("user_d.two", "cannot be called with one argument"),
    ],
)
def test_what_cannot_be_used_says_why(package, path, message):
    package("user_d.py", "VALUE = 3\ndef reward(sample):\n    return 1\ndef two(args, sample):\n    return 1\n")
    with pytest.raises(UserError, match=message):
        load_custom(path)


@pytest.mark.parametrize("form", ["user_e.py:reward", "user_e.reward"])
def test_a_module_that_fails_shows_its_line_and_can_be_mended(package, form):
    package("user_e.py", "x = 1\ny = x / 0\n")
    with pytest.raises(UserError, match=r"ZeroDivisionError") as error:
        load_custom(form)
    assert "y = x / 0" in error.value.details
    package("user_e.py", "def reward(sample):\n    return 1.0\n")
    assert load_custom(form).function(SAMPLE) == 1.0


def test_source_hash_covers_helpers_in_the_same_file(package):
    package("user_f.py", "SCALE = 1\ndef reward(sample):\n    return SCALE\n")
    before = load_custom("user_f.py:reward").source_hash
    package("user_f.py", "SCALE = 2\ndef reward(sample):\n    return SCALE\n")
    assert load_custom("user_f.py:reward").source_hash != before


def test_source_hash_of_a_partial_is_that_of_its_function():
    assert source_hash(partial(load_custom, "x")) == source_hash(load_custom)


def test_a_function_without_source_is_an_error():
    scope: dict = {"__name__": "no_such_module"}
    exec("def reward(sample): return 1", scope)
    with pytest.raises(UserError, match="Define it in a file"):
        source_hash(scope["reward"])
