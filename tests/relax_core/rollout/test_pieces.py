"""Joining the pieces of a response."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import Lost, UserError
from relax_core.rollout.pieces import Pieces, in_order, reduced, stop_across


@dataclass
class Completion:
    """A piece whose log-probs are -token / 8."""

    output_ids: Any
    finish_reason: dict[str, Any]
    weight_versions: tuple[str, ...] = ("1.ab",)
    spans: tuple[tuple[str, int, int], ...] = ()
    cached_tokens: int = 2

    @property
    def log_probs(self) -> np.ndarray:
        return -np.asarray(self.output_ids, np.float32) / 8


def piece(*tokens: int, reason: str = "abort", **more: Any) -> Completion:
    return Completion(np.array(tokens, np.int32), {"type": reason}, **more)


class Characters:
    """A tokenizer with a token for each character; 0 has no text."""

    def encode(self, text: str, **options: Any) -> list[int]:
        return [ord(one) for one in text]

    def decode(self, tokens: Any, **options: Any) -> str:
        return "".join(chr(token) for token in tokens if token)


def test_three_pieces_by_hand():
    # Budget 10: 2 tokens by version 1, none while it was queued, 1 + 1 by versions 1 and 2, which stops it.
    params = {"max_new_tokens": 10, "min_new_tokens": 3, "temperature": 1.0}
    pieces, prompt = Pieces("s", params), np.array([7, 7], np.int32)
    asked = []
    for one in (
        piece(5, 6),
        piece(weight_versions=("",)),
        piece(8, 9, reason="stop", weight_versions=("1", "2.cd"), spans=(("1", 0, 1), ("2.cd", 1, 2))),
    ):
        asked.append((pieces.tokens(prompt).tolist(), pieces.params()))
        reason = pieces.add(one, len(asked[-1][0]))
    assert asked == [
        ([7, 7], params),
        ([7, 7, 5, 6], {"max_new_tokens": 8, "min_new_tokens": 1, "temperature": 1.0}),
        ([7, 7, 5, 6], {"max_new_tokens": 8, "min_new_tokens": 1, "temperature": 1.0}),
    ]
    merged = pieces.merged()
    assert reason == merged.finish_reason["type"] == "stop"
    assert merged.output_ids.tolist() == [5, 6, 8, 9]
    assert merged.log_probs.tolist() == [-5 / 8, -6 / 8, -1, -9 / 8]
    assert merged.token_versions.tolist() == [1, 1, 1, 2]
    assert (merged.weight_versions, merged.asked_tokens, merged.cached_tokens) == ((1, 2), 2 + 4 + 4, 6)
    assert (merged.output_ids.dtype, merged.log_probs.dtype, merged.token_versions.dtype) == (
        np.int32,
        np.float32,
        np.int32,
    )


def test_a_budget_of_100_after_40_tokens_is_60_and_the_callers_dict_stays_as_it_is():
    params = {"max_new_tokens": 100, "min_new_tokens": 30, "stop": ["x"]}
    before = dict(params)
    assert reduced(params, 40) == {"max_new_tokens": 60, "min_new_tokens": 0, "stop": ["x"]}
    assert params == before
    assert reduced({"stop": None}, 40) == {"stop": None}
    assert reduced(params, 0) is not params


def test_nothing_at_all_is_an_empty_response():
    merged = Pieces("s", {"max_new_tokens": 4}).merged("length")
    assert (len(merged.output_ids), len(merged.log_probs), len(merged.token_versions)) == (0, 0, 0)
    assert (merged.finish_reason, merged.weight_versions) == ({"type": "length"}, ())


@given(tokens=st.lists(st.integers(0, 50), max_size=30), cuts=st.lists(st.integers(0, 30), max_size=6))
def test_pieces_lose_and_double_no_token(tokens: list[int], cuts: list[int]):
    places = sorted({0, len(tokens), *(min(cut, len(tokens)) for cut in cuts)})
    spans = list(pairwise(places)) or [(0, 0)]
    pieces, prompt = Pieces("s", {"max_new_tokens": 30}), np.array([99], np.int32)
    for version, (start, end) in enumerate(spans):
        assert pieces.tokens(prompt).tolist() == [99, *tokens[:start]]
        assert pieces.params()["max_new_tokens"] == 30 - start
        pieces.add(piece(*tokens[start:end], weight_versions=(str(version),)), 1 + start)
    merged = pieces.merged("stop")
    assert merged.output_ids.tolist() == tokens
    assert merged.log_probs.tolist() == [-token / 8 for token in tokens]
    made_by = [version for version, (start, end) in enumerate(spans) for _ in range(start, end)]
    assert merged.token_versions.tolist() == made_by
    assert list(merged.weight_versions) == sorted(set(made_by))
    assert pieces.full == (len(tokens) >= 30)


def first_end(text: str, stop: list[str], window: int) -> int | None:
    """SGLang's rule without pieces: after each token it looks for a stop string in the last ``window`` tokens."""
    for end in range(1, len(text) + 1):
        if any(one in text[max(0, end - window) : end] for one in stop):
            return end
    return None


