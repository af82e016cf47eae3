"""Micro-batches and the loss of an optimiser step, by hand."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
import torch

from data.errors import UserError
from data.ragged import Ragged
from data.schema import BATCH
from data.schema import table as make_table
from relax_core.config.sections import RelaxConfig
from relax_core.training.batch import TrainingBatch
from relax_core.training.loss import Scores, StepLoss
from relax_core.training.reference import WeightCopy
from relax_core.training.work import divide

CPU = torch.device("cpu")


@dataclass
class Layout:
    """A rank of data parallelism."""

    dp_rank: int
    dp_size: int = 2


def ragged(rows: list[list[float]], dtype: type) -> Ragged:
    return Ragged.from_list([np.array(row) for row in rows], dtype)


def make(masks: list[list[int]], advantages: list[list[float]], engine: list[list[float]]) -> TrainingBatch:
    """Prompts of 2, 3, 4, ... tokens, numbered through."""
    lengths = [len(mask) for mask in masks]
    totals = [2 + i + n for i, n in enumerate(lengths)]
    starts = np.cumsum([0, *totals])
    tokens = [list(range(starts[i], starts[i + 1])) for i in range(len(totals))]
    columns = {
        "sample_id": [f"s{i}" for i in range(len(lengths))],
        "group_id": ["g"] * len(lengths),
        "tokens": ragged(tokens, np.int32),
        "response_length": np.array(lengths, np.int32),
        "loss_mask": ragged(masks, np.uint8),
        "rollout_log_probs": ragged(engine, np.float32),
        "advantages": ragged(advantages, np.float32),
        "returns": ragged(advantages, np.float32),
        "reward": np.zeros(len(lengths), np.float32),
    }
    return TrainingBatch.from_table(make_table(BATCH, columns))


@pytest.fixture
def batch() -> TrainingBatch:
    """Tokens 0 1 | 2 3 4,  5 6 7 | 8: two samples, prompt | response."""
    return make([[1, 0, 1], [1]], [[1, 1, 1], [-1]], [[-1, -2, -3], [-4]])


def test_a_response_token_is_scored_one_position_before_it(batch: TrainingBatch) -> None:
    micro = batch.micro_batch([0, 1], CPU)
    assert micro.tokens.tolist() == [0, 1, 2, 3, 5, 6, 7]  # 4 and 8 predict nothing
    assert micro.lengths == [4, 3]
    assert micro.rows.tolist() == [1, 2, 3, 6]
    assert micro.targets.tolist() == [2, 3, 4, 8]
    assert micro.flat.tolist() == [0, 1, 2, 3]
    assert (micro.response_offsets.tolist(), micro.total_lengths) == ([0, 3, 4], [5, 4])


def test_a_micro_batch_keeps_the_order_that_it_is_asked_for(batch: TrainingBatch) -> None:
    micro = batch.micro_batch([1, 0], CPU)
    assert micro.tokens.tolist() == [5, 6, 7, 0, 1, 2, 3]
    assert micro.rows.tolist() == [2, 4, 5, 6]
    assert micro.flat.tolist() == [3, 0, 1, 2]
    assert micro.samples == [1, 0]


def test_a_dummy_scores_nothing(batch: TrainingBatch) -> None:
    micro = batch.micro_batch([], CPU)
    assert (micro.lengths, len(micro.tokens), len(micro.rows), len(micro.flat)) == ([1], 1, 0, 0)
    assert (micro.response_offsets.tolist(), micro.total_lengths) == ([0], [])
    micro = batch.micro_batch([], torch.device("meta"))
    assert (micro.rows.device.type, micro.flat.device.type) == ("meta", "cpu")  # as of any micro-batch


def test_an_empty_response_is_allowed() -> None:
    micro = make([[], [1]], [[], [1]], [[], [-1]]).micro_batch([0, 1], CPU)
    assert micro.lengths == [1, 3]
    assert micro.rows.tolist() == [3]


def test_a_batch_without_samples_is_refused(batch: TrainingBatch) -> None:
    with pytest.raises(UserError, match="no samples"):
        make([], [], [])


LOG_PROBS = torch.tensor([-1.5, -9.0, -3.0, -4.0])


def run(
    config: RelaxConfig, batch: TrainingBatch, parts: list[list[int]], scores: Scores | None = None
) -> dict[str, float]:
    """Metrics summed over micro-batches given by their samples, and the gradient of the log-probs."""
    step = StepLoss(config, batch, scores or Scores(), (0, len(batch)), first=True)
    log_probs = LOG_PROBS.clone().requires_grad_()
    sums, largest = (torch.zeros(len(names), dtype=torch.float64) for names in (step.sums, step.largest))
    for part in parts:
        micro = batch.micro_batch(part, CPU)
        loss, values, peaks = step(log_probs[micro.flat], torch.ones(len(micro.flat)), micro)
        loss.backward()
        sums += values
        largest = torch.maximum(largest, peaks)
    assert log_probs.grad is not None
    metrics = step.metrics(
        dict(zip(step.sums, sums.tolist(), strict=True)), dict(zip(step.largest, largest.tolist(), strict=True))
    )
    return {**metrics, "grad": log_probs.grad.tolist()}  # type: ignore[dict-item]


def test_loss_is_the_mean_over_samples_of_means_over_tokens(batch: TrainingBatch) -> None:
    result = run(RelaxConfig(), batch, [[0, 1]])
    # ratio 1: token losses -1, (masked), -1 | 1; sample means -1 and 1; over 2 samples: 0
    assert result["loss"] == 0
    assert result["grad"] == [-0.25, 0, -0.25, 0.5]
    # differences 0.5, (masked), 0 | 0: sample means 0.25 and 0, mean 0.125
    assert result["train_rollout_logprob_abs_diff"] == 0.125
    assert result["train_rollout_logprob_abs_diff_max"] == 0.5
    assert result["entropy_loss"] == 1


def test_the_token_mean_counts_tokens_of_the_whole_step(batch: TrainingBatch) -> None:
    config = RelaxConfig()
    config.optimizer.calculate_per_token_loss = True
    result = run(config, batch, [[0], [1]])
    assert result["loss"] == pytest.approx(-1 / 3)  # (-1 - 1 + 1) / 3
    assert result["grad"] == pytest.approx([-1 / 3, 0, -1 / 3, 1 / 3])


def test_micro_batches_do_not_change_loss_metric_or_gradient(batch: TrainingBatch) -> None:
    config = RelaxConfig()
    config.algorithm.entropy_coef, config.algorithm.kl_loss_coef = 0.1, 0.2
    scores = Scores(old=LOG_PROBS - 0.3, reference=LOG_PROBS + 0.1, trainer=LOG_PROBS)
    whole = run(config, batch, [[0, 1]], scores)
    for parts in ([[0], [1]], [[1, 0]], [[1], [], [0]]):
        split = run(config, batch, parts, scores)
        assert {k: v for k, v in split.items() if k != "grad"} == pytest.approx(
            {k: v for k, v in whole.items() if k != "grad"}, abs=1e-7
        )
        assert split["grad"] == pytest.approx(whole["grad"])


def test_what_is_masked_adds_nothing_whatever_it_holds() -> None:
    nan, inf = float("nan"), float("inf")
    batch = make([[0, 0, 0], [1]], [[nan, inf, 1], [1]], [[nan, nan, nan], [-4]])
    result = run(RelaxConfig(), batch, [[0, 1]])
    assert result["loss"] == -0.5  # (0 + -1) / 2
    assert result["grad"] == [0, 0, 0, -0.5]
    assert result["train_rollout_logprob_abs_diff_max"] == 0


def test_the_reference_takes_the_models_place_and_leaves_it() -> None:
    model = torch.nn.Linear(2, 2, bias=False)
    kept = WeightCopy(model)
    reference = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1)
    own, pointer = model.weight.detach().clone(), model.weight.data_ptr()

    def breaks() -> None:
        with kept.in_place_of(model):
            assert torch.equal(model.weight, reference)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        breaks()
    assert torch.equal(model.weight, own)
    assert model.weight.data_ptr() == pointer


def test_samples_without_a_signal_are_only_watched() -> None:
    batch = make([[1], [1], [0], [1]], [[1], [0], [1], [-1]], [[-1]] * 4)
    config = RelaxConfig()
    config.batch.num_steps_per_rollout, config.batch.micro_batch_size = 2, 4
    works = [divide(config, place, batch) for place in (Layout(0), Layout(1))]
    assert [(work.samples, work.learn, work.watch) for work in works[0]] == [
        ((0, 2), [[0]], [[1]]),
        ((2, 4), [[3]], [[2]]),
    ]
    # the other rank has dummies, so that both make as many passes
    assert [(work.samples, work.learn, work.watch) for work in works[1]] == [((0, 2), [[]], [[]]), ((2, 4), [[]], [[]])]


@pytest.mark.parametrize(("entropy", "reference"), [(0.01, False), (0.0, True)])
def test_entropy_or_kl_in_the_loss_gives_every_sample_a_gradient(entropy: float, reference: bool) -> None:
    batch = make([[1], [1]], [[1], [0]], [[-1]] * 2)
    config = RelaxConfig()
    config.algorithm.entropy_coef, config.batch.micro_batch_size = entropy, 2
    config.algorithm.use_kl_loss = reference
    (work,) = divide(config, Layout(0, 1), batch)
    assert (work.learn, work.watch) == ([[0, 1]], [])


@pytest.mark.parametrize("loss_type", ["custom_loss", "sft"])
def test_a_loss_that_may_read_no_advantages_trains_every_sample(loss_type: Literal["custom_loss", "sft"]) -> None:
    batch = make([[1], [0]], [[0], [0]], [[-1]] * 2)
    config = RelaxConfig()
    config.algorithm.loss_type, config.batch.micro_batch_size = loss_type, 2
    (work,) = divide(config, Layout(0, 1), batch)
    assert (work.learn, work.watch) == ([[0, 1]], [])


def test_a_batch_that_the_global_batch_size_does_not_divide_is_refused() -> None:
    config = RelaxConfig()
    config.batch.global_batch_size = 3
    with pytest.raises(UserError, match="2 samples, not 1 x --global-batch-size 3"):
        divide(config, Layout(0), make([[1], [1]], [[1], [0]], [[-1]] * 2))
