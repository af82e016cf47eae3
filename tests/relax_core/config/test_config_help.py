import pytest

from relax_core.config.help import WIDTH, options_help
from relax_core.config.options import OPTIONS, SECTIONS, section_title


def test_every_option_is_there_once_below_its_section() -> None:
    blocks = {block.splitlines()[0]: block for block in options_help().split("\n\n")}
    for section in SECTIONS:
        block = blocks[f"{section_title(section)} ({section})"]
        flags = [line.split()[0] for line in block.splitlines() if line.startswith("  --")]
        assert flags == [option.flag for option in OPTIONS.values() if option.section == section]


def test_no_line_is_wider_than_a_hundred_columns() -> None:
    assert max(map(len, options_help().splitlines())) <= WIDTH


def test_defaults_and_choices_are_shown() -> None:
    text = " ".join(options_help().split())
    assert "--qkv-format {thd,bshd}" in text
    assert (
        "Bytes of a bucket in which weights go to the engines; on a GPU there are two at a time. (default: 512MB)"
        in text
    )
    assert "Column of the label. Default: no labels." in text
    assert "Train in bfloat16" in text


@pytest.mark.parametrize("option", list(OPTIONS.values()), ids=list(OPTIONS))
def test_every_option_is_explained(option) -> None:  # type: ignore[no-untyped-def]
    assert option.help.endswith((".", "`")), option.help


def test_help_of_one_section() -> None:
    text = options_help(("reward",))
    assert "--rm-type" in text
    assert "--lr" not in text
