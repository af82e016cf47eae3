"""Where a response gives its answer: the last box of what follows the thinking."""

import pytest
from counting import calls
from hypothesis import given
from hypothesis import strategies as st

from relax_core.rewards.answers.boxed import boxed, last_box, last_boxes
from relax_core.rewards.answers.thinking import final_part
from relax_core.rewards.types import RewardInput


@pytest.mark.parametrize(
    ("response", "part"),
    [
        ("a", "a"),  # a model that does not think
        ("a</think>b", "b"),
        ("<think>a</think>b", "b"),
        ("<think>a</think>b</think>c", "c"),  # the last marker
        ("a</think>", ""),
        ("b<think>a", "b"),  # thinking that was never ended is no answer
        ("<think>a", ""),
        ("a</think>b<think>c", "b"),
        ("", ""),
    ],
)
def test_the_final_part_is_what_follows_the_thinking(response: str, part: str) -> None:
    assert final_part(response) == part


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{7}", "7"),
        (r"\boxed{ 7 }", "7"),
        (r"\boxed {7}", "7"),
        (r"\fbox{7}", "7"),
        (r"\framebox{7}", "7"),
        (r"\boxed{1} \boxed{2}", "2"),
        (r"\boxed{1} \fbox{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),  # escaped braces are no braces
        (r"\boxed{a\\}", "a\\\\"),  # a line break does not escape the brace
        (r"\boxed{\boxed{3}}", r"\boxed{3}"),
        (r"\boxed{x=\boxed{5}}", r"x=\boxed{5}"),
        (r"\boxed 7", "7"),
        (r"$\boxed 42$", "42"),
        (r"\boxed -3.5, so", "-3.5"),
        (r"\boxed\frac{1}{2}", r"\frac{1}{2}"),
        (r"\boxed C.", "C"),
        ("\\\\boxed{7}", "7"),
        ("\x08oxed{7}", "7"),
        (r"\boxed{1} then \boxed{}", "1"),  # an empty box is none
        (r"\boxed{1} by \boxed as asked", "1"),  # a mention is none
        (r"{ \boxed{1}", "1"),  # braces before it do not matter
        (r"} \boxed{1}", "1"),
        (r"\boxed{1}}}", "1"),
        (r"\boxed{2 \boxed{1}", "1"),  # the outer one never ended
        (r"\boxed{1", None),
        (r"\boxed{1} \boxed{2", None),  # what was begun last is not known
        (r"\boxedx{1}", None),
        ("boxed{1}", None),
        (r"\boxed", None),
        ("", None),
    ],
)
def test_the_last_box_counts(text: str, content: str | None) -> None:
    assert last_box(text) == content


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        (r"\boxed{1}, \boxed{2}", "1, 2"),
        (r"$\boxed{1} \quad \text{and} \quad \boxed{2}$", "1, 2"),
        (r"\(\boxed{1}\) or \(\boxed{2}\).", "1, 2"),
        (r"\boxed{0} no: \boxed 1, \boxed{2}", "1, 2"),
        (r"\boxed{1} then \boxed{2}", None),
        (r"\boxed{1}", None),
        (r"\boxed{1}, \boxed{2", None),
        ("", None),
    ],
)
def test_boxes_side_by_side_are_a_list(text: str, contents: str | None) -> None:
    assert last_boxes(text) == contents


def test_boxed_replaces_the_response_and_nothing_else() -> None:
    sample = RewardInput("s", "p", r"\boxed{1}</think>\boxed{2}", 3, {"a": 1}, 4, "truncated")
    assert boxed(sample) == RewardInput("s", "p", "2", 3, {"a": 1}, 4, "truncated")
    assert boxed(RewardInput("s", "p", "2")).response == ""
    assert boxed(RewardInput("s", "p", r"\boxed{1}</think>")).response == ""


def test_what_stood_in_the_box_is_not_thinking_though_the_prompt_opened_it() -> None:
    for prompt in ("p<think>", "p<think>\n"):
        assert boxed(RewardInput("s", prompt, r"a</think>\boxed{2}")) == RewardInput("s", "p", "2")
        assert boxed(RewardInput("s", prompt, r"\boxed{2}")).response == ""  # the thinking was never ended


def in_last_box(response: str) -> str:
    return boxed(RewardInput("s", "p", response)).response


contents = st.recursive(
    st.text("ab1+ ", min_size=1, max_size=4),
    lambda inner: (
        st.tuples(inner, inner).map(lambda parts: f"{parts[0]}{{{parts[1]}}}") | inner.map(r"\{{{}\}}".format)
    ),
    max_leaves=6,
)


@given(st.text("ab{}\\ ", max_size=20), contents, st.text("ab {", max_size=10))
def test_any_content_comes_back_whole(before: str, content: str, after: str) -> None:
    # A backslash at the end of what stands before would escape the box's own.
    text = f"{before} \\boxed{{x{content}}}{after}"
    if "boxed" not in before and "box" not in before:
        assert last_box(text) == f"x{content}".strip()


@given(st.text(r"\boxed{} 1f", max_size=60))
def test_no_text_raises(text: str) -> None:
    in_last_box(text)
    last_boxes(text)


@pytest.mark.parametrize(
    "piece", ["{", "}", r"\boxed{", r"\boxed{1}", r"\boxed ", "\\", "</think>", "<think>", "{}", "a"]
)
def test_work_grows_with_the_length_and_no_faster(piece: str) -> None:
    short, long = (calls(lambda n=n: in_last_box(r"\boxed{1" + piece * n)) for n in (1000, 4000))
    assert long <= 4 * short + 100


def test_a_megabyte_of_anything_is_read() -> None:
    # Quadratic patterns would need hours for these; the test's own time limit catches that.
    for piece in (
        "{",
        "}",
        r"\boxed{1},",
        r"\boxed{",
        r"\boxed{1}and",
        r"\boxed ",
        "\\",
        r"\boxed\a{",
        "<think>",
        r"\boxed 1",
        r"\boxed-",
    ):
        in_last_box(piece * (10**6 // len(piece)))
        last_boxes(piece * (10**6 // len(piece)))