@given(
    text=st.text("ab", min_size=2, max_size=12),
    stop=st.lists(st.text("ab", min_size=2, max_size=4), min_size=1, max_size=2),
    cut=st.integers(1, 11),
)
def test_a_stop_string_across_a_boundary_ends_the_response_where_it_would_without_one(text, stop, cut):
    cut = min(cut, len(text) - 1)
    window = max(map(len, stop)) + 1
    whole = first_end(text, stop, window)
    if whole is not None and whole <= cut:
        return  # it ended before the boundary
    # The second piece begins anew: its engine looks at its own tokens alone.
    alone = first_end(text[cut:], stop, window)
    second = text[cut:] if alone is None else text[cut : cut + alone]
    before, after = (np.array([ord(one) for one in part], np.int32) for part in (text[:cut], second))
    found = stop_across(stop, Characters(), before, after)
    ends = cut + len(second) if found is None else cut + found[0]
    assert ends == (len(text) if whole is None else whole)
    if found is not None:
        assert found[1] in stop


def test_a_stop_string_across_a_boundary_cuts_off_what_came_after_it():
    pieces = Pieces("s", {"max_new_tokens": 9, "stop": ["END"]}, Characters())
    assert pieces.add(piece(*map(ord, "aE")), 1) == "abort"
    assert pieces.add(piece(*map(ord, "NDmore"), reason="length"), 3) == "stop"
    merged = pieces.merged()
    assert Characters().decode(merged.output_ids) == "aEND"
    assert merged.finish_reason == {"type": "stop", "matched": "END"}
    assert len(merged.log_probs) == len(merged.token_versions) == 4
    # The response of an earlier step counts, and is no part of the result.
    later = Pieces("s", {"max_new_tokens": 9, "stop": "END"}, Characters(), np.array([ord("E")], np.int32))
    assert later.add(piece(*map(ord, "NDmore"), reason="length"), 3) == "stop"
    assert Characters().decode(later.merged().output_ids) == "ND"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"weight_versions": ("default",)}, "'default', which are no numbers"),
        ({"weight_versions": ("1", "2")}, "not which weights made"),
        ({"weight_versions": ("1",), "spans": (("1", 0, 1),)}, "not which weights made"),
    ],
)
def test_what_an_engine_says_of_its_weights_must_fit(more, says):
    with pytest.raises(UserError, match=says):
        Pieces("s", {}).add(piece(1, 2, **more), 1)


def test_an_engine_that_has_no_weights_of_the_run_yet_is_asked_again() -> None:
    # one that was just replaced, by another thread of the run: the stage is done again once it has them
    with pytest.raises(Lost):
        Pieces("s", {}).add(piece(1, 2, weight_versions=("default",)), 1)
    with pytest.raises(UserError) as mistake:
        Pieces("s", {}).add(piece(1, 2, weight_versions=("mine",)), 1)
    assert not isinstance(mistake.value, Lost)


@given(st.lists(st.integers(-1, 3), max_size=12))
def test_versions_are_named_once_in_their_order(versions):
    assert in_order(np.array(versions, np.int32)) == tuple(dict.fromkeys(versions))
