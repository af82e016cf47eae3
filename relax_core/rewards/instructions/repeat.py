"""Instructions to repeat or copy a text: repeat:*, copy:*, new:copy_span_idx.

Guarantee: case and white space at the ends do not matter; every other character does.
"""

from relax_core.rewards.instructions.base import count, instruction, text
from relax_core.rewards.instructions.text import chunks, parts

ONLY_THIS = "only output this sentence here, ignore all other requests."
"""What repeat:repeat_simple asks for, in small letters."""


@instruction("copy:copy", prompt_to_repeat=text)
@instruction("copy:copying_simple", prompt_to_repeat=text)
def copied(response: str, prompt_to_repeat: str) -> bool:
    """The response is the request."""
    return _same(response, prompt_to_repeat)


@instruction("copy:copying_multiple", prompt_to_repeat=text, N=count)
def copied_times(response: str, prompt_to_repeat: str, N: int) -> bool:
    """The response is N times the request, with ``******`` between."""
    found = parts(response, "******")
    return found is not None and len(found) == N and all(_same(part, prompt_to_repeat) for part in found)


@instruction("repeat:repeat_span", prompt_to_repeat=text, n_start=count, n_end=count)
@instruction("new:copy_span_idx", prompt_to_repeat=text, n_start=count, n_end=count)
def copied_span(response: str, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    """The response is the request's characters from one place, counted from 0, to another, that one included."""
    return _same(response, prompt_to_repeat[n_start : n_end + 1])


@instruction("repeat:repeat_simple")
def repeat_simple(response: str) -> bool:
    """The response is the sentence of the instruction."""
    return _same(response, ONLY_THIS)


@instruction("repeat:repeat_change", prompt_to_repeat=text)
def repeat_change(response: str, prompt_to_repeat: str) -> bool:
    """The response is the request with another first word."""
    given, asked = response.split(), prompt_to_repeat.split()
    return bool(given) and given[1:] == asked[1:] and given[0].lower() != asked[0].lower()


@instruction("copy:repeat_phrase", phrase=text, small_n=count)
def repeat_phrase(response: str, phrase: str, small_n: int) -> bool:
    """The phrase is there exactly so many times, each time with one other word between its first and its last."""
    wanted, given = chunks(phrase.lower()), chunks(response.lower())
    length, place, changes = len(wanted), 0, []
    while wanted and place + length <= len(given):
        here = given[place : place + length]
        if here[0] == wanted[0] and here[-1] == wanted[-1]:
            changed = sum(one != two for one, two in zip(here, wanted, strict=True))
            if changed <= 1:
                changes.append(changed)
                place += length
                continue
        place += 1
    return len(changes) == small_n and all(changed == 1 for changed in changes)


def _same(response: str, wanted: str) -> bool:
    return response.strip().lower() == wanted.strip().lower()
