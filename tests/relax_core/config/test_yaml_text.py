"""What YAML text stands for, and what of it is refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from relax_core.config.yaml_text import dump_yaml, load_yaml, read_text, why_unreadable

_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def why(text: str) -> str:
    with pytest.raises(yaml.YAMLError) as caught:
        load_yaml(text)
    return why_unreadable(caught.value)


@given(_PLAIN)
def test_what_is_written_is_read_back_equal(value: Any) -> None:
    assert load_yaml(dump_yaml(value)) == value


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e-6", 1e-6),
        ("-.5", -0.5),
        ("1_000", 1000),
        ("0x10", 16),
        ("0o17", 15),
        # what YAML 1.1 would read as 8, as 90 and as a date
        ("010", "010"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("yes", True),
        ("~", None),
        ("=", "="),
    ],
)
def test_a_plain_scalar(written: str, value: Any) -> None:
    assert load_yaml(f"a: {written}") == {"a": value}


@pytest.mark.parametrize("written", ["1.50", "0123", "0x1F", "+1", "1e6", "12:30"])
def test_numbers_may_stay_as_they_are_written(written: str) -> None:
    assert load_yaml(f"a: {written}", numbers_as_text=True) == {"a": written}


def test_keys_of_a_merge_may_be_given_again_and_others_may_not() -> None:
    assert load_yaml("x: &x {a: 1, b: 1}\ny:\n  <<: *x\n  b: 2\n")["y"] == {"a": 1, "b": 2}
    assert why("a: 1\nb: 1\na: 2\n") == "is no valid YAML in line 3: a is given twice."


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: &x [*x]", "an alias stands inside its own anchor"),
        ("a: " + "[" * 60 + "]" * 60, "nested more than 50 deep"),
        ("a: " + "[" * 5000 + "]" * 5000, "nested more than 50 deep"),
        ("a: " + "9" * 5000, "a number has too many digits"),
        ("a: !!python/object/apply:os.system [x]", "the tag !!python/object/apply:os.system is not read"),
        ("a: !!set {b}", "the tag !!set is not read"),
        ("a: !!int x", "x is no number"),
        ("a: !!bool x", "a tag such as !!bool does not fit"),
        ("a: 1\n---\nb: 1\n", "expected a single document in the stream, but found another document"),
        ("a:\n\t- 1", "in line 2: a tab stands where only spaces may"),
        ("a: \0", "it has the character U+0000"),
    ],
)
def test_what_is_refused(text: str, reason: str) -> None:
    assert reason in why(text)


def test_aliases_that_multiply_are_refused_before_they_are_written_out() -> None:
    lines = ["x0: &x0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10)}]" for n in range(1, 8)]
    assert "its aliases stand for more than 1000000 values" in why("\n".join(lines))


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\r\n")
    assert load_yaml(read_text(str(file))) == {"a": 1}
    file.write_bytes("a: 1".encode("utf-16"))
    with pytest.raises(UnicodeDecodeError) as caught:
        read_text(str(file))
    assert why_unreadable(caught.value) == "cannot be read: is UTF-16 text. Save it as UTF-8."
    with pytest.raises(OSError, match="no path has such characters"):
        read_text("a\0b")
