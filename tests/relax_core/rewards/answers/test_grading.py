"""Verdicts: laws that hold for all answers. The rows of the panel are the examples."""

import threading
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.rewards.answers import symbolic
from relax_core.rewards.answers.grading import at_once, verdict
from relax_core.rewards.answers.reading import MAX_LENGTH, read
from relax_core.rewards.answers.values import Relation

WRITTEN = r"""
1 2 0 12 3.5 , ( ) [ ] { } \{ \} \frac \sqrt x y ab i e \pi + - * / ^ _ = < > \le \cup \in \text{ cm \% % $ \$ ! |
\pm \infty \sin \log \ln & \\ and or \circ : ; . ' \boxed{ \left \right \binom \overline √ π ² ½ − ９ million
\mathbb{R} \setminus \dot 1e3 \ # Yes \emptyset \lfloor \rfloor \approx \det \begin{pmatrix} \end{pmatrix}
"""
PIECES = WRITTEN.split()
texts = st.lists(st.sampled_from([*PIECES, " ", "\x00"]), max_size=12).map("".join)

numbers = st.fractions(min_value=-1000, max_value=1000, max_denominator=40)


def written(value: Fraction, way: int) -> str:
    """One of many ways to write a fraction."""
    sign, top, bottom = "-" if value < 0 else "", abs(value.numerator), value.denominator
    whole, rest = divmod(top, bottom)
    plain = f"{sign}{top}" if bottom == 1 else rf"{sign}\frac{{{top}}}{{{bottom}}}"
    ways = [
        plain,
        f"{sign}{top}/{bottom}",
        rf"\frac{{{sign}{3 * top}}}{{{3 * bottom}}}",
        rf"{sign}{whole}\frac{{{rest}}}{{{bottom}}}" if whole and rest else plain,
        rf"{plain}\text{{ cm}}",
        f"x = {plain}",
        f"${plain}$",
        rf"\left({plain}\right)",
        rf"\text{{}}{plain}.",
        rf"{sign}\sqrt{{{top * top}}} \div {bottom}",
        f"{float(value)!r}" if 64000 % bottom == 0 else plain,
        rf"{sign}\frac{{{100 * top}}}{{{bottom}}}\%",
        f"{sign}0{top}/0{bottom}",
        plain.replace("-", "−"),
    ]
    return ways[way % len(ways)]


@given(numbers, st.integers(0, 13))
def test_a_number_is_right_however_it_is_written(value: Fraction, way: int) -> None:
    assert at_once(written(value, 0), written(value, way)) is True


@given(numbers, numbers, st.integers(0, 4), st.integers(0, 4))
def test_another_number_is_wrong_however_it_is_written(a: Fraction, b: Fraction, first: int, second: int) -> None:
    assert at_once(written(a, first), written(b, second)) is (a == b)


@given(st.lists(numbers, min_size=1, max_size=5), st.randoms())
def test_sets_are_unordered_and_tuples_are_not(values: list[Fraction], random) -> None:
    shuffled = values[:]
    random.shuffle(shuffled)
    first, second = (", ".join(written(value, way) for value in some) for some, way in ((values, 0), (shuffled, 2)))
    assert at_once(rf"\{{{first}\}}", rf"\{{{second}\}}") is True
    assert at_once(first, second) is True
    if len(values) > 1:
        assert at_once(f"({first})", f"({second})") is (values == shuffled)
        assert at_once(rf"\langle {first} \rangle", rf"\{{{second}\}}") is False


@given(numbers, numbers, st.sampled_from(["()", "[]", "(]", "[)"]), st.sampled_from(["()", "[]", "(]", "[)"]))
def test_intervals_are_equal_with_ends_and_brackets(a: Fraction, b: Fraction, first: str, second: str) -> None:
    label, answer = (f"{kind[0]}{written(a, i)}, {written(b, i)}{kind[1]}" for i, kind in enumerate((first, second)))
    assert at_once(label, answer) is (first == second)


@given(texts)
@settings(max_examples=300)
def test_every_answer_equals_itself_and_its_spaced_self(text: str) -> None:
    if text.strip():
        assert at_once(text, text) is True
        assert verdict(text, f" {text} ") is True
    else:
        assert at_once(text, text) is False  # nothing is no answer


@given(texts, texts)
@settings(max_examples=500)
def test_no_text_raises_and_order_matters_for_relations_only(a: str, b: str) -> None:
    one, other = at_once(a, b), at_once(b, a)
    assert one in (True, False, None)
    values = [read(text).value for text in (a, b)]
    if not any("Relation" in str(value) or isinstance(value, Relation) for value in values) and None not in (
        one,
        other,
    ):
        assert one == other


