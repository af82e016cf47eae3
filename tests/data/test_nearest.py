from data.nearest import nearest


def test_dashes_make_no_name_nearer() -> None:
    assert nearest("--c", ["--spec", "--cp"]) == ""
    assert nearest("--lrr", ["--lr", "--spec"]) == "Did you mean --lr?"
    assert nearest("", ["--lr"]) == ""
    assert nearest("x" * 100_000, ["--lr"]) == ""


def test_a_beginning_is_nearest_and_two_that_are_about_as_near_are_both_told() -> None:
    assert nearest("gsm8", ["gsm8k", "gsm"]) == "Did you mean gsm8k?"
    assert nearest("rate-a", ["rate-b", "rate-c"]) == "Did you mean rate-c or rate-b?"
    assert nearest("grop", ["grpo", "gspo"]) == "Did you mean grpo?"


def test_names_are_shown_as_asked() -> None:
    assert nearest("trian", ["train"], "`relax {}`") == "Did you mean `relax train`?"
    assert nearest("rewrd", ["reward"], "{!r}") == "Did you mean 'reward'?"
