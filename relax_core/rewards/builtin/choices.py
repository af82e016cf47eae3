"""Rewards for questions with choices: ``gpqa`` (a letter, found in free text) and ``multiple_choice`` (in a tag).

Guarantee: linear in the response, which makes nothing raise. A label that names no choice is an error, never a letter
that was guessed; a response without an answer scores 0, also where the label has none.
"""

import re
from typing import Any

from data.errors import UserError
from relax_core.rewards.answer_text import answer_text
from relax_core.rewards.answers.labels import NAME_LABELS
from relax_core.rewards.choice_text import Question, plain, stated_letter
from relax_core.rewards.registry import register
from relax_core.rewards.types import RewardInput

_TAG = re.compile(r"<answer>([^<]*(?:<(?!/?answer>)[^<]*)*)</answer>", re.IGNORECASE)
_TAGGED_LETTER = re.compile(r"\s*<answer>\s*\(?[A-Za-z]\)?\.?\s*</answer>\s*", re.IGNORECASE)
_LETTER = re.compile(r"[(\[]?([A-Za-z])[)\]]?[.:]?")
_LETTER_AND_TEXT = re.compile(r"[(\[]?([A-Za-z])(?:[)\].:]+)\s+(\S.*)", re.DOTALL)
_APART = re.compile(r"[A-Za-z](?:\s*(?:,|;|/|&|\band\b)\s*[A-Za-z])+")


def _is_tagged_letter(label: Any) -> bool:
    return isinstance(label, str) and _TAGGED_LETTER.fullmatch(label) is not None


@register("gpqa")
def gpqa(sample: RewardInput) -> float:
    """1 when the letter that the response states is the right one, else 0; for questions with lettered choices."""
    question = _question(sample)
    return float(stated_letter(answer_text(sample), question) == _correct_letter(sample, question))


@register("multiple_choice", matches=_is_tagged_letter)
def multiple_choice(sample: RewardInput) -> float:
    """1 when the last <answer> of the response equals the label, which may be in <answer> too; else 0."""
    if not isinstance(sample.label, str) or not sample.label.strip():
        raise _wrong(sample, f"the label is {sample.label!r:.60}, no choice", "Give a letter, or <answer>A</answer>.")
    tagged = _last_tag(sample.label)
    if tagged is None and "<answer" in sample.label.lower():
        raise _wrong(sample, f"the label {sample.label!r:.60} has no closed <answer>", "Write <answer>A</answer>.")
    wanted = _form(sample.label if tagged is None else tagged)
    if not wanted:
        raise _wrong(sample, "the label's <answer> is empty", "Write <answer>A</answer>.")
    given = _last_tag(answer_text(sample))
    if given is None:
        return 0.0
    form = _form(given)
    if form != wanted and isinstance(wanted, str) and len(wanted) == 1:  # "B) Paris" answers B
        both = _LETTER_AND_TEXT.fullmatch(given.strip())
        form = both.group(1).upper() if both else form
    return float(form == wanted)


def _last_tag(text: str) -> str | None:
    found = _TAG.findall(text)
    return found[-1] if found else None


def _form(text: str) -> str | frozenset[str]:
    """What two answers are compared by: a capital letter, a set of them, or a plain text."""
    text = text.strip().strip("*_`$ ")
    letter = _LETTER.fullmatch(text)
    if letter:
        return letter.group(1).upper()
    if _APART.fullmatch(text):
        return frozenset(re.findall(r"(?<![A-Za-z])[A-Z](?![A-Za-z])", text.upper()))
    if 1 < len(text) <= 10 and set(text) <= set("ABCDEFGHIJ") and sorted(set(text)) == list(text):
        return frozenset(text)
    return plain(text).casefold()


def _question(sample: RewardInput) -> Question:
    try:
        return Question.of(sample.metadata.get("choices"), sample.metadata.get("valid_letters"))
    except ValueError as error:
        raise _wrong(sample, str(error), "Correct the row's metadata.") from None


def _correct_letter(sample: RewardInput, question: Question) -> str:
    """The right letter, by metadata.correct_letter and the label, which must agree."""
    declared = sample.metadata.get("correct_letter")
    if declared is None and sample.label is None:
        raise _wrong(
            sample,
            "it has neither a label nor metadata.correct_letter",
            NAME_LABELS,
        )
    letters = ", ".join(question.letters)
    if declared is not None:
        text = str(declared).strip()
        letter = _LETTER.fullmatch(text)
        if not letter or letter.group(1).upper() not in question.letters:
            raise _wrong(sample, f"metadata.correct_letter {text!r:.40} is none of {letters}", "Correct the row.")
        declared = letter.group(1).upper()
    if sample.label is None or (declared and not question.texts and not _is_letter(sample.label, question)):
        return str(declared)
    labelled = _labelled_letter(sample, question)
    if declared and declared != labelled:
        raise _wrong(
            sample, f"its label says {labelled} and metadata.correct_letter says {declared}", "Correct the row."
        )
    return labelled


def _is_letter(label: Any, question: Question) -> bool:
    letter = _LETTER.fullmatch(label.strip()) if isinstance(label, str) else None
    return letter is not None and letter.group(1).upper() in question.letters


def _labelled_letter(sample: RewardInput, question: Question) -> str:
    """The letter of the label: itself, the choice with its text, or its place where metadata.label_base says so."""
    label, base = sample.label, sample.metadata.get("label_base")
    if isinstance(label, bool) or not isinstance(label, str | int | float):
        raise _wrong(sample, f"the label is a {type(label).__name__}", "Give a letter or the text of a choice.")
    text = label.strip() if isinstance(label, str) else format(label, "g")
    if base is not None and text.isdecimal():
        place = int(text[:6]) - _base(sample, base)
        if not 0 <= place < len(question.letters):
            raise _wrong(
                sample,
                f"the label {text:.20} is no place of {len(question.letters)} choices, counted from {base}",
                "Correct the row, or metadata.label_base.",
            )
        return question.letters[place]
    found = question.with_text(text)
    letter = _LETTER.fullmatch(text)
    if letter and letter.group(1).upper() in question.letters:
        found.add(letter.group(1).upper())
    both = _LETTER_AND_TEXT.fullmatch(text)
    if both and both.group(1).upper() in question.with_text(both.group(2)):
        found.add(both.group(1).upper())
    if len(found) == 1:
        return found.pop()
    if found:
        raise _wrong(sample, f"the label {text!r:.60} names the choices {', '.join(sorted(found))}", "Correct the row.")
    if text.isdecimal():
        raise _wrong(
            sample,
            f"the label {text:.20} is a number, and whether places count from 0 or 1 is not said",
            "Set metadata.label_base to 0 or 1, or give the letter.",
        )
    what = "no choice" if question.texts else f"none of the letters {', '.join(question.letters)}"
    raise _wrong(sample, f"the label {text!r:.60} is {what}", "Correct the row, or give metadata.choices.")


def _base(sample: RewardInput, base: Any) -> int:
    if base in (0, 1, "0", "1") and not isinstance(base, bool):
        return int(base)
    raise _wrong(sample, f"metadata.label_base is {base!r:.40}", "Set it to 0 or 1: where places are counted from.")


def _wrong(sample: RewardInput, what: str, fix: str) -> UserError:
    return UserError(f"Sample {sample.sample_id} cannot be scored: {what}.", fix)
