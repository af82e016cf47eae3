"""Plans: by hand, and the invariants that the trainer relies on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import UserError
from data.ragged import Ragged
from relax_core.batching.columns import Packing
from relax_core.batching.plan import plan_updates


def test_static_batches_in_file_order():
    plans = plan_updates([5] * 8, dp_size=2, num_updates=2, micro_batch_size=1)
    assert [plan.micro_batches for plan in plans] == [[[[0], [1]], [[2], [3]]], [[[4], [5]], [[6], [7]]]]
    assert [plan.samples for plan in plans] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_dynamic_batches_are_packed_to_the_budget():
    # rank 0: 6 + 4 fit in 10, 5 + 5 too
    (plan,) = plan_updates([6, 5, 5, 4], dp_size=1, max_tokens=10)
    assert plan.micro_batches == [[[0, 3], [1, 2]]]


def test_a_rank_with_fewer_micro_batches_splits_its_largest():
    # rank 0 needs three; rank 1's bin of 1 + 2 + 3 is split into 3 | 1 + 2, then 1 + 2 (the first of the largest) again
    (plan,) = plan_updates([9, 9, 9, 1, 2, 3], dp_size=2, max_tokens=10)
    assert plan.micro_batches == [[[0], [1], [2]], [[5], [4], [3]]]


def test_a_rank_without_enough_samples_gets_dummies():
    (plan,) = plan_updates([1, 1, 1], dp_size=2, micro_batch_size=1)
    assert plan.micro_batches == [[[0], [1]], [[2], []]]
    (plan,) = plan_updates([1], dp_size=3, max_tokens=4)
    assert plan.micro_batches == [[[0]], [[]], [[]]]


def test_pipelines_can_ask_for_a_minimum_and_a_multiple():
    (plan,) = plan_updates([4, 4, 4], dp_size=1, max_tokens=4, micro_batch_multiple=2)
    assert plan.micro_batches == [[[0], [1], [2], []]]
    (plan,) = plan_updates([1, 1, 1, 1], dp_size=1, max_tokens=100, min_micro_batches=2)
    assert [len(m) for m in plan.micro_batches[0]] == [2, 2]


def test_a_ragged_tail_is_a_smaller_micro_batch():
    (plan,) = plan_updates([1] * 7, dp_size=1, micro_batch_size=2)
    assert plan.micro_batches == [[[0, 1], [2, 3], [4, 5], [6]]]


def test_all_ranks_have_the_multiple_and_the_minimum_whoever_needs_the_most():
    # rank 0 fills three micro-batches of 9, rank 1 one of 3: at least 4, and a multiple of 3 virtual stages: 6
    (plan,) = plan_updates(
        [9, 9, 9, 1, 1, 1], dp_size=2, max_tokens=9, micro_batch_multiple=3, min_micro_batches=4, align="dummy"
    )
    assert plan.micro_batches == [[[0], [1], [2], [], [], []], [[3, 4, 5], [], [], [], [], []]]
    assert plan.num_micro_batches == 6
    # split: rank 1 has three of one sample each, and dummies after them
    (plan,) = plan_updates([9, 9, 9, 1, 1, 1], dp_size=2, max_tokens=9, micro_batch_multiple=3, min_micro_batches=4)
    assert plan.micro_batches == [[[0], [1], [2], [], [], []], [[3], [4], [5], [], [], []]]


def test_updates_of_unequal_size_differ_by_one_sample():
    plans = plan_updates([1] * 7, dp_size=1, num_updates=3, micro_batch_size=8)
    assert [plan.samples for plan in plans] == [[0, 1, 2], [3, 4], [5, 6]]


def test_samples_of_one_rollout_stay_in_one_update():
    # rollouts a a a | b | c c | d over two updates: a and b, c and d
    plans = plan_updates([1] * 7, dp_size=1, num_updates=2, micro_batch_size=1, keep_together=list("aaabccd"))
    assert [plan.samples for plan in plans] == [[0, 1, 2, 3], [4, 5, 6]]


def test_groups_stay_whole_wherever_their_samples_are():
    # a b a b c c d d: a and b begin first and are mixed; two groups of two samples each make an update of four
    plans = plan_updates([1] * 8, dp_size=1, num_updates=2, micro_batch_size=1, keep_together=list("abadcbcd"))
    assert [plan.samples for plan in plans] == [[0, 1, 2, 5], [3, 4, 6, 7]]


def test_groups_of_unequal_size_are_cut_nearest_to_equal_numbers_of_samples():
    # a a a a a | b | c | d: an even share of the 8 samples is 4, and the nearest end of a group is after 5
    plans = plan_updates([1] * 8, dp_size=1, num_updates=2, micro_batch_size=1, keep_together=list("aaaaabcd"))
    assert [plan.samples for plan in plans] == [[0, 1, 2, 3, 4], [5, 6, 7]]
    # d is last and large: every update still gets a group
    plans = plan_updates([1] * 8, dp_size=1, num_updates=4, micro_batch_size=1, keep_together=list("abcddddd"))
    assert [plan.samples for plan in plans] == [[0], [1], [2], [3, 4, 5, 6, 7]]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=30), st.integers(1, 4), st.integers(1, 3))
def test_no_group_is_in_two_updates(groups, num_updates, dp_size):
    num_updates = min(num_updates, len(set(groups)))
    plans = plan_updates(
        [3] * len(groups), dp_size=dp_size, num_updates=num_updates, max_tokens=9, keep_together=groups
    )
    owners = [{groups[i] for i in plan.samples} for plan in plans]
    assert all(owners)
    assert sum(len(owner) for owner in owners) == len(set(groups))
    assert sorted(i for plan in plans for i in plan.samples) == list(range(len(groups)))


def test_ranks_are_aligned_by_dummies_where_asked():
    # rank 0 needs three; rank 1's bin of 1 + 2 + 3 stays whole
    (plan,) = plan_updates([9, 9, 9, 1, 2, 3], dp_size=2, max_tokens=10, align="dummy")
    assert plan.micro_batches == [[[0], [1], [2]], [[3, 4, 5], [], []]]
    # three micro-batches of one sample, rounded up to a multiple of the virtual stages
    (plan,) = plan_updates([1, 1, 1], dp_size=1, micro_batch_size=1, micro_batch_multiple=2, align="dummy")
    assert plan.micro_batches == [[[0], [1], [2], []]]


@pytest.mark.parametrize("align", ["split", "dummy"])
@pytest.mark.parametrize("size", [{"micro_batch_size": 3}, {"max_tokens": 12}])
def test_dummies_and_splits_change_neither_loss_nor_metric(align, size):
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, 11)
    losses = Ragged.from_lengths(rng.integers(-9, 9, lengths.sum()).astype(float), lengths)  # exact in any order
    for multiple in (1, 4, 16):
        (plan,) = plan_updates(lengths, dp_size=2, micro_batch_multiple=multiple, align=align, **size)
        loss = tokens = samples = 0.0
        for rank in plan.micro_batches:
            packing = Packing.of(rank)
            packed = packing.pack(losses)
            parts = [packing.micro_batch(packed, number) for number in range(len(packing))]
            assert len(parts) == plan.num_micro_batches
            loss += sum(float(part.values.sum()) for part in parts)
            tokens += sum(part.values.size for part in parts)
            samples += sum(len(part) for part in parts)
        assert (loss, tokens, samples) == (losses.values.sum(), lengths.sum(), 11)


def test_free_counts_share_a_long_sample_fairly():
    # one sample of 9 and three of 3: alone against the three, not 12 against 6
    (plan,) = plan_updates([9, 3, 3, 3], dp_size=2, max_tokens=9, balance=True, equal_counts=False)
    assert plan.micro_batches == [[[0]], [[1, 2, 3]]]
    (plan,) = plan_updates([9, 3, 3, 3], dp_size=2, max_tokens=9, balance=True)
    assert [sum(len(m) for m in rank) for rank in plan.micro_batches] == [2, 2]


def test_balanced_ranks_have_equal_counts_and_similar_tokens():
    (plan,) = plan_updates([8, 7, 6, 5, 4, 3, 2, 1], dp_size=2, max_tokens=100, balance=True)
    totals = [sum(8 - i for micro_batch in rank for i in micro_batch) for rank in plan.micro_batches]
    assert totals == [18, 18]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": [1], "micro_batch_size": 1, "max_tokens": 1}, "either by samples or by tokens"),
        ({"lengths": [1]}, "either by samples or by tokens"),
        ({"lengths": [1], "micro_batch_size": 0}, "--micro-batch-size is 0"),
        ({"lengths": [], "micro_batch_size": 1}, "0 samples cannot fill 1"),
        ({"lengths": [1], "num_updates": 2, "micro_batch_size": 1}, "1 samples cannot fill 2"),
        (
            {"lengths": [1, 1], "num_updates": 2, "micro_batch_size": 1, "keep_together": ["a", "a"]},
            "1 groups of samples that stay together cannot fill 2",
        ),
    ],
)
def test_impossible_plans_are_refused(arguments, message):
    with pytest.raises(UserError, match=message):
        plan_updates(arguments.pop("lengths"), dp_size=1, **arguments)


def test_ids_are_needed_for_all_samples():
    with pytest.raises(ValueError, match="2 ids for 3 samples"):
        plan_updates([1, 1, 1], dp_size=1, micro_batch_size=1, keep_together=["a", "b"])


def samples_of(plan):
    """Samples of each rank."""
    return [[i for micro_batch in rank for i in micro_batch] for rank in plan.micro_batches]


@settings(max_examples=200, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    dp_size=st.integers(1, 5),
    num_updates=st.integers(1, 3),
    size=st.one_of(
        st.integers(1, 5).map(lambda n: {"micro_batch_size": n}), st.integers(1, 90).map(lambda n: {"max_tokens": n})
    ),
    balance=st.booleans(),
    equal_counts=st.booleans(),
    multiple=st.integers(1, 3),
    minimum=st.integers(1, 5),
    align=st.sampled_from(["split", "dummy"]),
)
def test_invariants(lengths, dp_size, num_updates, size, balance, equal_counts, multiple, minimum, align):
    num_updates = min(num_updates, len(lengths))
    plans = plan_updates(
        lengths,
        dp_size=dp_size,
        num_updates=num_updates,
        balance=balance,
        equal_counts=equal_counts,
        micro_batch_multiple=multiple,
        min_micro_batches=minimum,
        align=align,
        **size,
    )
    assert len(plans) == num_updates
    assert [i for plan in plans for i in plan.samples] == list(range(len(lengths)))  # every one once, in file order
    for plan in plans:
        assert len(plan.micro_batches) == dp_size
        assert {len(rank) for rank in plan.micro_batches} == {plan.num_micro_batches}
        assert plan.num_micro_batches % multiple == 0
        assert plan.num_micro_batches >= minimum
        if "micro_batch_size" in size:  # no more than the fullest rank needs, the minimum and the multiple
            most = max(-(-len(rank) // size["micro_batch_size"]) for rank in samples_of(plan))
            assert plan.num_micro_batches == -(-max(most, minimum) // multiple) * multiple
        counts = [len(rank) for rank in samples_of(plan)]
        assert max(counts) - min(counts) <= 1 or (balance and not equal_counts)
        for micro_batch in (m for rank in plan.micro_batches for m in rank):
            if "max_tokens" in size:
                assert sum(lengths[i] for i in micro_batch) <= size["max_tokens"] or len(micro_batch) == 1
            else:
                assert len(micro_batch) <= size["micro_batch_size"]
