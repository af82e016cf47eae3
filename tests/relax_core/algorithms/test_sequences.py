"""Sums over samples: by hand, loops, gradients, packing. Samples that lie on two ranks are in test_invariances."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from relax_core.algorithms.sequences import Sequences


def offsets_of(lengths):
    return torch.tensor([0, *torch.tensor(lengths, dtype=torch.int64).cumsum(0).tolist()])


def test_by_hand():
    # [1, 2], [], [3, NaN (masked), 5]: sums 3, 0, 8; means 1.5, 0, 4
    sequences = Sequences(offsets_of([2, 0, 3]))
    values = torch.tensor([1.0, 2, 3, float("nan"), 5], requires_grad=True)
    mask = torch.tensor([1, 1, 1, 0, 1])
    assert sequences.sums(values, mask).tolist() == [3, 0, 8]
    assert sequences.counts(mask).tolist() == [2, 0, 2]
    assert sequences.means(values, mask).tolist() == [1.5, 0, 4]
    assert sequences.spread(torch.tensor([1.0, 2, 3]), 5).tolist() == [1, 1, 3, 3, 3]
    sequences.means(values, mask).sum().backward()
    assert values.grad.tolist() == [0.5, 0.5, 0.5, 0, 0.5]
    assert len(sequences) == 3


def test_no_samples():
    values = torch.zeros(0, requires_grad=True)
    sequences = Sequences(torch.zeros(1, dtype=torch.int64))
    spread = sequences.spread(sequences.means(values, torch.zeros(0)), 0)
    spread.sum().backward()
    assert spread.shape == values.grad.shape == (0,)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=6), st.integers(0, 1000))
def test_gradcheck_of_means_and_spread(lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    total = sum(lengths)
    values = torch.randn(total, generator=generator, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(total, generator=generator) > 0.4
    sequences = Sequences(offsets_of(lengths))
    want = []
    for row, kept in zip(values.detach().split(lengths), mask.split(lengths), strict=True):
        want += [sum(row[kept].tolist()) / max(int(kept.sum()), 1)] * len(row)

    def spread_means(x):
        return sequences.spread(sequences.means(x, mask).exp(), total)

    torch.testing.assert_close(spread_means(values), torch.tensor(want, dtype=torch.float64).exp())
    if total:
        assert torch.autograd.gradcheck(spread_means, values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sample_is_the_same_to_the_bit_however_it_is_packed(dtype):
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randn(n, generator=generator).mul(10.0**k).to(dtype) for k, n in enumerate([3000, 7, 500])]

    def means(order):
        lengths = [len(rows[i]) for i in order]
        values = torch.cat([rows[i] for i in order])
        found = Sequences(offsets_of(lengths)).means(values, torch.ones(len(values)))
        return {i: found[k].item() for k, i in enumerate(order)}

    assert means([0, 1, 2]) == means([2, 0, 1]) == {**means([0]), **means([1, 2])}
