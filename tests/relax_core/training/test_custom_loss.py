"""A loss function of the user in an optimiser step, and the supervised loss, without Megatron."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from training_batches import make_batch

from data.errors import UserError
from data.store import RunStore
from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig
from relax_core.training.batch import TrainingBatch
from relax_core.training.custom_loss import StepCustomLoss
from relax_core.training.hooks import LossFunctions, loss_functions
from relax_core.training.loss import Scores, StepLoss
from relax_core.training.step_loss import StepSupervisedLoss, make_step_loss

CPU = torch.device("cpu")
VOCAB = 32
OWN = {"loss_type": "custom_loss", "custom_loss_function_path": "mine.py:loss"}


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> TrainingBatch:
    """Eight samples, some of whose tokens are masked."""
    store = RunStore(str(tmp_path_factory.mktemp("batch")))
    return TrainingBatch.from_table(store.read_table(make_batch(store, "batch", vocab=VOCAB)))


def config_of(**options: Any) -> RelaxConfig:
    return with_options(RelaxConfig(), {**OWN, **options})


def logits_of(batch: TrainingBatch) -> Tensor:
    return torch.randn(batch.num_response_tokens, VOCAB, generator=torch.Generator().manual_seed(0))


def chosen(batch: dict[str, Any], logits: Tensor) -> Tensor:
    """[r] log-probabilities of the response tokens."""
    return logits.log_softmax(-1).gather(1, torch.cat(batch["response_tokens"])[:, None]).squeeze(1)


@cache
def documented() -> Any:
    """The function that the documentation shows."""
    page = Path(__file__).resolve().parents[3] / "docs/how-to/functions.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(next(block for block in blocks if "def likelihood" in block), names)
    return names["likelihood"]


def likelihood(batch: dict[str, Any], logits: Tensor, sum_of_sample_mean: Callable[[Tensor], Tensor]) -> Any:
    """The documentation's, with one more metric."""
    loss, metrics = documented()(None, batch, logits, sum_of_sample_mean)
    return loss, {**metrics, "samples": float(len(batch["tokens"]))}


def run(
    config: RelaxConfig,
    batch: TrainingBatch,
    function: Any,
    parts: list[list[int]],
    scores: Scores | None = None,
    ranks: int = 1,
) -> tuple[dict[str, float], Tensor]:
    """Metrics and gradient of a step whose micro-batches are spread over ranks by turns."""
    values = logits_of(batch).requires_grad_()
    sums, steps, given = [0.0], [], []

    def gather(value: Any) -> list[Any]:
        given.append(value)
        return given

    for rank in range(ranks):
        step = StepCustomLoss(config, batch, scores or Scores(), (0, len(batch)), function, gather)
        steps.append(step)
        for part in parts[rank::ranks]:
            micro = batch.micro_batch(part, CPU)
            loss, added, _ = step(values[micro.flat], micro)
            loss.backward()
            sums[0] += added.item()
    for step in steps:
        metrics = step.metrics({"loss": sums[0]}, {})
    assert values.grad is not None
    return metrics, values.grad


WHOLE = [[0, 1, 2, 3, 4, 5, 6, 7]]


@pytest.mark.parametrize("per_token", [False, True])
def test_the_example_of_the_documentation_is_the_supervised_loss(batch: TrainingBatch, per_token: bool) -> None:
    config = config_of(calculate_per_token_loss=per_token)
    metrics, gradient = run(config, batch, likelihood, [[0, 1, 2], [3, 4], [5, 6, 7]])
    values = logits_of(batch).requires_grad_()
    step, micro = StepSupervisedLoss(config, batch, (0, len(batch))), batch.micro_batch(WHOLE[0], CPU)
    log_probs = values.log_softmax(-1).gather(1, micro.targets[:, None]).squeeze(1)
    loss, sums, largest = step(log_probs, torch.ones_like(log_probs), micro)
    loss.backward()
    assert values.grad is not None
    torch.testing.assert_close(gradient, values.grad, rtol=1e-5, atol=1e-8)
    supervised = step.metrics(dict(zip(step.sums, sums.tolist(), strict=True)), {})
    assert metrics["loss"] == pytest.approx(supervised["loss"], rel=1e-6)
    assert metrics["samples"] == pytest.approx(8 / (batch.mask.sum().item() if per_token else 8))
    assert (supervised["entropy_loss"], len(largest)) == (pytest.approx(1.0), 0)
    # the perplexity is over tokens, whatever the loss is
    mean = -(log_probs.detach()[batch.mask]).double().mean().item()
    assert supervised["ppl"] == pytest.approx(math.exp(mean))


