"""Instructions about the layout of the response: format:*.

Guarantee: nesting counts only where it is closed in the right order; an apostrophe inside a word is no quote.
"""

import itertools
import re
from collections.abc import Iterator

from relax_core.rewards.instructions.base import instruction, text, word
from relax_core.rewards.instructions.lists import MINOR_WORDS
from relax_core.rewards.instructions.text import chunks, ends_with_emoji, lines, paragraphs, sentences, tokens, trimmed

BRACKET_LEVELS, QUOTE_LEVELS = 5, 3
_BRACKETS = {")": "(", "]": "[", "}": "{"}
_QUOTE = re.compile("[\"'\u201c\u201d\u2018\u2019]")
_CURLY = str.maketrans("\u201c\u201d\u2018\u2019", "\"\"''")

# A line that starts with an asterisk and has another one has italics or bold type there, unless a space follows.
_BULLET = re.compile(r"^[^\S\n]*(?:(\*)(?:[^\S\n]|[^*\n]+$)|(-)[^\S\n])", re.MULTILINE)
_STAR = re.compile(r"\s*\*(?:\s|[^*]+$)")
_LETTERED = re.compile(r"\W*[aA]\W*[bB]\W*[cC]\W*")
_HEADING = re.compile(r"^(?:#{1,6}[^\S\n].*|<h[1-6]>.*</h[1-6]>[^\S\n]*)$", re.MULTILINE)
_THESIS = re.compile(r"<(i|em)>([^<]*)</\1>", re.IGNORECASE)
_BEFORE_THESIS = re.compile(r"\s*(?:<(?:p|div|section|article)>\s*)?")
_TEMPLATE = ("My Answer:", "My Conclusion:", "Future Outlook:")


@instruction("format:parentheses")
def parentheses(response: str) -> bool:
    """Brackets nest five levels deep, each closed by its own kind."""
    opened: list[list] = []  # [bracket, levels inside it]
    for mark in response:
        if mark in "([{":
            opened.append([mark, 0])
        elif mark in _BRACKETS:
            if not opened or opened[-1][0] != _BRACKETS[mark]:
                opened.clear()
                continue
            levels = opened.pop()[1] + 1
            if levels >= BRACKET_LEVELS:
                return True
            if opened:
                opened[-1][1] = max(opened[-1][1], levels)
    return False


@instruction("format:quotes")
def quotes(response: str) -> bool:
    """Quotes nest three levels deep within a paragraph, double and single ones by turns."""
    return any(_quote_levels(part) >= QUOTE_LEVELS for part in paragraphs(response))


@instruction("format:quote_unquote")
def quote_unquote(response: str) -> bool:
    """After every text in double quotes comes one without, before the next; every quote is closed."""
    pieces = response.translate(_CURLY).replace("'\"'", "").split('"')  # '"' names the mark
    after = pieces[2::2]
    return len(pieces) % 2 == 1 and all(re.search(r"\w", piece) for piece in after)


@instruction("format:options", options=text)
def options(response: str, options: str) -> bool:
    """The response is one of the options; letters must be written as they are given."""
    if "/" in options:
        allowed = options.split("/")
    else:
        allowed = re.split(r"\bor\b", options) if re.search(r"\bor\b", options) else options.split(",")
    if _LETTERED.match(options):
        return response.strip() in {option.strip() for option in allowed}
    return trimmed(response) in {trimmed(option) for option in allowed}


@instruction("format:newline")
def newline(response: str) -> bool:
    """Every word is on a line of its own."""
    return all(len(chunks(line)) <= 1 for line in lines(response))


@instruction("format:emoji")
def emoji(response: str) -> bool:
    """Every sentence ends with an emoji."""
    return all(ends_with_emoji(sentence) for sentence in sentences(response))


@instruction("format:line_indent")
def line_indent(response: str) -> bool:
    """Each line is indented more than the one before it; there are two or more."""
    indents = [len(line) - len(line.lstrip()) for line in lines(response.expandtabs(4))]
    return len(indents) > 1 and all(one < two for one, two in itertools.pairwise(indents))


