"""What the ranks of the tests of slices run: see test_trainer_slices.py. Not a test module itself."""

import os
import traceback
from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
import torch
from trainers import PLAIN, make_config, make_trainer, same, weights
from training_batches import make_batch

from data.errors import UserError
from data.store import RunStore, TableRef
from relax_core.training.errors import SliceRefused, VersionMismatch

ONE_STEP = {**PLAIN, "global_batch_size": 8}
TWO_STEPS = {"global_batch_size": 4}
SUM = f"{__file__}:sum_of_means"

KINDS: dict[str, dict[str, Any]] = {
    "plain": ONE_STEP,
    "everything": TWO_STEPS,  # KL, entropy, a pass for the old policy before the first of two steps
    "per_token": {**TWO_STEPS, "calculate_per_token_loss": True, "get_mismatch_metrics": False, "use_tis": True},
    "packed": {**TWO_STEPS, "use_dynamic_batch_size": True, "max_tokens_per_gpu": 40},
    "sharded": {**ONE_STEP, "use_distributed_optimizer": True, "use_kl_loss": True, "kl_loss_coef": 0.1},
    "overlapped": {**ONE_STEP, "overlap_grad_reduce": True, "bucket_size": 20000},
    "sequences": {**ONE_STEP, "advantage_estimator": "gspo", "use_opsm": True},
    "reducer": {**ONE_STEP, "custom_pg_loss_reducer_function_path": SUM, "calculate_per_token_loss": True},
    "half": {
        **ONE_STEP,
        "fp16": True,
        "use_precision_aware_optimizer": False,
        "calculate_per_token_loss": True,
        "initial_loss_scale": 256.0,
    },
}


def sum_of_means(total: Any, lengths: Sequence[int], masks: Any, per_token: bool) -> Any:
    """A reducer of a user: half of the sum over samples of their means."""
    return lambda losses: 0.5 * sum(part.mean() for part in losses.split(list(lengths)))


def numbers_of(options: dict[str, Any]) -> list[int | None]:
    """Of four groups of two in the order of the file: the second and third finished first."""
    groups = [1, 0, 0, 1] if options["global_batch_size"] == 8 else [None, 0, 1, None]
    return [number for number in groups for _ in range(2)]


def stored(work: str, name: str, numbers: list[int | None], seed: int = 0) -> tuple[RunStore, TableRef, list[pa.Table]]:
    """A batch with these slices, and what each slice's rows are when they are handed on: in chunks, as it happens."""
    store = RunStore(f"{work}/rank-{os.environ['RANK']}")
    table = store.read_table(make_batch(store, name, seed=seed))
    place = table.schema.get_field_index("slice")
    table = table.set_column(place, table.schema.field(place), pa.array(numbers, pa.int32()))
    ref = store.write_table(f"{name}.parquet", table)
    count = max((number for number in numbers if number is not None), default=-1) + 1
    slices = []
    for number in range(count):
        rows = [i for i, found in enumerate(numbers) if found == number]
        slices.append(pa.concat_tables([table.slice(i, 1).drop_columns(["slice"]) for i in rows] or [table[:0]]))
    return store, ref, slices


def gradients(trainer: Any) -> torch.Tensor:
    return torch.cat([p.main_grad.flatten().float() for p in trainer.model.parameters()])


def trained(
    trainer: Any, store: RunStore, ref: TableRef, slices: Sequence[pa.Table], after: TableRef, between: Any = None
) -> tuple[Any, ...]:
    """One update with these slices ahead of it, and one without any: what was done, and the weights of both."""
    for number, rows in enumerate(slices):
        assert trainer.accumulate(0, rows, number)["accumulated"] == number + 1
        if between is not None:
            between(trainer)
    result = trainer.train(0, 1, ref, store.url, "w1")
    gradient = gradients(trainer)
    first = weights(trainer)
    trainer.train(1, 2, after, store.url, "w2")
    return result, gradient, first, weights(trainer)


def equal(left: tuple[Any, ...], right: tuple[Any, ...]) -> None:
    assert left[0].metrics == right[0].metrics
    assert torch.equal(left[1], right[1])
    assert same(left[2], right[2])
    assert same(left[3], right[3])


