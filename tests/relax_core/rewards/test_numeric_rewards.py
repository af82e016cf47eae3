"""exact_number and gsm8k: what counts as a number, and when two are equal."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import UserError
from relax_core.rewards.builtin.numeric import (
    exact_number,
    gsm8k,
    gsm8k_flexible,
    last_number,
    marked_number,
    parse_number,
)
from relax_core.rewards.types import RewardInput


def sample(response: str, label: object) -> RewardInput:
    return RewardInput("000000-0000-000", "p", response, label)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("The answer is 7.", 7),
        ("first 3, then 5", 5),
        ("it is -4", -4),
        ("it is \u22124", -4),  # Unicode minus
        ("+4", 4),
        ("10-3=7", 7),
        ("3-4", 4),  # a difference, not minus four
        ("GPT-4", 4),  # a hyphen
        ("(-4)", -4),
        ("$42", 42),
        ("-$42", -42),
        ("$-42$", -42),  # LaTeX
        ("\\$42", 42),
        ("\\boxed{42}", 42),
        ("**42**", 42),
        ("42<|im_end|>", 42),
        ("1,234,567", 1234567),
        ("1,234.50", Fraction(2469, 2)),
        ("1,2,3", 3),  # a list: commas without groups of three
        ("1,23", 23),
        (".5", Fraction(1, 2)),
        ("0.10", Fraction(1, 10)),
        ("042", 42),
        ("wait...5", 5),
        ("end.5", 5),  # a missing space, not a half
        ("5km", 5),
        ("50%", 50),
        ("1e3", 1000),
        ("2.5E-1", Fraction(1, 4)),
        ("3/4", Fraction(3, 4)),
        ("\u7b54\u6848\u662f42", 42),  # no spaces round numbers in Chinese
        ("version v1.2.3", None),
        ("H2O and x_1", None),
        ("seven", None),
        ("", None),
        ("1/0", None),
        ("4 then 1/0", None),  # the last number counts, and it has no value
        ("1e999999999", None),
        ("1e" + "9" * 6000, None),
        ("9" * 100_000, None),
    ],
)
def test_last_number_of_a_text(text, value):
    assert last_number(text) == value


@pytest.mark.parametrize(
    ("response", "label", "score"),
    [
        ("7.", 7, 1),
        ("7.", "7", 1),
        ("3 + 4 = 7", 7.0, 1),
        ("seven", 7, 0),
        ("7 or 8", 7, 0),
        ("$1,234", "1234", 1),
        ("1234.0", "$1,234", 1),
        ("0.1", 0.1, 1),  # a float label means its shortest decimal form, not the binary value
        ("-0", 0, 1),
        (r"\boxed{__import__('os').system('touch x')}", 0, 0),  # nothing is evaluated
        (r"\boxed{9^{9^{9^{9}}}}", 42, 0),
        (r"\boxed{42}", 42, 1),  # a model that does not think needs no marker
        (r"\boxed{99}</think>\boxed{42}", 42, 1),
        ("9" * 100_000, 9, 0),
    ],
)
def test_exact_number(response, label, score):
    assert exact_number(sample(response, label)) == score


# Each of these is written by models that have the right answer.
@pytest.mark.parametrize(
    ("response", "label"),
    [
        ("#### 42\n" + "x" * 301, "42"),
        ("####42", "42"),
        ("#### 42.", "42"),
        ("#### $42", "42"),
        ("#### 42.00", "42"),
        ("#### 1,234", "1234"),
        ("#### 42", "42.0"),
        ("#### 42", 42),
        ("#### 41\n#### 42", "42"),
        ("#### **42**", "42"),
        ("#### -5", "-5"),
        ("#### 18", "She makes 9 * 2 = $<<9*2=18>>18 every day.\n#### 18"),
        ("#### 70000", "He made 70,000\n#### 70,000"),
    ],
)
def test_gsm8k_accepts_the_marked_answer(response, label):
    assert gsm8k(sample(response, label)) == 1
    assert gsm8k_flexible(sample(response, label)) == 1


@pytest.mark.parametrize(
    ("response", "strict", "flexible"),
    [
        ("The answer is 42", 0, 1),
        ("The answer is 41", 0, 0),
        ("#### 41", 0, 0),
        ("#### 42\n#### 41", 0, 0),
        ("#### 42 apples, checked in 3 ways", 1, 1),  # the mark wins over the last number
        ("#### The answer is 42", 0, 1),
        ("#### 42/5", 0, 0),
        ("#### 42,5", 0, 0),  # not 42; its last number is 5
        ("#### ", 0, 0),
        ("", 0, 0),
    ],
)
def test_gsm8k_strict_and_flexible(response, strict, flexible):
    assert gsm8k(sample(response, "42")) == strict
    assert gsm8k_flexible(sample(response, "42")) == flexible


@pytest.mark.parametrize("reward", [exact_number, gsm8k, gsm8k_flexible])
@pytest.mark.parametrize("label", ["forty-two", "", "4 2", True, [42], float("nan"), float("inf"), "9" * 500, 10**500])
def test_a_label_that_is_no_number_is_an_error_naming_the_sample(reward, label):
    with pytest.raises(UserError, match="000000-0000-000 is not a number"):
        reward(sample("42", label))


@pytest.mark.parametrize("reward", [exact_number, gsm8k, gsm8k_flexible])
def test_a_missing_label_is_an_error_naming_the_option(reward):
    with pytest.raises(UserError, match="--label-key"):
        reward(sample("42", None))


@given(st.integers(-(10**30), 10**30), st.integers(0, 12), st.booleans())
def test_any_writing_of_a_decimal_reads_as_its_value(digits, places, commas):
    # The value is digits / 10^places; write it plainly or with commas, and inside a sentence.
    value = Fraction(digits, 10**places)
    whole, fraction = divmod(abs(digits), 10**places)
    text = f"{whole:,}" if commas else str(whole)
    text = ("-" if digits < 0 else "") + text + (f".{fraction:0{places}d}" if places else "")
    assert last_number(f"We get {text}.") == value
    assert marked_number(f"so\n#### {text}\n") == value
    assert parse_number(text) == value


@given(st.text(alphabet="0123456789.,-+$/e# \n*a\u2212%", max_size=200))
def test_no_text_raises_and_strict_implies_flexible(text):
    strict, flexible = gsm8k(sample(text, 1)), gsm8k_flexible(sample(text, 1))
    assert strict <= flexible
    assert exact_number(sample(text, 1)) in (0.0, 1.0)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_label_equals_its_own_writing(value):
    if abs(value) < 1e300 and (value == 0 or abs(value) > 1e-300):
        assert exact_number(sample(f"= {value!r}", value)) == 1


def test_long_hostile_texts_take_linear_time():
    # Quadratic patterns would need minutes for these; the test's own time limit catches that.
    for text in ("1," * 200_000, "1,234," * 100_000, "-" * 500_000, "#### " * 100_000, "1/" * 200_000, "$" * 500_000):
        last_number(text)
        marked_number(text)
