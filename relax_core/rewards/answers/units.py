"""Units, currencies and counted things that may stand beside a number.

Guarantee: a unit that only one side gives does not matter, nor does its power or its plural; two known units that
differ do.
"""

from relax_core.rewards.answers.vocabulary import words

KNOWN = words(
    "m meter metre mm millimeter millimetre cm centimeter centimetre dm decimeter km kilometer kilometre in inch ft"
    " foot feet yd yard mi mile g gm gram kg kilogram mg milligram lb pound oz ounce ton tonne s sec second ms min"
    " minute h hr hour day week month year yr l liter litre ml milliliter millilitre gal gallon quart pint dollar usd"
    " cent euro eur gbp yuan rmb yen won deg degree rad radian mph kph kmh rpm hz n newton j joule w watt"
    " v volt pa kpa mol k kelvin am pm"
)
_SAME = {
    "meter": "m", "metre": "m", "millimeter": "mm", "millimetre": "mm", "centimeter": "cm", "centimetre": "cm",
    "decimeter": "dm", "kilometer": "km", "kilometre": "km", "inch": "in", "foot": "ft", "feet": "ft",
    "yard": "yd", "mile": "mi", "gram": "g", "gm": "g", "kilogram": "kg", "milligram": "mg", "pound": "lb",
    "ounce": "oz", "tonne": "ton", "sec": "s", "second": "s", "minute": "min", "hour": "h", "hr": "h", "year": "yr",
    "liter": "l", "litre": "l", "milliliter": "ml", "millilitre": "ml", "gallon": "gal", "usd": "dollar",
    "eur": "euro", "rmb": "yuan", "degree": "deg", "radian": "rad", "newton": "n", "joule": "j", "watt": "w",
    "volt": "v", "kelvin": "k",
}  # fmt: skip
_FILLING = words("square squared sq cubic cubed cu per of a an the each")

UNIT_LETTERS = frozenset("mgshlLNJWVKACF")
"""Units of one letter."""

CURRENCIES = {"$": "dollar", "€": "euro", "£": "gbp", "¥": "yen", "₹": "rupee"}
MULTIPLIERS = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}


def is_unit(word: str) -> bool:
    """Whether a word is the name of a unit."""
    return _single(word.lower()) is not None


def differ(first: frozenset[str], second: frozenset[str]) -> bool:
    """Whether two units are known and not the same; the words of each as ``unit`` gives them."""
    return bool(first and second) and first != second and "?" not in first | second


def unit(named: list[str]) -> frozenset[str]:
    """What a unit of these words is compared by: names of units, ``?`` where one of the words is no unit."""
    plain = [word.lower() for word in named]
    return frozenset(_single(word) or "?" for word in plain if word not in _FILLING)


def _single(word: str) -> str | None:
    for name in (word, word.removesuffix("s"), word.removesuffix("es")):
        if name in KNOWN:
            return _SAME.get(name, name)
    return None
