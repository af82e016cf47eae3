import pytest

from data.errors import UserError
from relax_core.config.problems import MAX_SHOWN, Problem, raise_problems, show_value


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, "true"),
        ("", '""'),
        (["a", None, True, ""], 'a null true ""'),
        ([["a"]], '[["a"]]'),
        ({"a": [1, None]}, '{"a": [1, null]}'),
        ("\x1b[31mred\n", "\\x1b[31mred "),
        ("\u200b\udcff", "\\u200b\\udcff"),
        ("é🙂学", "é🙂学"),
        ("x" * 100, "x" * 77 + "..."),
    ],
)
def test_a_value_as_it_is_shown(value: object, shown: str) -> None:
    assert show_value(value) == shown


def test_a_problem_is_one_line_of_bounded_length() -> None:
    text = str(
        Problem("--" + "x" * 5000, "y" * 5000, "is wrong\nfor\x07 a reason.", "Mend it.", origin="file a\x1b.yaml")
    )
    assert "\n" not in text
    assert text.isprintable()
    assert len(text) < 400
    assert str(Problem("", None, "is a word.")) == '"": is a word.'


def test_many_errors_are_counted_and_some_are_listed() -> None:
    with pytest.raises(UserError) as caught:
        raise_problems([Problem(f"--x{number}", None, "no such option.") for number in range(MAX_SHOWN + 7)])
    assert caught.value.problem == f"{MAX_SHOWN + 7} options are wrong."
    assert caught.value.details.endswith("\n... and 7 more.")
