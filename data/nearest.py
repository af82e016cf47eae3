"""What a person who mistyped a name may have meant.

Guarantee: a suggestion is one of the known names, or two that are about as near; where nothing is near there is none.
"""

import difflib
import re
from collections.abc import Iterable

LONGEST = 200
"""Characters of a name that is looked at; a longer one is none."""


def nearest(name: str, names: Iterable[str], form: str = "{}") -> str:
    """`Did you mean A?`, or `A or B` where two are about as near; an empty text when nothing is near.

    A name of which ``name`` is the beginning is nearer than any other. Dashes at the beginning make none nearer.

    Args:
        name: as it was typed.
        names: the known ones.
        form: how a name is shown: a format text.
    """
    bare = _bare(name)
    if not 1 < len(bare) <= LONGEST:
        return ""
    spelt = {_bare(each): each for each in sorted(set(names))}
    longer = [each for each in spelt if len(bare) > 3 and each.startswith(bare)]
    if 0 < len(longer) <= 2:
        return _asked([spelt[each] for each in longer], form)
    close = difflib.get_close_matches(bare, spelt, n=2, cutoff=0.65)
    likeness = [difflib.SequenceMatcher(None, candidate, bare).ratio() for candidate in close]
    close = [candidate for candidate, ratio in zip(close, likeness, strict=True) if ratio >= likeness[0] - 0.05]
    return _asked([spelt[each] for each in close], form)


def _asked(found: list[str], form: str) -> str:
    return f"Did you mean {' or '.join(map(form.format, found))}?" if found else ""


def _bare(name: str) -> str:
    return re.sub(r"^-+", "", name)