def ahead(model: str, work: str, name: str) -> dict[str, Any]:
    """Slices ahead of the batch, some, none and others give the same bits; no slices the same within rounding."""
    options = KINDS[name]
    store, ref, slices = stored(work, f"{name}-sliced", numbers_of(options))
    _, whole, _ = stored(work, f"{name}-whole", [None] * 8)
    _, after, _ = stored(work, f"{name}-after", [None] * 8, 1)
    _, _, others = stored(work, f"{name}-others", numbers_of(options), 2)

    def run(ref: TableRef, ahead: Sequence[pa.Table]) -> tuple[Any, ...]:
        return trained(make_trainer(make_config(model, options)), store, ref, ahead, after)

    found = run(ref, [])
    assert found[0].streamed == 0
    for slices_ahead, count in ((slices, 2), (slices[:1], 1), (others, 0), ([slices[0], others[1]], 0)):
        again = run(ref, slices_ahead)
        assert again[0].streamed == count
        equal(again, found)
    plain = run(whole, [])
    # Per token the passes are those of a loss that is scaled otherwise, so that all of their roundings differ.
    tolerance = 3e-3 if options.get("fp16") else 5e-6 if options.get("calculate_per_token_loss") else 1e-6
    if options["global_batch_size"] == 8:  # the gradient of the step that had slices
        distance = float((found[1] - plain[1]).abs().max() / plain[1].abs().max())
        assert distance <= tolerance, distance
        numbers = [0] * 8
    else:
        numbers = [0 if i < 4 else None for i in range(8)]
    assert found[0].metrics.keys() == plain[0].metrics.keys()
    if options["global_batch_size"] == 8:
        for key, value in plain[0].metrics.items():
            assert found[0].metrics[key] == pytest.approx(value, rel=tolerance, abs=1e-6), key
    _, single, only = stored(work, f"{name}-single", numbers)
    for one in (run(single, []), run(single, only)):
        if "max_tokens_per_gpu" in options:  # the pass for the old policy packs the slice and the rest apart
            assert one[0].metrics == pytest.approx(plain[0].metrics, rel=1e-5, abs=1e-6)
        else:
            equal(one, plain)
    return {"metrics": found[0].metrics}


def what_lies_between(model: str, work: str) -> None:
    """Whatever else uses the model between two slices neither sees their gradients nor harms them."""
    options = KINDS["everything"]
    store, ref, slices = stored(work, "between", numbers_of(options))
    _, after, _ = stored(work, "between-after", [None] * 8, 1)

    def between(trainer: Any) -> None:
        there = trainer.accumulate(0, slices[0], 0)["accumulated"]
        for call, error in (
            (lambda: trainer.accumulate(0, slices[1], 5), SliceRefused),
            (lambda: trainer.accumulate(0, pa.concat_tables([slices[1]] * 3), there), UserError),
            (lambda: trainer.accumulate(1, slices[1], there), VersionMismatch),
            (lambda: trainer.train(3, 4, ref, store.url, "w4"), VersionMismatch),
        ):
            with pytest.raises(error):
                call()
        trainer.log_probs(after, store.url)
        trainer.forward(0, ref, store.url, ["old_log_probs", "ref_log_probs"])
        trainer.push_weights(0, [])
        trainer.export_hf(f"{work}/between-export")
        trainer.finish_save()
        assert trainer.accumulate(0, slices[0], 0)["accumulated"] == there
        assert trainer.status()["version"] == 0

    def saves(trainer: Any) -> None:
        trainer.save(f"{work}/between", 0)
        trainer.save(f"{work}/between", 0)

    fresh = make_config(model, options)
    found = trained(make_trainer(fresh), store, ref, [], after)
    again = trained(make_trainer(fresh), store, ref, slices, after, between)
    assert again[0].streamed == 2
    equal(again, found)

    # Checkpoints belong to a version that an update made: the next one's slices lie in the buffers.
    results = []
    for ahead in ([], slices):
        trainer = make_trainer(fresh)
        trainer.train(0, 1, after, store.url, "w1")
        for number, rows in enumerate(ahead):
            trainer.accumulate(1, rows, number, "w1")
            with pytest.raises(VersionMismatch):
                trainer.accumulate(1, rows, number, "another")
            saves(trainer)
        assert trainer.train(0, 1, after, store.url, "w1").already_done
        done = trainer.train(1, 2, ref, store.url, "w2")
        assert done.streamed == len(ahead)
        results.append((done, gradients(trainer), weights(trainer), weights(trainer)))
    equal(*results)


