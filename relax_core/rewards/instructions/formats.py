"""Instructions about marks: detectable_format:*, detectable_content:*, combination:*, startend:*, punctuation:*.

Guarantee: a bullet, a heading, a section and a postscript are what stands at the start of a line or after white space,
never a mark somewhere inside a sentence.
"""

import json
import re
from string import ascii_letters

from relax_core.rewards.instructions.base import count, instruction, text, word
from relax_core.rewards.instructions.text import parts, sentences

_BRACKETED = re.compile(r"\[([^\[\]\n]*)\]")
_BULLET = re.compile(r"^[^\S\n]*[*-][^\S\n]+\S", re.MULTILINE)
_LEADING_BULLET = re.compile(r"^[^\S\n]*\*[^\S\n]", re.MULTILINE)
_HIGHLIGHT = re.compile(r"(\*{1,3})([^*\n]+)\1")
_OPTIONS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_COMMAS = re.compile("[,\uff0c\u3001\u060c]")
_LOOSE_HYPHEN = re.compile(r"[.!?][\"')]*-\s")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


@instruction("detectable_content:number_placeholders", num_placeholders=count)
def number_placeholders(response: str, num_placeholders: int) -> bool:
    """At least so many placeholders in square brackets, with something in them."""
    return sum(any(map(str.isalnum, inner)) for inner in _BRACKETED.findall(response)) >= num_placeholders


@instruction("detectable_content:postscript", postscript_marker=word)
def postscript(response: str, postscript_marker: str) -> bool:
    """A postscript with this mark and something after it, at the start of a line or after white space."""
    marks = {"P.S.": r"P\.\s?S\.", "P.P.S": r"P\.\s?P\.\s?S\.?"}
    mark = marks.get(postscript_marker, re.escape(postscript_marker))
    return re.search(rf"(?:\A|[\s*_]){mark}[\s*_:]*\w", response, re.IGNORECASE) is not None


@instruction("detectable_format:number_bullet_lists", num_bullets=count)
def number_bullet_lists(response: str, num_bullets: int) -> bool:
    """Exactly so many lines start with ``* `` or ``- ``."""
    return len(_BULLET.findall(response)) == num_bullets


@instruction("detectable_format:constrained_response")
def constrained_response(response: str) -> bool:
    """One of ``My answer is yes.``, ``no.`` and ``maybe.`` is there, and no other of them."""
    return sum(option in response for option in _OPTIONS) == 1


@instruction("detectable_format:number_highlighted_sections", num_highlights=count)
def number_highlighted_sections(response: str, num_highlights: int) -> bool:
    """At least so many pieces in one, two or three asterisks; the asterisk of a bullet highlights nothing."""
    found = _HIGHLIGHT.findall(_LEADING_BULLET.sub("", response))
    return sum(bool(inner.strip()) for _, inner in found) >= num_highlights


@instruction("detectable_format:multiple_sections", section_spliter=word, num_sections=count)
def multiple_sections(response: str, section_spliter: str, num_sections: int) -> bool:
    """At least so many lines start with the section's mark and a number."""
    mark = rf"^[^\S\n]*+[#*_>]*+[^\S\n]*+{re.escape(section_spliter)}[^\S\n]?\d+"
    return len(re.findall(mark, response, re.MULTILINE)) >= num_sections


@instruction("detectable_format:json_format")
def json_format(response: str) -> bool:
    """The whole is a JSON object or list, in a code fence or without."""
    given = response.strip()
    if given.startswith("```") and given.endswith("```"):
        given = given[3:-3].lstrip(ascii_letters)
    try:
        value = json.loads(given, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict | list)


@instruction("detectable_format:title")
def title(response: str) -> bool:
    """A title in double angular brackets, on one line."""
    for line in response.splitlines():
        begin, end = line.find("<<"), line.rfind(">>")
        if 0 <= begin < end and line[begin:end].strip("<> \t"):
            return True
    return False


@instruction("detectable_format:square_brackets")
def square_brackets(response: str) -> bool:
    """Every word is in square brackets."""
    return all(one.startswith("[") and one.endswith("]") for one in response.split())


@instruction("detectable_format:bigram_wrapping")
def bigram_wrapping(response: str) -> bool:
    """Every two words are in double angular brackets; a last one may be there alone."""
    found = response.split()
    pairs = [(found[place], found[min(place + 1, len(found) - 1)]) for place in range(0, len(found), 2)]
    return all(first.startswith("<<") and second.endswith(">>") for first, second in pairs)


@instruction("detectable_format:sentence_hyphens")
def sentence_hyphens(response: str) -> bool:
    """Sentences are joined by hyphens, without a space between them."""
    return len(sentences(response)) == 1 and not _LOOSE_HYPHEN.search(response)


@instruction("combination:two_responses")
def two_responses(response: str) -> bool:
    """Two different answers with ``******`` between them."""
    found = parts(response, "******")
    return found is not None and len(found) == 2 and found[0] != found[1]


@instruction("combination:repeat_prompt", prompt_to_repeat=text)
def repeat_prompt(response: str, prompt_to_repeat: str) -> bool:
    """The request comes first, word for word but for case, and something after it."""
    prompt, given = prompt_to_repeat.strip().lower(), response.strip().lower()
    return given.startswith(prompt) and bool(given[len(prompt) :].strip())


@instruction("startend:end_checker", end_phrase=word)
def end_checker(response: str, end_phrase: str) -> bool:
    """The response ends with a phrase, but for case; a closing quote may follow."""
    return response.strip().strip('"').rstrip().lower().endswith(end_phrase.lower())


@instruction("startend:quotation")
def quotation(response: str) -> bool:
    """The whole stands in double quotation marks."""
    given = response.strip()
    return len(given) > 2 and given[0] + given[-1] in ('""', "\u201c\u201d")


@instruction("punctuation:no_comma")
def no_comma(response: str) -> bool:
    """No comma of any script."""
    return not _COMMAS.search(response)


@instruction("punctuation:punctuation_dot")
def no_dot(response: str) -> bool:
    """No dot."""
    return "." not in response


@instruction("punctuation:punctuation_exclamation")
def no_exclamation(response: str) -> bool:
    """No exclamation mark."""
    return "!" not in response and "\uff01" not in response