@settings(max_examples=30, deadline=None)
@given(
    order=st.permutations(range(8)), cuts=st.sets(st.integers(1, 7)), ranks=st.integers(1, 3), per_token=st.booleans()
)
def test_micro_batches_and_ranks_do_not_matter(
    batch: TrainingBatch, order: list[int], cuts: set[int], ranks: int, per_token: bool
) -> None:
    config = config_of(calculate_per_token_loss=per_token)
    bounds = [0, *sorted(cuts), 8]
    parts = [order[a:b] for a, b in pairwise(bounds)]
    parts += [[]] * (-len(parts) % ranks)  # dummies
    wanted, wanted_gradient = run(config, batch, likelihood, WHOLE)
    metrics, gradient = run(config, batch, likelihood, parts, ranks=ranks)
    assert metrics == pytest.approx(wanted, rel=1e-5)
    torch.testing.assert_close(gradient, wanted_gradient, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("per_token", [False, True])
def test_a_clipped_loss_of_ones_own_is_the_built_in_one(batch: TrainingBatch, per_token: bool) -> None:
    def clipped(
        batch: dict[str, Any], logits: Tensor, sum_of_sample_mean: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        new, old, advantages = chosen(batch, logits), torch.cat(batch["log_probs"]), torch.cat(batch["advantages"])
        ratio = (new - old).exp()
        loss = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        return sum_of_sample_mean(loss), {"ppo_kl": sum_of_sample_mean(old - new)}

    config = config_of(calculate_per_token_loss=per_token)
    scores = Scores(old=logits_of(batch).log_softmax(-1)[:, 0] + 0.3)
    metrics, gradient = run(config, batch, clipped, [[0, 1, 2], [3, 4, 5, 6, 7]], scores)
    values = logits_of(batch).requires_grad_()
    step, micro = StepLoss(config, batch, scores, (0, len(batch)), True), batch.micro_batch(WHOLE[0], CPU)
    log_probs = values.log_softmax(-1).gather(1, micro.targets[:, None]).squeeze(1)
    loss, sums, _ = step(log_probs, torch.zeros_like(log_probs), micro)
    loss.backward()
    assert values.grad is not None
    torch.testing.assert_close(gradient, values.grad, rtol=1e-5, atol=1e-8)
    built_in = dict(zip(step.sums, sums.tolist(), strict=True))
    assert metrics == pytest.approx({"loss": loss.item(), "ppo_kl": built_in["ppo_kl"]}, rel=1e-5)


def seen(batch: TrainingBatch, config: RelaxConfig, part: list[int], scores: Scores | None = None) -> dict[str, Any]:
    """What the function gets as ``batch``."""
    found: list[dict[str, Any]] = []

    def look(batch: dict[str, Any], logits: Tensor, sum_of_sample_mean: Callable[[Tensor], Tensor]) -> Any:
        found.append(batch)
        return logits.sum() * 0, {}

    run(config, batch, look, [part], scores)
    return found[0]


def test_the_function_gets_each_sample_of_the_micro_batch(batch: TrainingBatch) -> None:
    reference = torch.arange(batch.num_response_tokens, dtype=torch.float32)
    inputs = seen(batch, config_of(), [5, 2], Scores(reference=reference))
    assert inputs["sample_ids"] == [batch.sample_ids[5], batch.sample_ids[2]]
    for place, sample in enumerate([5, 2]):
        own = slice(*batch.response_offsets[sample : sample + 2].tolist())
        length = own.stop - own.start
        assert inputs["tokens"][place].tolist() == batch.tokens[sample].tolist()
        assert inputs["total_lengths"][place] == len(batch.tokens[sample])
        assert inputs["response_lengths"][place] == length
        assert inputs["response_tokens"][place].tolist() == batch.tokens[sample][-length:].tolist()
        assert inputs["loss_masks"][place].tolist() == batch.mask[own].int().tolist()
        for name, column in (
            ("ref_log_probs", reference),
            ("rollout_log_probs", batch.rollout_log_probs),
            ("advantages", batch.advantages),
            ("returns", batch.returns),
        ):
            assert torch.equal(inputs[name][place], column[own])
        # without a pass the current policy is the old one
        own_log_probs = logits_of(batch)[own].log_softmax(-1).gather(1, inputs["response_tokens"][place][:, None])
        torch.testing.assert_close(inputs["log_probs"][place], own_log_probs.squeeze(1))
        assert not inputs["log_probs"][place].requires_grad
    assert not {"values", "teacher_log_probs"} & inputs.keys()


def test_without_advantages_there_are_no_columns_of_them(batch: TrainingBatch) -> None:
    inputs = seen(batch, config_of(disable_compute_advantages_and_returns=True), [0])
    assert not {"advantages", "returns", "log_probs"} & inputs.keys()


def test_stored_columns_are_there(tmp_path: Path) -> None:
    store = RunStore(str(tmp_path))

    def ones(lengths: Any) -> Any:
        return torch.ones(int(lengths.sum())).numpy()

    table = store.read_table(make_batch(store, "batch", vocab=VOCAB, values=ones, teacher_log_probs=ones))
    inputs = seen(TrainingBatch.from_table(table), config_of(), [1])
    assert inputs["values"][0].tolist() == inputs["teacher_log_probs"][0].tolist() == [1.0] * len(inputs["values"][0])


def test_micro_batches_without_a_response_token_never_call_the_function(batch: TrainingBatch) -> None:
    def fail(*arguments: Any) -> None:
        raise AssertionError

    logits = torch.zeros(0, VOCAB, requires_grad=True)
    step = StepCustomLoss(config_of(), batch, Scores(), (0, len(batch)), fail)
    loss, sums, largest = step(logits, batch.micro_batch([], CPU))
    loss.backward()  # the model is part of the graph: all ranks reduce the same gradients
    assert (loss.item(), sums.tolist(), largest.tolist()) == (0.0, [0.0], [])
    assert step.metrics({"loss": 0.0}, {}) == {"loss": 0.0}


def pair(loss: Any, metrics: Any) -> Any:
    return lambda batch, logits, mean: (loss(logits, mean), metrics)


def zero(logits: Tensor, mean: Any) -> Tensor:
    return logits.sum() * 0


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda batch, logits, mean: logits.sum(), "returned Tensor, not a pair"),
        (lambda batch, logits, mean: (logits.sum(), {}, {}), "returned tuple, not a pair"),
        (pair(lambda logits, mean: 1.0, {}), r"returned a loss 1\.0, which is no tensor"),
        (pair(lambda logits, mean: logits, {}), r"returned a loss of shape \(\d+, 32\)"),
        (pair(lambda logits, mean: logits.detach().sum(), {}), "returned a loss that has no gradient"),
        (
            pair(lambda logits, mean: logits.sum() * math.nan, {}),
            "returned the loss nan for the samples 000000-0000-000",
        ),
        (pair(zero, None), "returned metrics of type NoneType"),
        (pair(zero, {"a": "b"}), "returned the metric 'a' as 'b', which is no number"),
        (pair(zero, {"a": torch.ones(2)}), r"returned the metric 'a' as tensor of shape \(2,\), which is no number"),
        (pair(zero, {1: 1.0}), "returned a metric of the name 1, which is no text"),
        (pair(zero, {"lr": 1.0}), "returned a metric of the name 'lr', which is taken"),
        (pair(lambda logits, mean: mean(logits), {}), r"gave sum_of_sample_mean shape \(\d+, 32\) for \d+ response"),
        (pair(lambda logits, mean: mean(1.0), {}), r"gave sum_of_sample_mean float for \d+ response tokens"),
    ],
)
def test_an_answer_of_another_form_is_told(batch: TrainingBatch, function: Any, text: str) -> None:
    with pytest.raises(UserError, match=f"The function of --custom-loss-function-path {text}"):
        run(config_of(), batch, function, WHOLE)


