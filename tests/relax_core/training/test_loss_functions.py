"""Functions of the user in the loss: how they are called, and what is told about them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from data.errors import UserError
from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig
from relax_core.training.hooks import check_loss_functions, loss_functions, loss_sources

GOOD = """
def correct(args, *, pg_loss, train_log_probs, rollout_log_probs, loss_masks, total_lengths, response_lengths):
    return pg_loss * args.factor, loss_masks, {}

def reducer(total_lengths, response_lengths, loss_masks, per_token, args=None):
    return lambda losses: losses.sum() * args.factor / total_lengths[0]

def loss(args, batch, logits, sum_of_sample_mean):
    return logits.sum() * args.factor, {}

def unfit(args, pg_loss):
    return pg_loss

async def later(total_lengths, response_lengths, loss_masks, per_token):
    pass

def broken(*arguments, **named):
    raise RuntimeError("no idea")

def broken_reducer(*arguments):
    return broken
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(GOOD)
    return path


def given(**options: Any) -> RelaxConfig:
    return with_options(RelaxConfig(), options)


def correction(file: Path, name: str = "correct", **options: Any) -> RelaxConfig:
    return given(use_tis=True, custom_tis_function_path=f"{file}:{name}", **options)


def reducer(file: Path, name: str = "reducer", **options: Any) -> RelaxConfig:
    return given(custom_pg_loss_reducer_function_path=f"{file}:{name}", **options)


def loss(file: Path, name: str = "loss", **options: Any) -> RelaxConfig:
    return given(loss_type="custom_loss", custom_loss_function_path=f"{file}:{name}", **options)


TWO = torch.tensor([1.0, 2.0])
MASK = torch.tensor([True, True])


def test_without_functions_there_are_none() -> None:
    functions = loss_functions(RelaxConfig())
    assert (functions.correction, functions.reducer, functions.loss) == (None, None, None)
    assert loss_sources(RelaxConfig()) == {}


def test_functions_get_the_options_and_the_custom_arguments(file: Path) -> None:
    factor = {"custom_args": {"factor": 3}}
    correct = loss_functions(correction(file, **factor)).correction
    assert correct is not None
    assert correct(TWO, TWO, TWO, MASK, [5], [2]).loss.tolist() == [3, 6]
    factory = loss_functions(reducer(file, **factor)).reducer
    assert factory is not None
    assert factory([9], [2], [MASK], False)(TWO).item() == 1
    own = loss_functions(loss(file, **factor)).loss
    assert own is not None
    assert own({}, TWO, torch.sum)[0].item() == 9


@pytest.mark.parametrize(
    ("make", "name", "text"),
    [
        (correction, "unfit", "cannot be called with one argument and pg_loss, train_log_probs"),
        (correction, "gone", "has no 'gone'"),
        (reducer, "unfit", "cannot be called with 4 arguments"),
        (reducer, "later", "is a coroutine function"),
        (loss, "unfit", r"cannot be called with 4 arguments.*loss\(args, batch, logits, sum_of_sample_mean\)"),
        (loss, "later", "is a coroutine function"),
    ],
)
def test_what_cannot_be_called_is_told_before_anything_starts(file: Path, make: Any, name: str, text: str) -> None:
    with pytest.raises(UserError, match=text):
        check_loss_functions(make(file, name))


def test_a_failure_names_the_option(file: Path) -> None:
    correct = loss_functions(correction(file, "broken")).correction
    assert correct is not None
    with pytest.raises(UserError, match=r"--custom-tis-function-path .*failed in the loss: RuntimeError: no idea"):
        correct(TWO, TWO, TWO, MASK, [5], [2])
    for name in ("broken", "broken_reducer"):
        factory = loss_functions(reducer(file, name)).reducer
        assert factory is not None
        with pytest.raises(UserError, match=r"--custom-pg-loss-reducer-function-path .*RuntimeError: no idea"):
            factory([9], [2], [MASK], False)(TWO)
    own = loss_functions(loss(file, "broken")).loss
    assert own is not None
    with pytest.raises(UserError, match=r"--custom-loss-function-path .*failed in the loss: RuntimeError: no idea"):
        own({}, TWO, torch.sum)


def test_another_source_is_another_identity(file: Path) -> None:
    before = loss_sources(correction(file))
    assert before.keys() == {"--custom-tis-function-path"}
    assert loss_sources(loss(file)).keys() == {"--custom-loss-function-path"}
    file.write_text(GOOD + "\n# another one\n")
    assert loss_sources(correction(file)) != before
