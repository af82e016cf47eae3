"""What a page of rollouts holds: which samples, and of each token what is known, packed.

Guarantee: columns are arrays of numbers in Base64, or the one number that they hold throughout; texts of tokens are
there once for the whole page, and pieces of several tokens once for each sample. Its size is bounded: at most
``PAGE_TOKENS`` response tokens unless more samples are asked for than ``PAGE_SAMPLES``, and ``SAMPLE_TOKENS`` of one
sample; what is left out is said.
"""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relax_core.show import scale
from relax_core.show.reading import Sample, Shown
from relax_core.show.samples import Key, facts, in_order, trained_values
from relax_core.show.tokens import Vocabulary, joined_pieces

PAGE_SAMPLES = 128
PAGE_TOKENS = 300_000
"""Response tokens on a page: 14 bytes each (4 MB) with the log-probabilities of engine and trainer, 34 with all."""

SAMPLE_TOKENS = 20_000
"""Of one sample; a longer one is shown without its middle."""

_TEXT = 20_000
"""Characters of a prompt, or of a judge's answer."""


@dataclass(frozen=True)
class Selection:
    """Samples for a page.

    Attributes:
        samples: in the order of the key.
        of: how many there were to choose from.
    """

    samples: list[Sample]
    of: int


def select(samples: Sequence[Sample], key: Key = "reward", limit: int = PAGE_SAMPLES) -> Selection:
    """Whole groups, in turn those of the samples at either end of the order, until ``limit`` samples or the tokens that
    a page may have are there; at least one group, of which at most ``limit`` samples.

    Args:
        limit: above ``PAGE_SAMPLES`` the page may have more tokens than ``PAGE_TOKENS`` in the same proportion.
    """
    most = PAGE_TOKENS * max(1.0, limit / PAGE_SAMPLES)
    ordered = in_order(samples, key)
    groups: dict[str, list[Sample]] = {}
    for sample in ordered:
        groups.setdefault(sample.group_id, []).append(sample)
    queue = [ordered[at // 2 if at % 2 == 0 else -1 - at // 2].group_id for at in range(len(ordered))]
    taken: set[str] = set()
    tokens = 0
    for name in dict.fromkeys(queue):
        group = groups[name][:limit]
        count = sum(min(sample.length, SAMPLE_TOKENS) for sample in group)
        there = sum(sample.group_id in taken for sample in ordered)
        if taken and (there + len(group) > limit or tokens + count > most):
            break
        taken.add(name)
        tokens += count
    kept: list[Sample] = []
    tokens = 0
    for sample in (one for one in ordered if one.group_id in taken):
        tokens += min(sample.length, SAMPLE_TOKENS)
        if kept and (len(kept) == limit or tokens > most):
            break
        kept.append(sample)
    return Selection(kept, len(ordered))


def page_data(run: str, shown: Shown, selection: Selection, vocabulary: Vocabulary | None) -> dict[str, Any]:
    """What the page's script shows."""
    chosen = selection.samples
    spans = [_span(sample.length) for sample in chosen]
    ids = [_cut(_response(sample), span) for sample, span in zip(chosen, spans, strict=True)]
    known, flat = np.unique(np.concatenate([*ids, np.empty(0, np.int32)]), return_inverse=True)
    words = np.split(flat.astype("<u4" if len(known) > 1 << 16 else "<u2"), np.cumsum([len(row) for row in ids]))
    versions = sorted({int(v) for sample in chosen for v in np.unique(_or_empty(sample.versions))})
    rows = []
    for sample, span, row, own in zip(chosen, spans, words, ids, strict=False):
        entry = _entry(sample, span, versions)
        entry["packed"] = _base64(row)
        if vocabulary is not None:
            entry["joined"] = joined_pieces(own, vocabulary)
            del entry["response"]
        rows.append(entry)
    return {
        "run": run,
        "title": shown.title,
        "facts": facts(shown.samples),
        "missing": list(shown.missing),
        "left_out": _left_out(selection, spans),
        "bounds": {name: scale.bound(trained_values(chosen, name)) for name in ("gap", "advantages")},
        "colours": {
            "above": scale.ABOVE,
            "below": scale.BELOW,
            "neutral": scale.NEUTRAL,
            "versions": scale.VERSIONS,
            "strongest": scale.STRONGEST,
        },
        "versions": versions,
        "wide": len(known) > 1 << 16,
        "ids": known.tolist(),
        "texts": None
        if vocabulary is None
        else [vocabulary.bytes_of(token).decode(errors="replace") for token in known.tolist()],
        "parts": {} if vocabulary is None else _parts(known, vocabulary),
        "groups": {sample.group_id: _trim(sample.prompt) for sample in chosen},
        "samples": rows,
    }


def _parts(known: NDArray[Any], vocabulary: Vocabulary) -> dict[str, str]:
    """Bytes of tokens that are no whole characters, by their place in the page's list."""
    found = {}
    for place, token in enumerate(known.tolist()):
        own = vocabulary.bytes_of(token)
        try:
            own.decode()
        except UnicodeDecodeError:
            found[str(place)] = own.hex(" ")
    return found


def _entry(sample: Sample, span: tuple[int, int], versions: list[int]) -> dict[str, Any]:
    row = sample.to_json()
    del row["prompt"]
    row["response"] = _trim(sample.response)
    for name in ("label", "error", "judge_output"):
        row[name] = _trim(row[name]) if row[name] else row[name]
    row["parts"] = {name: _trim(one) if isinstance(one, str) else one for name, one in sample.parts.items()}
    row["cut"] = None if span[0] + span[1] >= sample.length else span
    columns: dict[str, NDArray[Any] | None] = {
        "log_probs": sample.log_probs,
        "old": sample.old_log_probs,
        "ref": sample.ref_log_probs,
        "values": sample.values,
        "advantages": sample.advantages,
    }
    row["columns"] = {
        name: _packed(_cut(column.astype("<f4"), span)) for name, column in columns.items() if column is not None
    }
    if sample.mask is not None:
        row["columns"]["mask"] = _packed(_cut(sample.mask.astype("u1"), span))
    if sample.versions is not None:
        row["columns"]["versions"] = _packed(_cut(np.searchsorted(versions, sample.versions).astype("<u2"), span))
    return row


def _span(length: int) -> tuple[int, int]:
    """Tokens that are shown of the beginning and of the end."""
    if length <= SAMPLE_TOKENS:
        return length, 0
    return SAMPLE_TOKENS * 3 // 4, SAMPLE_TOKENS // 4


def _cut(values: NDArray[Any], span: tuple[int, int]) -> NDArray[Any]:
    head, tail = span
    return values if head + tail >= len(values) else np.concatenate([values[:head], values[len(values) - tail :]])


def _response(sample: Sample) -> NDArray[Any]:
    return _or_empty(sample.tokens)[sample.prompt_length :]


def _or_empty(values: NDArray[Any] | None) -> NDArray[Any]:
    return np.empty(0, np.int32) if values is None else values


def _packed(values: NDArray[Any]) -> str | float | None:
    """Base64 of the little-endian values, or the number that all of them are."""
    if len(values) and (values == values[0]).all():
        return float(values[0])
    return _base64(values)


def _base64(values: NDArray[Any]) -> str:
    return base64.b64encode(values.tobytes()).decode()


def _left_out(selection: Selection, spans: Sequence[tuple[int, int]]) -> str | None:
    texts = []
    shown = len(selection.samples)
    if shown < selection.of:
        texts.append(
            f"{shown} of {selection.of} samples are here: the groups of those that come first and last in this order. "
            f"{selection.of - shown} are left out: --limit takes more, --group and --prompt others."
        )
    if cut := sum(tail > 0 for _, tail in spans):
        texts.append(f"{cut} responses of more than {SAMPLE_TOKENS:,} tokens are shown without their middle.")
    return " ".join(texts) or None


def _trim(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[:_TEXT]} … ({len(text) - _TEXT} more characters)"
