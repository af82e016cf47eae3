"""Buckets: how tensors are grouped, and what is copied where."""

import itertools
from collections.abc import Iterator

import torch
from hypothesis import given
from hypothesis import strategies as st

from relax_core.weights.bucket import buckets, fill, flattened, pieces, views, width_of

TYPES = (torch.float32, torch.bfloat16, torch.float64, torch.uint8)


@given(sizes=st.lists(st.integers(0, 50)), limit=st.integers(1, 400))
def test_buckets_keep_order_and_size(sizes, limit):
    named = [(str(i), torch.zeros(size)) for i, size in enumerate(sizes)]
    groups = list(buckets(named, limit))
    assert [piece.name for group in groups for piece in group] == [name for name, _ in named]
    padded = [[-(-piece.values.nbytes // 16) * 16 for piece in group] for group in groups]
    assert [width_of(group) for group in groups] == [sum(group) for group in padded]
    assert all(group for group in groups)
    assert all(sum(group) <= limit or len(group) == 1 for group in padded)
    # no two neighbours would have fitted together
    assert all(sum(a) + b[0] > limit for a, b in itertools.pairwise(padded))


def test_buckets_are_made_as_they_are_wanted():
    made = []

    def stream() -> Iterator[tuple[str, torch.Tensor]]:
        for i in range(10):
            made.append(i)
            yield str(i), torch.zeros(4)

    next(buckets(stream(), 32))
    assert len(made) == 3  # two in the bucket and the one that did not fit


@given(
    shapes=st.lists(
        st.tuples(st.sampled_from(TYPES), st.lists(st.integers(0, 4), max_size=3), st.booleans()), min_size=1
    ),
    alignment=st.sampled_from([1, 16]),
    limit=st.sampled_from([1, 200, 10**6]),
)
def test_a_bucket_holds_what_went_in_whatever_its_layout(shapes, alignment, limit):
    # every other dimension order, so that elements do not lie in memory in their order
    given = {}
    for i, (dtype, shape, turned) in enumerate(shapes):
        tensor = torch.randint(0, 100, shape).to(dtype)
        given[str(i)] = tensor.mT.clone().mT if turned and tensor.dim() > 1 else tensor
    found = {}
    for group in buckets(given.items(), limit, alignment):
        buffer = torch.full((width_of(group, alignment),), 255, dtype=torch.uint8)
        slots = fill(buffer, group, alignment)
        assert all(slot.start % alignment == 0 and slot.start % slot.dtype.itemsize == 0 for slot in slots)
        if alignment == 1:
            assert [slot.start for slot in slots] == [0, *(slot.end for slot in slots[:-1])]
        found |= dict(views(buffer, slots))
        flat = flattened(buffer, slots)
        for entry in flat["metadata"]:  # as SGLang reads it
            part = flat["flattened_tensor"][entry.start_idx : entry.end_idx].view(entry.dtype).reshape(entry.shape)
            assert torch.equal(part, given[entry.name])
    assert found.keys() == given.keys()
    for name, tensor in given.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_elements_may_come_in_another_shape_than_the_tensors():
    # rows 0, 1 of one head and 4, 5 of the next, as queries lie in a joint matrix: no stride makes them two-dimensional
    joint = torch.arange(16.0).view(8, 2)
    values = joint.view(2, 4, 2)[:, :2]
    (piece,) = pieces([("query", values, (4, 2))])
    buffer = torch.zeros(32, dtype=torch.uint8)
    ((name, query),) = views(buffer, fill(buffer, [piece]))
    assert name == "query"
    assert query.tolist() == [[0, 1], [2, 3], [8, 9], [10, 11]]
