"""Instructions that stand for one prompt each: custom:*.

Guarantee: the form that the prompt asks for is checked, and what it says is wanted; not whether every fact is right.
"""

import csv
import datetime
import io
import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise

from relax_core.rewards.instructions.base import instruction
from relax_core.rewards.instructions.text import PUNCTUATION, bare, chunks, lines, sentences

AFRICAN_COUNTRIES = 52
"""Lines from Zimbabwe on; counts of the countries go from 52 to 55."""

CAPITALS = (
    "Reykjavik Helsinki Oslo Tallinn Stockholm Riga Moscow Copenhagen Vilnius Minsk Dublin Berlin Amsterdam Warsaw"
    " London Brussels Kyiv Prague Luxembourg Paris Vienna Bratislava Budapest Vaduz Chisinau Bern Ljubljana Zagreb"
)
"""European capitals north of 45 degrees, from the highest latitude to the lowest. Kyiv may be left out."""

NAPOLEON = (1769, 1821)

_NUMBERED = re.compile(r"^[^\S\n]*(?:\d+[.)]|[*-])[^\S\n]*")
_QUESTION = re.compile(r"^[^\w\n]*+Question\b[^\S\n]*\d*[.:)]?", re.MULTILINE)
_OPTION = re.compile(r"\W*[A-Ea-e][.)][^\S\n]*\S")
_QUOTED = re.compile(r'(?:^|,)[^\S\n]*"([^"\n]*)"', re.MULTILINE)
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})")


@instruction("custom:multiples")
def multiples(response: str) -> bool:
    """The multiples of 7 from 10 to 50, in order, and no other number."""
    return re.findall(r"\d+", response) == [str(number) for number in range(14, 51, 7)]


@instruction("custom:mcq_count_length")
def choice_questions(response: str) -> bool:
    """Four questions, each longer than the one before, with five options each; the first line is a question."""
    begins = [match.start() for match in _QUESTION.finditer(response)]
    if len(begins) != 4 or response[: begins[0]].strip():
        return False
    lengths = []
    for begin, end in pairwise([*begins, len(response)]):
        block = lines(_QUESTION.sub("", response[begin:end], count=1))
        marks = [bool(_OPTION.match(line)) for line in block]
        if marks.count(True) != 5:
            return False
        lengths.append(len(" ".join(line.strip() for line in block[: marks.index(True)])))
    return all(one < two for one, two in pairwise(lengths))


@instruction("custom:reverse_newline")
def reverse_countries(response: str) -> bool:
    """Lines in reverse alphabetical order from Zimbabwe on, as many as there are countries in Africa."""
    names = [_plain(_NUMBERED.sub("", line)) for line in lines(response)]
    begin = next((place for place, name in enumerate(names) if "zimbabwe" in name), len(names))
    listed = names[begin:]
    return len(listed) >= AFRICAN_COUNTRIES and all(one >= two for one, two in pairwise(listed))


@instruction("custom:word_reverse")
def word_reverse(response: str) -> bool:
    """One sentence with the bald eagle in it, its words in reverse order."""
    found = [bare(chunk) for chunk in chunks(response.lower())]
    return len(sentences(response)) == 1 and ("eagle", "bald") in pairwise(found)


@instruction("custom:character_reverse")
def character_reverse(response: str) -> bool:
    """The bald eagle is there, its letters in reverse order."""
    return "elgae dlab" in response.lower()


@instruction("custom:sentence_alphabet")
def sentence_alphabet(response: str) -> bool:
    """26 sentences that start with the letters of the alphabet, in order."""
    first = [(chunks(sentence.lower()) or ["-"])[0][0] for sentence in sentences(response)]
    return "".join(first) == "abcdefghijklmnopqrstuvwxyz"


@instruction("custom:european_capitals_sort")
def european_capitals(response: str) -> bool:
    """The capitals, in order, with commas between."""
    given = [_plain(one.strip().removeprefix("and ")) for one in response.split(",")]
    wanted = _plain(CAPITALS).split()
    given = ["kyiv" if one == "kiev" else one for one in given]
    return given in (wanted, [one for one in wanted if one != "kyiv"])


@instruction("custom:csv_city")
def csv_city(response: str) -> bool:
    """A header and seven rows of five columns, with commas between."""
    return _is_table(response, ("ID", "Country", "City", "Year", "Count"), rows=7)


@instruction("custom:csv_special_character")
def csv_special_character(response: str) -> bool:
    """A header and 14 rows of five columns, one field with a special character in double quotes."""
    quoted = any(re.search(r"[^\w\s]", field) for field in _QUOTED.findall(response))
    return quoted and _is_table(response, ("ProductID", "Category", "Brand", "Price", "Stock"), rows=14)


@instruction("custom:csv_quotes")
def csv_quotes(response: str) -> bool:
    """A header and three rows of five columns with tabs between, every field in double quotes."""
    fields = [field.strip() for line in lines(response) for field in line.split("\t")]
    quoted = all(len(field) > 1 and field[0] == field[-1] == '"' for field in fields)
    return quoted and _is_table(
        response, ("StudentID", "Subject", "Grade", "Semester", "Score"), rows=3, delimiter="\t"
    )


@instruction("custom:date_format_list")
def date_list(response: str) -> bool:
    """Dates of Napoleon's life as YYYY-MM-DD, with commas between, and nothing else."""
    return all(_is_date(date.strip()) for date in response.split(","))


def _plain(text: str) -> str:
    """Small ASCII letters without accents and punctuation at the ends."""
    decomposed = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return decomposed.strip(PUNCTUATION + " \t\r\n").lower()


def _is_table(response: str, header: Sequence[str], rows: int, delimiter: str = ",") -> bool:
    try:
        found = [
            row for row in csv.reader(io.StringIO(response.strip()), delimiter=delimiter, skipinitialspace=True) if row
        ]
    except csv.Error:
        return False
    fits = all(len(row) == len(header) for row in found)
    return fits and len(found) == rows + 1 and tuple(name.strip() for name in found[0]) == tuple(header)


def _is_date(text: str) -> bool:
    match = _DATE.fullmatch(text)
    if match is None:
        return False
    try:
        return NAPOLEON[0] <= datetime.date(*map(int, match.groups())).year <= NAPOLEON[1]
    except ValueError:
        return False
