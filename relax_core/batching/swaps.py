"""Exchanges of items between parts that bring the sums of the parts closer together.

Guarantee: items move, none is lost or doubled; no part becomes empty and, where asked, the numbers of items of the
parts stay as equal as they were. The spread (largest minus smallest sum) never grows, and the result depends on the
arguments alone.

Method: local search. An exchange gives one or two items for none, one or two of another part. The fullest and the
emptiest part come first, then the fullest with every other, then every other with the emptiest.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

PAIRS_UP_TO = 64
"""Items of a part above which its pairs are not tried: single items then offer enough differences."""

TRIES = 64
"""Searches, besides those between the fullest and the emptiest part, after which the result is taken as it is."""

_SINGLE, _DOUBLE = ((1, 1), (1, 0)), ((1, 2), (2, 1), (2, 0), (2, 2))
"""Numbers of items to give and to take."""


def narrow(sizes: Ints, parts: list[Ints], equal: bool) -> None:
    """Exchanges items in place until the sums differ by at most 1, no exchange helps or ``TRIES`` searches are over.

    Each exchange lowers the sum of squares of the sums by at least 2, so this ends.

    Args:
        sizes: [N] sizes of all items, not negative.
        parts: the items of each part; at least one part.
        equal: keep the numbers of items of the parts as they are, up to their order.
    """
    sums = _sums(sizes, parts)
    tries = TRIES
    while sums.max() - sums.min() > 1:
        for number, (full, empty) in enumerate(_extremes(sums, parts)):
            if number and not tries:
                return
            tries -= number > 0
            found = _exchange(sizes, parts[full], parts[empty], int(sums[full] - sums[empty]), equal)
            if found is not None:
                parts[full], parts[empty], moved = found
                sums[full] -= moved
                sums[empty] += moved
                break
        else:
            return


def spread(sizes: Ints, parts: list[Ints]) -> int:
    """Largest minus smallest sum."""
    sums = _sums(sizes, parts)
    return int(sums.max() - sums.min())


def _sums(sizes: Ints, parts: list[Ints]) -> Ints:
    return np.array([sizes[part].sum() for part in parts], dtype=np.int64)


def _extremes(sums: Ints, parts: list[Ints]) -> Iterator[tuple[int, int]]:
    """Pairs of parts worth an exchange, widest first; each holds the fullest or the emptiest part.

    A part whose only item makes it the fullest gains nothing from an exchange: where the item goes is then the fullest.
    """
    full, empty = int(sums.argmax()), int(sums.argmin())
    alone = len(parts[full]) == 1
    if not alone:
        yield full, empty
    gaps = np.concatenate([np.zeros_like(sums) if alone else sums[full] - sums, sums - sums[empty]])
    for place in np.argsort(-gaps, kind="stable").tolist():
        side, other = divmod(place, len(sums))
        if gaps[place] <= 1:
            return
        if other not in (full, empty):
            yield (other, empty) if side else (full, other)


def _exchange(sizes: Ints, giving: Ints, taking: Ints, gap: int, equal: bool) -> tuple[Ints, Ints, int] | None:
    """The exchange that brings two parts closest together: both parts after it, and what moved.

    Pairs of items are tried where single ones do not help.
    """
    small = max(len(giving), len(taking)) <= PAIRS_UP_TO
    surplus = len(giving) - len(taking)
    for kinds in (_SINGLE, _DOUBLE) if small else (_SINGLE,):
        best, choice = 0, None
        for gives, takes in kinds:
            if equal:
                allowed = gives - takes in (0, surplus)
            else:
                allowed = len(giving) > gives - takes and len(taking) > takes - gives
            if not allowed or len(giving) < gives or len(taking) < takes:
                continue
            out, into = _choices(len(giving), gives), _choices(len(taking), takes)
            gain, i, j, moved = _closest(sizes[giving][out].sum(1), sizes[taking][into].sum(1), gap)
            if gain > best:
                best, choice = gain, (out[i], into[j], moved)
        if choice is not None:
            out_places, in_places, moved = choice
            return (
                np.concatenate([np.delete(giving, out_places), taking[in_places]]),
                np.concatenate([np.delete(taking, in_places), giving[out_places]]),
                moved,
            )
    return None


def _choices(items: int, number: int) -> Ints:
    """[choices, number] places of 0, 1 or 2 of so many items."""
    if number < 2:
        return np.arange(items if number else 1, dtype=np.int64)[:, None][:, :number]
    return np.stack(np.triu_indices(items, 1), axis=1)


def _closest(give: Ints, take: Ints, gap: int) -> tuple[int, int, int, int]:
    """What narrows a gap most: (gain, i, j, give[i] - take[j]); a gain of 0 or less narrows nothing.

    Moving m leaves a gap of |gap - 2 m| = gap - 2 gain, so for each i the two j around give[i] - gap / 2 are looked at.
    """
    rank = np.argsort(take, kind="stable")
    ordered = take[rank]
    right = np.searchsorted(ordered, give - gap // 2)
    places = np.stack([(right - 1).clip(0), right.clip(max=len(take) - 1)])
    moved = give - ordered[places]
    gains = np.minimum(moved, gap - moved)
    side, i = divmod(int(gains.argmax()), len(give))
    return int(gains[side, i]), i, int(rank[places[side, i]]), int(moved[side, i])