@instruction("format:list", sep=word)
def separator_list(response: str, sep: str) -> bool:
    """At least two items start with the separator: on a new line, or after a space where it is more than one mark."""
    if len(sep) == 1:
        return sum(line.lstrip().startswith(sep) for line in lines(response)) >= 2
    return len(re.findall(rf"(?:\A|\s){re.escape(sep)}", response)) >= 2


@instruction("format:thesis")
def thesis(response: str) -> bool:
    """A text in HTML italics comes before plain text: at the start of every section, where there are headings."""
    if not _HEADING.search(response):
        return any(match.group(2).strip() and response[match.end() :].strip() for match in _THESIS.finditer(response))
    sections = [part for part in _HEADING.split(response)[1:] if part.strip()]
    return bool(sections) and all(map(_starts_with_thesis, sections))


@instruction("format:sub-bullets")
def sub_bullets(response: str) -> bool:
    """There are ``*`` bullets, and below each at least one ``-`` bullet."""
    below = "".join(star or dash for star, dash in _BULLET.findall(response)).split("*")[1:]
    return bool(below) and all(below)


@instruction("format:no_bullets_bullets")
def sentences_then_bullets(response: str) -> bool:
    """At least two sentences that end with a full stop, then at least two ``*`` bullets, and nothing else."""
    found = lines(response)
    first = next((place for place, line in enumerate(found) if _STAR.match(line)), len(found))
    before = sum(sentence.endswith(".") for sentence in sentences("\n".join(found[:first])))
    bullets = found[first:]
    return before >= 2 and len(bullets) >= 2 and all(map(_STAR.match, bullets))


@instruction("format:output_template")
def output_template(response: str) -> bool:
    """The response is ``My Answer:``, ``My Conclusion:`` and ``Future Outlook:``, in this order, each with a text."""
    begin = 0
    for number, heading in enumerate(_TEMPLATE):
        place = response.find(heading, begin)
        between = response[begin:place].strip(" \t\n*#_")
        if place < 0 or bool(between) != bool(number):
            return False
        begin = place + len(heading)
    return bool(response[begin:].strip(" \t\n*#_"))


@instruction("format:title_case")
def title_case(response: str) -> bool:
    """Every word but articles, conjunctions and short prepositions starts with a capital, the first one too."""
    for place, token in enumerate(tokens(response)):
        if token.islower() and token[0].isalpha() and (place == 0 or token not in MINOR_WORDS):
            return False
        if token[0].islower() and token[1:].isupper():
            return False
    return True


@instruction("format:no_whitespace")
def no_whitespace(response: str) -> bool:
    """No white space inside the response."""
    return len(response.split()) == 1


def _starts_with_thesis(section: str) -> bool:
    begin = _BEFORE_THESIS.match(section)
    match = _THESIS.match(section, begin.end() if begin else 0)
    return match is not None and bool(match.group(2).strip()) and bool(section[match.end() :].strip())


def _quotes(paragraph: str) -> Iterator[tuple[str, bool | None]]:
    """Kind of each quote, straight, and whether it opens; None where its form does not say."""
    for match in _QUOTE.finditer(paragraph):
        mark, place = match.group(), match.start()
        if (
            mark in "'\u2019"
            and paragraph[max(0, place - 1) : place].isalnum()
            and paragraph[place + 1 : place + 2].isalnum()
        ):
            continue
        yield mark.translate(_CURLY), {"\u201c": True, "\u2018": True, "\u201d": False, "\u2019": False}.get(mark)


def _quote_levels(paragraph: str) -> int:
    """The deepest nesting that is closed."""
    opened: list[list] = []
    deepest = 0
    for kind, opens in _quotes(paragraph):
        if opened and opened[-1][0] == kind and not opens:
            levels = opened.pop()[1] + 1
            deepest = max(deepest, levels)
            if opened:
                opened[-1][1] = max(opened[-1][1], levels)
        elif opens is not False and not (opened and opened[-1][0] == kind):
            opened.append([kind, 0])
    return deepest
