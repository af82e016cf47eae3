"""Slices of a global batch: which group is in which, and which options go without."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.errors import UserError
from relax_core.batching.slices import slice_numbers, slice_size, streams
from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig


def config(**options: Any) -> RelaxConfig:
    return with_options(RelaxConfig(), {"global_batch_size": 12, "num_iters_per_train_update": 2, **options})


def test_groups_fill_slices_in_the_order_in_which_they_finish() -> None:
    # 12 samples in 2 slices of 6: of groups of 2 three each; the others are behind the first global batch
    assert slice_size(config()) == 6
    assert slice_numbers(config(), [2] * 8) == [0, 0, 0, 1, 1, 1, None, None]
    assert slice_numbers(config(num_iters_per_train_update=1), [3] * 5) == [0, 0, 0, 0, None]


def test_a_group_between_two_slices_is_refused() -> None:
    assert slice_numbers(config(), [4, 2, 6]) == [0, 0, 1]
    with pytest.raises(UserError, match="Group 1 has 4 samples, and its slice of 6 has room for 2"):
        slice_numbers(config(), [4, 4])


def test_a_batch_that_is_not_divided_evenly_is_refused() -> None:
    for options in ({"global_batch_size": 12, "num_iters_per_train_update": 5}, {"global_batch_size": None}):
        with pytest.raises(UserError, match="--num-iters-per-train-update"):
            slice_size(config(**options))


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.integers(0, 60))
def test_a_slice_is_whole_and_knows_nothing_of_what_comes(n: int, groups: int, slices: int, finished: int) -> None:
    options = config(global_batch_size=n * groups * slices, num_iters_per_train_update=slices)
    numbers = slice_numbers(options, [n] * finished)
    assert all(slice_numbers(options, [n] * k) == numbers[:k] for k in range(finished))
    first = numbers[: groups * slices]
    assert None not in first
    assert set(numbers[groups * slices :]) <= {None}
    assert first == sorted(first, key=lambda number: number or 0)
    for number in range(slices if finished >= groups * slices else finished // groups):
        assert first.count(number) == groups


def test_streaming_is_for_what_needs_no_whole_step() -> None:
    plain = {"use_kl_loss": True, "kl_loss_coef": 0.1, "calculate_per_token_loss": True, "use_tis": True}
    plain |= {"num_steps_per_rollout": 2, "use_dynamic_batch_size": True, "balance_data": True}
    assert streams(config(**plain)) is None
    assert streams(config(advantage_estimator="gspo", use_opsm=True, overlap_grad_reduce=True)) is None
    assert streams(config(custom_pg_loss_reducer_function_path="mine.reducer")) is None
    assert streams(config(custom_tis_function_path="mine.correct")) is None  # nobody calls it
    correct = {"custom_tis_function_path": "mine.correct"}
    for options, reason in (
        ({"global_batch_size": None}, "--global-batch-size"),
        ({"advantage_estimator": "ppo"}, "--advantage-estimator ppo"),
        ({"advantage_estimator": "rloo"}, "--advantage-estimator rloo"),
        ({"normalize_advantages": True}, "--normalize-advantages"),
        ({"loss_type": "custom_loss"}, "--custom-loss-function-path"),
        ({**correct, "use_tis": True}, "--custom-tis-function-path"),
        ({**correct, "get_mismatch_metrics": True}, "--custom-tis-function-path"),
        ({"colocate": True}, "--colocate"),
        ({"offload_train": True}, "--offload-train"),
        ({"custom_reward_post_process_path": "mine.post"}, "--custom-reward-post-process-path"),
        ({"custom_convert_samples_to_train_data_path": "mine.post"}, "--custom-convert-samples-to-train-data-path"),
        ({"rollout_data_postprocess_path": "mine.post"}, "--rollout-data-postprocess-path"),
    ):
        assert reason in str(streams(config(**options))), options