@pytest.mark.parametrize("ranks", [1, 2])
def test_metrics_of_some_micro_batches_only_are_told(batch: TrainingBatch, ranks: int) -> None:
    def changing(inputs: dict[str, Any], logits: Tensor, mean: Any) -> Any:
        return logits.sum() * 0, {"always": 1, **({"once": 1} if batch.sample_ids[0] in inputs["sample_ids"] else {})}

    with pytest.raises(UserError, match="gave a metric for some micro-batches only: once"):
        run(config_of(), batch, changing, [[0, 1, 2, 3], [4, 5, 6, 7]], ranks=ranks)


def test_the_reported_loss_is_what_was_returned(batch: TrainingBatch) -> None:
    metrics, _ = run(config_of(), batch, lambda batch, logits, mean: (mean(logits[:, 0]), {"loss": 99.0}), WHOLE)
    assert metrics["loss"] != 99.0
    assert len(metrics) == 1


def test_a_fully_masked_step_gives_zeros(batch: TrainingBatch) -> None:
    masked = replace(batch, mask=torch.zeros_like(batch.mask))
    for per_token in (False, True):
        metrics, gradient = run(config_of(calculate_per_token_loss=per_token), masked, likelihood, [[0, 1], [2, 3]])
        assert metrics["loss"] == 0
        assert not gradient.any()


def test_the_options_choose_the_loss(batch: TrainingBatch, tmp_path: Path) -> None:
    def made(config: RelaxConfig, functions: LossFunctions = LossFunctions()) -> Any:  # noqa: B008
        return make_step_loss(config, batch, Scores(), functions, lambda value: [value])((0, len(batch)), True)

    assert isinstance(made(RelaxConfig()), StepLoss)
    assert isinstance(made(with_options(RelaxConfig(), {"loss_type": "sft"})), StepSupervisedLoss)
    file = tmp_path / "mine.py"
    file.write_text("def loss(args, batch, logits, mean):\n    return logits.sum() * args.factor, {}\n")
    config = config_of(custom_loss_function_path=f"{file}:loss", custom_args={"factor": 2})
    step, micro = made(config, loss_functions(config)), batch.micro_batch([3], CPU)
    loss, _, _ = step(torch.ones(len(micro.targets), VOCAB, requires_grad=True), micro)
    assert loss.item() == 2 * VOCAB * len(micro.targets) / len(batch)
    with pytest.raises(UserError, match="needs --custom-loss-function-path"):
        made(with_options(RelaxConfig(), {"loss_type": "custom_loss"}))
