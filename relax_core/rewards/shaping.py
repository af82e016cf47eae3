"""Terms that shape a reward: format, length, repetition, language.

Guarantee: pure functions of plain values, finite, linear in their input, with the bounds that each says; an argument
that makes no sense is a ValueError. Lengths are in tokens.

Sources: soft overlong punishment, DAPO (arXiv 2503.14476, eq. 13); cosine length reward and n-gram repetition penalty,
Yeo et al. (arXiv 2502.03373); length reward within a group, Kimi k1.5 (arXiv 2501.12599); distance to a wanted length,
L1 (arXiv 2503.04697); language consistency, DeepSeek-R1 (arXiv 2501.12948).
"""

import math
import re
from collections.abc import Hashable, Sequence

from relax_core.rewards import language as languages

_TAG = re.compile(r"</?think>")
_ANSWER = re.compile(r"\s*<answer>(.*)</answer>\s*\Z", re.DOTALL)
_UNSPACED = re.compile("([\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff])")


def format_valid(response: str, *, answer: bool = False, opened: bool = False) -> bool:
    """Whether a response is one ``<think>`` block with something in it, first of all, and something after it.

    ``<think>a</think>b`` is; nested, repeated or unclosed blocks and text before the block are not.

    Args:
        response: as generated; white space before the block does not count.
        answer: what follows must be one ``<answer>`` block with something in it, and nothing else.
        opened: the prompt has written ``<think>`` already.
    """
    text = f"<think>{response}" if opened else response.lstrip()
    if [match.group() for match in _TAG.finditer(text)] != ["<think>", "</think>"] or not text.startswith("<think>"):
        return False
    thought, _, rest = text.removeprefix("<think>").partition("</think>")
    if answer:
        match = _ANSWER.match(rest)
        inner = match.group(1) if match else ""
        rest = "" if "<answer>" in inner or "</answer>" in inner else inner
    return bool(thought.strip()) and bool(rest.strip())


def soft_overlong(length: int, longest: int, buffer: int) -> float:
    """0 up to ``longest - buffer``, then falling to -1 at ``longest``, -1 beyond; -1 to 0.

    Args:
        length: of the response.
        longest: length from which the penalty is whole.
        buffer: over how many tokens it grows, 1 to ``longest``.
    """
    if not 0 < buffer <= longest:
        raise ValueError(f"the buffer of {buffer} is not from 1 to {longest}")
    return max(-1.0, min(0.0, (longest - buffer - length) / buffer))


def length_distance(length: int, target: int, width: int) -> float:
    """Minus the distance from a wanted length, in units of ``width``, at most 1; -1 to 0."""
    if target < 0 or width < 1:
        raise ValueError(f"a target of {target} with a width of {width}")
    return max(-1.0, -abs(length - target) / width)


def cosine_length(length: int, longest: int, at_start: float, at_end: float) -> float:
    """From ``at_start`` at length 0 to ``at_end`` at ``longest`` and beyond, along half a cosine.

    For right answers ``at_start`` is the higher one (shorter is better), for wrong ones the lower.
    """
    if longest < 1:
        raise ValueError(f"a longest length of {longest}")
    share = min(1.0, max(0.0, length / longest))
    return at_end + 0.5 * (at_start - at_end) * (1.0 + math.cos(math.pi * share))


def group_lengths(lengths: Sequence[int], correct: Sequence[bool]) -> list[float]:
    """Length rewards of the responses to one prompt, by their order: right ones 0.5 (shortest) to -0.5 (longest).

    Wrong ones get the same, but never more than 0. Where all have one length it is 0 for each.
    """
    if len(lengths) != len(correct):
        raise ValueError(f"{len(lengths)} lengths of {len(correct)} responses")
    shortest, longest = min(lengths, default=0), max(lengths, default=0)
    if shortest == longest:
        return [0.0] * len(lengths)
    rewards = [0.5 - (length - shortest) / (longest - shortest) for length in lengths]
    return [reward if right else min(0.0, reward) for reward, right in zip(rewards, correct, strict=True)]


def repetition(tokens: Sequence[Hashable], n: int, most: float) -> float:
    """``most`` (0 or less) times the part of n-grams that were there before; ``most`` to 0.

    Args:
        tokens: token ids, or words.
        n: length of an n-gram; a response without one is not penalised.
        most: what a response of nothing but repetition comes close to.
    """
    if n < 1 or not (math.isfinite(most) and most <= 0):
        raise ValueError(f"n-grams of {n} and a penalty of {most}, which is to be 0 or less")
    total = len(tokens) - n + 1
    if total < 1:
        return 0.0
    different = len({tuple(tokens[place : place + n]) for place in range(total)})
    return most * (1.0 - different / total) + 0.0  # no -0.0


def repetition_words(text: str) -> list[str]:
    """What ``repetition`` counts in a text: words between spaces, in small letters; each Han character and kana."""
    return _UNSPACED.sub(r" \1 ", text.lower()).split()


def language_consistency(text: str, language: str) -> float:
    """The part of a text's letters that is of a language; 0 to 1.

    Letters of another script count against it, and all do where they are of another language in the same script. Code,
    addresses and formulas do not count; a text without letters has 1.

    Args:
        language: a code of ``relax_core.rewards.language.LANGUAGES``.
    """
    if language not in languages.LANGUAGES:
        raise ValueError(f"there is no language {language!r}; known: {', '.join(languages.LANGUAGES)}")
    return languages.share(text, language)