def what_drops_them(model: str, work: str) -> None:
    """After a load, a start, an offload, an update or a failure the gradients are gone, and the trainer is sound."""
    options = KINDS["plain"]
    store, ref, slices = stored(work, "dropped", numbers_of(options))
    _, after, _ = stored(work, "dropped-after", [None] * 8, 1)
    config = make_config(model, options)
    trainer = make_trainer(config)
    before = weights(trainer)
    broken = slices[1].set_column(0, "sample_id", pa.nulls(len(slices[1]), pa.string()))

    def fails() -> None:
        passes = trainer._parts.passes
        whole, passes.part = passes.part, lambda *arguments: 1 / 0
        with pytest.raises(ZeroDivisionError):
            trainer.accumulate(0, slices[1], 1)
        passes.part = whole

    first = trained(make_trainer(config), store, ref, [], after)
    for drop in (trainer.initialise, trainer.offload, fails):
        assert trainer.accumulate(0, slices[0], 0)["accumulated"] == 1
        drop()
        with pytest.raises(SliceRefused, match="number 0 comes next"):
            trainer.accumulate(0, slices[1], 1)
        assert not trainer.status()["dirty"]
        assert same(weights(trainer), before)
    with pytest.raises(UserError):
        trainer.accumulate(0, broken.slice(0, 0), 0)
    trainer.accumulate(0, slices[1], 0)  # of no use
    trainer.accumulate(0, slices[0], 0)  # begins anew
    done = trainer.train(0, 1, ref, store.url, "w1")
    assert done.streamed == 1
    equal((done, gradients(trainer), weights(trainer), before), (*first[:3], before))

    trainer.save(f"{work}/dropped", 0)
    trainer.accumulate(1, slices[0], 0, "w1")
    trainer.load(f"{work}/dropped", 0)
    assert trainer.train(1, 2, after, store.url, "w2").streamed == 0
    assert same(weights(trainer), first[3])

    # Batches that are not what they say.
    _, gap, _ = stored(work, "gap", [0, 0, 2, 2, 0, 0, 2, 2])
    _, short, _ = stored(work, "short", [0, 0, 1, 1, None, None, None, None])
    for wrong in (gap, short):
        with pytest.raises(UserError, match="slices"):
            trainer.train(2, 3, wrong, store.url, "w3")
    assert not trainer.status()["dirty"]


def whole_batches(model: str, work: str) -> None:
    """Where the options need whole batches no slice is taken, and numbers in a stored batch change nothing."""
    options = {**ONE_STEP, "loss_type": "custom_loss", "custom_loss_function_path": f"{__file__}:likelihood"}
    store, ref, slices = stored(work, "unsliced", numbers_of(options))
    _, whole, _ = stored(work, "unsliced-whole", [None] * 8)
    trainer, other = (make_trainer(make_config(model, options)) for _ in range(2))
    with pytest.raises(SliceRefused, match="custom-loss-function-path"):
        trainer.accumulate(0, slices[0], 0)
    assert trainer.train(0, 1, ref, store.url).metrics == other.train(0, 1, whole, store.url).metrics
    assert same(weights(trainer), weights(other))


def likelihood(args: Any, batch: Any, logits: torch.Tensor, reduce: Any) -> Any:
    """A loss of a user."""
    return reduce(logits.logsumexp(1)), {}


def every_kind(model: str, work: str) -> dict[str, str]:
    """The errors of ``ahead`` for every kind, and of the other checks."""
    others = {check.__name__: check for check in (what_lies_between, what_drops_them, whole_batches)}
    kinds = {name: partial(ahead, name=name) for name in KINDS}
    return errors({name: partial(check, model=model, work=work) for name, check in {**kinds, **others}.items()})


LAYOUTS: dict[str, dict[str, Any]] = {
    "dp2": {"micro_batch_size": 1},
    "dp2-sharded": {
        "use_distributed_optimizer": True,
        "overlap_grad_reduce": True,
        "overlap_param_gather": True,
        "bucket_size": 20000,
        "balance_data": True,
    },
    "tp2-sp": {"tensor_model_parallel_size": 2, "sequence_parallel": True},
    "pp2": {"pipeline_model_parallel_size": 2},
}


def layout(model: str, work: str, name: str) -> dict[str, Any]:
    """The metrics of updates with slices: ahead and stored give the same."""
    options = {**KINDS["everything"], "calculate_per_token_loss": True, **LAYOUTS.get(name, {})}
    numbers = numbers_of(options)
    store, ref, slices = stored(work, f"{name}-sliced", numbers)
    _, after, _ = stored(work, f"{name}-after", [None] * 8, 1)
    _, none, _ = stored(work, f"{name}-later", numbers, 2)
    found = []
    for given in ([], slices, slices[:1]):
        trainer = make_trainer(make_config(model, options))
        run = trained(trainer, store, ref, given, after)
        assert run[0].streamed == len(given)
        later = trainer.train(2, 3, none, store.url, "w3")
        found.append((run, later.metrics, weights(trainer)))
    for run, metrics, last in found[1:]:
        assert metrics == found[0][1]
        assert same(last, found[0][2])
        assert run[0].metrics == found[0][0][0].metrics
    trainer.export_hf(f"{work}/{name}")
    return {"metrics": [found[0][0][0].metrics, found[0][1]]}


def errors(checks: dict[str, Any]) -> dict[str, str]:
    found = {}
    for name, check in checks.items():
        try:
            check()
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
    return found
