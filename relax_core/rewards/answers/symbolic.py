"""Verdicts by math-verify (on sympy), for what ``reading`` does not read.

Guarantee: nothing that could grow without bounds, or that is no mathematics, reaches sympy: its texts are short, flat,
and without towers, large numbers, factorials, sums or integrals; such an answer equals its own writing only. No signals
are used, so it works in any thread; it may still take long: it is for a process that can be ended.
"""

import logging
import re
import string
from functools import lru_cache
from typing import Any

from relax_core.rewards.answers.characters import as_latex

MAX_LENGTH = 400
_MAX_DEPTH = 12
_UNBOUNDED = re.compile(
    r"\\(?:sum|prod|i+nt|oint|lim|limsup|liminf|bigcup|bigcap|coprod|binom|det|frac\s*\{?\s*d|cdots|ldots|dots)(?![a-zA-Z])"
    r"|!|\d\s+\d|\d{16}|\d\.\d{16}|[\^_]\s*\{?\s*-?\s*\(?\s*\d{3}|__|import|lambda|eval"
)
_SECOND = re.compile(r"\^\s*\\?\w+\s*\^")
_LETTERS = frozenset(string.ascii_letters)


def prepare() -> None:
    """Import what verdicts need: some seconds, once in a process."""
    import math_verify  # noqa: F401


def equal(label: str, answer: str) -> bool:
    """Whether math-verify holds an answer for the label's. The label goes first: it decides how both are taken."""
    if refused(answer) or refused(label):
        return False
    from math_verify import verify

    gold, target = list(_parsed(label)), list(_parsed(answer))  # lists are alternatives, to math-verify
    if not gold or not target:
        return False
    try:
        return bool(
            verify(
                gold,
                target,
                float_rounding=12,  # its 6 digits would make 3.1415927 of \pi
                allow_set_relation_comp=True,
                timeout_seconds=None,
            )
        )
    except (Exception, RecursionError):  # of a parser that was given something else than mathematics
        return False


def refused(text: str) -> bool:
    """Whether a text must not reach sympy."""
    text = as_latex(text)
    if len(text) > MAX_LENGTH or _UNBOUNDED.search(text):
        return True
    depth = deepest = 0
    for character in text:
        depth += (character in "{([") - (character in "})]")
        deepest = max(deepest, depth)
    return deepest > _MAX_DEPTH or _tower(text)


def _tower(text: str) -> bool:
    """Whether a number is raised within an exponent, as in 9^{9^9}; e^{-x^2} is no such tower."""
    exponents: list[bool] = []  # for each open bracket, whether it is an exponent or within one
    before = ""
    for place, character in enumerate(text):
        if character in "{([":
            exponents.append(before == "^" or any(exponents[-1:]))
        elif character in "})]":
            del exponents[-1:]
        elif character == "^" and ((any(exponents[-1:]) and before not in _LETTERS) or _SECOND.match(text, place)):
            return True
        if not character.isspace():
            before = character
    return False


@lru_cache(maxsize=256)
def _parsed(text: str) -> tuple[Any, ...]:
    from math_verify import LatexExtractionConfig, parse

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that it is used without signals
    try:
        found = parse(
            rf"\boxed{{{as_latex(text)}}}",
            extraction_config=[LatexExtractionConfig(boxed_match_priority=0)],
            fallback_mode="no_fallback",
            parsing_timeout=None,  # type: ignore[arg-type]
        )
    except (Exception, RecursionError):
        return ()
    return tuple(found)