@given(texts, texts)
@settings(max_examples=30, deadline=None)
def test_what_is_decided_at_once_is_the_verdict(a: str, b: str) -> None:
    decided, full = at_once(a, b), verdict(a, b)
    assert decided is None or decided == full


@given(st.text(max_size=40), st.text(max_size=40))
def test_unicode_of_any_kind_does_not_raise(a: str, b: str) -> None:
    at_once(a, b)


@pytest.mark.parametrize(
    ("label", "answer", "right"),
    [
        ("4", r"\max(3, 4)", True),
        ("4", r"\max(3, 5)", False),
        (r"x \equiv 3 \pmod{7}", r"x\equiv 3\pmod{7}", True),
        (r"x \equiv 3 \pmod{7}", r"x \equiv 4 \pmod{7}", False),
    ],
)
def test_what_is_not_read_here_is_left_to_sympy(label: str, answer: str, right: bool) -> None:
    assert at_once(label, answer) in (None, right)
    assert verdict(label, answer) is right


HOSTILE = [
    "9^{9^{9^{9}}}",
    "9^9^9^9",
    "9**9**9**9",
    "100000!",
    "((9!)!)!",
    "__import__('os').system('touch x')",
    r"\sum_{i=1}^{10^9} i",
    r"\prod_{i=1}^{10^9} i",
    r"\int_0^{10^{10}} e^{x^2} dx",
    r"\lim_{n\to\infty} n",
    r"\binom{10^9}{10^8}",
    "{" * 10_000 + "}" * 10_000,
    "(" * 700 + ")" * 700,
    r"\sqrt{" * 200 + "2" + "}" * 200,
    r"\frac{1}{1+" * 120 + "x" + "}" * 120,
    "9" * 100_000,
    "1e" + "9" * 100,
    "1," * 100_000,
    "x" * 10**6,
    r"\begin{pmatrix}" + "1&" * 100_000 + r"1\end{pmatrix}",
    "\x00" * 10_000,
    "(x+1)^{10000000}",
    "(a+b+c+d+e+f)^{30}" * 60,
    r"e^{e^{e^{e^{1000}}}}",
    r"\sin(10^{3000})",
    r"2^{1/97}" * 150,
    r"\pm" * 500,
    ",".join(rf"\sin {i}" for i in range(130)),
    "|" * 1000,
    r"\text{" * 250,
]


@pytest.mark.parametrize("answer", HOSTILE, ids=lambda text: text[:24].replace("\x00", "0"))
def test_hostile_answers_are_wrong_before_sympy_sees_them(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbolic, "_parsed", lambda text: pytest.fail(f"sympy was given {text[:50]!r}"))
    for label in ("42", "x^2+1", r"\sin 1, \ln 7", "[0,1)", "Tuesday"):
        assert verdict(label, answer) is False


@pytest.mark.parametrize("answer", ["9^{9^{9^{9}}}", "{" * 10_000 + "}" * 10_000])
def test_what_is_beyond_the_bounds_equals_its_own_writing(answer: str) -> None:
    assert verdict(answer, answer) is True
    assert verdict(answer, f"{answer}0") is False
    assert verdict(answer, "0") is False


def test_an_answer_of_python_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text in ("__import__('os').system('touch x')", r"\text{__import__('os').system('touch x')}", "open('x','w')"):
        assert verdict("1", text) is False
        assert verdict("x=1", f"x={text}") is False
    assert list(tmp_path.iterdir()) == []


def test_verdicts_are_the_same_in_a_thread() -> None:
    pairs = [("4", r"\max(3, 4)"), (r"\sin^2 x", r"1-\cos^2 x"), ("42", "9^{9^{9^{9}}}"), ("1", r"\sqrt[3]{1}")]
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.extend(verdict(*pair) for pair in pairs))
    thread.start()
    thread.join()
    assert found == [verdict(*pair) for pair in pairs] == [True, True, False, True]


def test_a_text_of_the_greatest_length_is_read_and_a_longer_one_is_not() -> None:
    text = "+".join(["1"] * (MAX_LENGTH // 2))
    assert at_once(str(MAX_LENGTH // 2), text) is True
    assert read(f"{text}+1111").state == "beyond"


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("9^{9^{9}}", True),
        ("9^{(9^9)}", True),
        ("9^9^9", True),
        ("x^{9^9}", True),
        ("e^{-x^2}", False),
        (r"\frac{x^2}{y^2}", False),
        ("x^{2}y^{2}", False),
        ("x^{12345}", True),
        ("5!", True),
        ("1" * 16, True),
        (r"\sum x", True),
        (r"\summit", False),
        ("{" * 20, True),
        ("x" * 500, True),
    ],
)
def test_what_must_not_reach_sympy(text: str, refused: bool) -> None:
    assert symbolic.refused(text) is refused
