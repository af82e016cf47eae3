"""What one rank shows of single options: see test_trainer_options.py. Not a test module itself."""

import os
import re
import threading
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trainers import PLAIN, follow, make_config, make_trainer, same, weights
from training_batches import batches, make_batch

from data.errors import UserError
from data.store import RunStore
from relax_core.training.checkpoint_index import complete_iterations


def passed_through(model: str, work: str) -> None:
    """What is only passed on reaches Megatron's configuration, over what Relax sets, in the form that it wants."""
    from relax_core.training.model import ModelShape, transformer_config
    from relax_core.training.optimizer import build_optimizer, optimizer_config

    shape = ModelShape.from_hf(model)
    given = {
        "batch_p2p_sync": False,
        "bias_dropout_fusion": True,  # Relax's own is False
        "autocast_dtype": "bf16",
        "decoupled_weight_decay": False,
        "hysteresis": 5,
        "bucket_size": 1234,
    }
    config = make_config(model, {**given, "overlap_grad_reduce": True})
    trainer = make_trainer(config)
    found = trainer.model.config
    assert (found.batch_p2p_sync, found.bias_dropout_fusion, found.autocast_dtype) == (False, True, torch.bfloat16)
    assert trainer.model.ddp_config.bucket_size == 1234
    assert trainer.model.ddp_config.overlap_grad_reduce
    part = trainer._parts.optimizer.chained_optimizers[0]
    assert (part.config.decoupled_weight_decay, part.config.hysteresis) == (False, 5)
    assert type(part.optimizer) is torch.optim.Adam
    assert not transformer_config(shape, make_config(model)).bias_dropout_fusion

    # what describes the model or is Relax's own is not passed on, and what Megatron refuses is told with its flag
    kept = transformer_config(shape, make_config(model, {"num_layers": 99, "hidden_dropout": 0.5}))
    assert (kept.num_layers, kept.hidden_dropout) == (shape.layers, 0.0)
    with pytest.raises(UserError, match=r"--cpu-offloading true.*offloading"):
        transformer_config(shape, make_config(model, {"cpu_offloading": True, "cpu_offloading_num_layers": 99}))

    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    half = {"fp16": True, "initial_loss_scale": 64.0, "min_loss_scale": 2.0}
    scaled = optimizer_config(make_config(model, half), cpu)
    assert (scaled.initial_loss_scale, scaled.min_loss_scale, scaled.params_dtype) == (64.0, 2.0, torch.float16)
    assert optimizer_config(make_config(model, {"fp16": True, "loss_scale": 8.0}), cpu).loss_scale == 8.0
    assert optimizer_config(make_config(model, {"loss_scale": 8.0}), cpu).loss_scale is None  # float16 alone scales
    assert not optimizer_config(make_config(model, {"store_param_remainders": False}), cpu).store_param_remainders
    moved = {"optimizer_cpu_offload": True, "overlap_cpu_optimizer_d2h_h2d": True}
    assert not optimizer_config(make_config(model, moved), cpu).optimizer_cpu_offload  # it is there anyway
    there = optimizer_config(make_config(model, moved), cuda)
    assert (there.optimizer_cpu_offload, there.optimizer_offload_fraction) == (True, 1.0)
    assert there.overlap_cpu_optimizer_d2h_h2d
    part_moved = optimizer_config(make_config(model, {**moved, "optimizer_offload_fraction": 0.5}), cuda)
    assert part_moved.optimizer_offload_fraction == 0.5
    with pytest.raises(UserError, match="--optimizer-cpu-offload needs --use-precision-aware-optimizer"):
        build_optimizer(make_config(model, moved), torch.nn.Linear(1, 1, device="meta"))
    precise = make_config(model, {**moved, "use_precision_aware_optimizer": True, "use_distributed_optimizer": True})
    if find_spec("transformer_engine") is None:
        with pytest.raises(UserError, match="needs TransformerEngine"):
            optimizer_config(precise, cuda)
        return
    assert optimizer_config(precise, cuda).use_precision_aware_optimizer


def schedules(model: str, work: str) -> None:
    """lr 1e-3, 4 rollout steps of 2 optimiser steps: by hand."""
    from relax_core.training.optimizer import current_rate

    def rates(count: int, **options: Any) -> list[tuple[float, float]]:
        plain = {"lr_warmup_iters": 0, "min_lr": 1e-4}
        parts = make_trainer(make_config(model, {**plain, **options}))._parts
        seen = []
        for _ in range(count):
            seen.append((current_rate(parts.optimizer), parts.optimizer.param_groups[0]["weight_decay"]))
            parts.schedule.step(1)
        return seen

    def lr(count: int, **options: Any) -> list[float]:
        return [rate for rate, _ in rates(count, **options)]

    root = lr(9, lr_decay_style="inverse-square-root", lr_warmup_iters=2)
    np.testing.assert_allclose(root, [0, 5e-4, 1e-3, *(1e-3 * (2 / n) ** 0.5 for n in range(3, 9))])
    steady = lr(9, lr_decay_style="WSD", lr_wsd_decay_iters=2, lr_wsd_decay_style="linear")
    np.testing.assert_allclose(steady, [1e-3] * 7 + [1e-4 + 9e-4 / 2, 1e-4])
    short = lr(6, lr_decay_style="linear", lr_decay_iters=4)
    np.testing.assert_allclose(short, [1e-4 + 9e-4 * (1 - n / 4) for n in range(5)] + [1e-4])
    warm = lr(4, lr_decay_style="constant", lr_warmup_fraction=0.25, lr_warmup_init=2e-4)
    np.testing.assert_allclose(warm, [2e-4, 6e-4, 1e-3, 1e-3])
    rising = rates(9, weight_decay_incr_style="linear", start_weight_decay=0.0, end_weight_decay=0.8)
    # the first group holds the matrices: it has the weight decay
    np.testing.assert_allclose([decay for _, decay in rising], np.arange(9) / 10)
    for wrong, text in (
        ({"lr_decay_style": "WSD"}, "--lr-wsd-decay-iters is what --lr-decay-style WSD needs"),
        ({"lr_warmup_iters": 2, "lr_warmup_fraction": 0.5}, "both say how long"),
        ({"lr_decay_iters": 3, "lr_warmup_iters": 3}, "--lr-warmup-iters 3 is not less than --lr-decay-iters 3"),
        ({"end_weight_decay": 0.5}, "need --weight-decay-incr-style"),
        ({"weight_decay_incr_style": "cosine", "end_weight_decay": 0.001}, "--end-weight-decay 0.001 is below"),
    ):
        with pytest.raises(UserError, match=text):
            rates(0, **wrong)


def reset(model: str, work: str) -> None:
    """An update with cleared moments is the first update of a new optimiser from the same weights."""
    store, refs = batches(work)
    options = {**PLAIN, "reset_optimizer_states": True}
    trainer = make_trainer(make_config(model, options))
    kept = make_trainer(make_config(model, PLAIN))
    for each in (trainer, kept):
        each.train(0, 1, refs[0], store.url)
    assert same(weights(trainer), weights(kept))
    trainer.export_hf(f"{work}/reset-once")
    for each in (trainer, kept):
        each.train(1, 2, refs[1], store.url)
    fresh = make_trainer(make_config(model, {**PLAIN, "load": f"{work}/reset-once"}))
    fresh.train(0, 1, refs[1], store.url)
    assert same(weights(fresh), weights(trainer))
    assert not same(weights(kept), weights(trainer))


def on_policy(model: str, work: str) -> None:
    """With itself as the old policy the ratio is 1 in every optimiser step, and there is no pass to compute another."""
    store, refs = batches(work)
    found = {}
    for mode in (False, True):
        options = {"true_on_policy_mode": mode, "lr_warmup_iters": 0}
        found[mode] = make_trainer(make_config(model, options)).train(0, 1, refs[0], store.url)
    assert found[False].metrics["ppo_kl"] != 0
    assert found[True].metrics["ppo_kl"] == found[True].metrics["pg_clipfrac"] == 0
    assert "old_log_probs" in found[False].seconds
    assert "old_log_probs" not in found[True].seconds
    # the engine's log-probs are still compared with those of the weights that generated
    name = "train_rollout_logprob_abs_diff"
    assert found[True].metrics[name] > 0


def recompute_loss(model: str, work: str) -> None:
    """Nothing of the logits is kept for the backward pass, and the numbers are the same."""
    from relax_core.training import readout

    store, refs = batches(work)
    kept: list[bool] = []
    original = readout.token_log_probs

    def watched(*arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        if result[0].grad_fn is not None:
            kept.append(result[0].grad_fn.kept is not None)
        return result

    readout.token_log_probs = watched
    try:
        found = []
        for again in (False, True):
            kept.clear()
            trainer = make_trainer(make_config(model, {"recompute_loss_function": again}))
            metrics = trainer.train(0, 1, refs[0], store.url).metrics
            assert kept
            assert all(value is not again for value in kept)
            found.append((metrics, weights(trainer)))
    finally:
        readout.token_log_probs = original
    (left, mine), (right, theirs) = found
    assert left == pytest.approx(right, rel=1e-6)
    assert all(torch.allclose(value, theirs[name], atol=1e-6) for name, value in mine.items())


def starts(model: str, work: str) -> None:
    """Without --load the actor starts where --ref-load says: a folder, a checkpoint, or a certain one."""
    store, refs = batches(work)
    first = make_trainer(make_config(model, PLAIN))
    states = [weights(first)]
    for step in range(2):
        first.train(step, step + 1, refs[step], store.url, f"w{step + 1}")
        first.save(f"{work}/started", step)
        states.append(weights(first))
    first.export_hf(f"{work}/started-hf")

    def begins(**options: Any) -> dict[str, torch.Tensor]:
        trainer = make_trainer(make_config(model, {**PLAIN, **options}))
        assert trainer.status()["version"] == 0
        return weights(trainer)

    assert same(begins(), states[0])
    assert same(begins(ref_load=f"{work}/started-hf"), states[2])
    assert same(begins(ref_load=f"{work}/started"), states[2])
    assert same(begins(ref_load=f"{work}/started", ref_ckpt_step=0), states[1])
    assert same(begins(ref_load=f"{work}/started", load=model), states[0])
    assert same(begins(ref_load=model, load=f"{work}/started/iter_0000000"), states[1])
    with pytest.raises(UserError, match=r"no complete checkpoint of step 7.*missing"):
        begins(ref_load=f"{work}/started", ref_ckpt_step=7)
    Path(work, "empty").mkdir()
    with pytest.raises(UserError, match=r"--ref-load .*empty holds neither a model"):
        begins(ref_load=f"{work}/empty")

    # the reference is what --ref-load says: the KL to other weights than the actor's own is not 0
    kl = {"use_kl_loss": True, "kl_loss_coef": 0.1, "load": model}
    for place, differs in ((model, False), (f"{work}/started-hf", True), (f"{work}/started", True)):
        trainer = make_trainer(make_config(model, {**PLAIN, **kl, "ref_load": place}))
        assert (trainer.train(0, 1, refs[0], store.url).metrics["kl_loss"] != 0) is differs


def reference_follows(model: str, work: str) -> None:
    """The reference takes the actor's weights after every second step, and checkpoints keep it."""
    store, refs = batches(work)
    options = {**PLAIN, "use_kl_loss": True, "kl_loss_coef": 0.1, "ref_update_interval": 2}
    trainer = make_trainer(make_config(model, options))
    kl = []
    for step in range(4):
        kl.append(trainer.train(step, step + 1, refs[step], store.url, f"w{step + 1}").metrics["kl_loss"])
        trainer.save(f"{work}/follows", step)
    assert [value != 0 for value in kl] == [False, True, False, True]  # with equal weights the KL is 0

    # back to a step before the reference changed, and to one after it: the same numbers again
    for begin in (1, 3):
        trainer.load(f"{work}/follows", begin - 1)
        again = [trainer.train(i, i + 1, refs[i], store.url, f"w{i + 1}").metrics["kl_loss"] for i in range(begin, 4)]
        assert again == kl[begin:]
    plain = make_trainer(make_config(model, {**options, "ref_update_interval": None}))
    plain.load(f"{work}/follows", 0)  # what a checkpoint has beside is no hindrance
    plain.train(1, 2, refs[1], store.url, "w2")
    plain.save(f"{work}/fixed", 1)
    with pytest.raises(UserError, match="without --ref-update-interval"):
        trainer.load(f"{work}/fixed", 1)
    assert trainer.status()["version"] == 4
    assert not trainer.status()["dirty"]


def frozen(model: str, work: str) -> None:
    """What is frozen keeps its weights; the rest learns as it does beside what is not frozen."""
    store, refs = batches(work)
    options = {**PLAIN, "clip_grad": 0.0}
    whole = make_trainer(make_config(model, options))
    first = weights(whole)
    norm = whole.train(0, 1, refs[0], store.url).metrics["grad_norm"]
    learned = weights(whole)
    again = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    choices: list[tuple[dict[str, Any], Callable[[str], bool]]] = [
        ({"only_train_params_name_list": [r"layers\.1\..*linear_fc"]}, lambda n: "layers.1." in n and "linear_fc" in n),
        ({"freeze_params_name_list": ["embedding", "norm"]}, lambda n: "embedding" not in n and "norm" not in n),
        (
            {"only_train_params_name_list": ["output_layer"]},
            lambda n: "embedding" in n,
        ),  # one weight: the model is tied
        ({"freeze_params_name_list": ["embedding"], **again}, lambda n: "embedding" not in n),
    ]
    for choice, trained in choices:
        trainer = make_trainer(make_config(model, {**options, **choice}))
        found = trainer.train(0, 1, refs[0], store.url, "w1").metrics["grad_norm"]
        assert 0 < found < norm
        for name, value in weights(trainer).items():
            if trained(name):
                torch.testing.assert_close(value, learned[name], atol=1e-6, rtol=0)
                assert not torch.equal(value, first[name])
            else:
                assert torch.equal(value, first[name])
        trainer.save(f"{work}/frozen", 0)
        results = []
        for _ in range(2):
            results.append((trainer.train(1, 2, refs[1], store.url, "w2").metrics, weights(trainer)))
            trainer.load(f"{work}/frozen", 0)
        assert results[0][0] == results[1][0]
        assert same(results[0][1], results[1][1])
        start = make_trainer(make_config(model, {**options, "load": f"{work}/frozen"}))  # another one can start from it
        assert same(weights(start), weights(trainer))
    wrong: list[tuple[dict[str, Any], str]] = [
        (
            {"freeze_params_name_list": ["linear_fc3"]},
            "--freeze-params-name-list linear_fc3: is found in no.*linear_fc",
        ),
        ({"only_train_params_name_list": ["experts"]}, "experts: is found in no parameter's name.*Names are made of"),
        ({"only_train_params_name_list": ["(x"]}, "is no regular expression"),
        ({"freeze_params_name_list": ["."]}, "leaves nothing to train"),
        ({"freeze_params_name_list": [r"layers\.2\."]}, "is found in no"),
    ]
    for choice, text in wrong:
        with pytest.raises(UserError) as caught:
            make_trainer(make_config(model, choice))
        assert re.search(text, f"{caught.value.problem} {caught.value.fix}"), str(caught.value)


def float16(model: str, work: str) -> None:
    """An overflow lowers the loss scale and costs that optimiser step; both go into checkpoints."""
    from relax_core.training.errors import NonFiniteUpdate

    store, refs = batches(work)
    half = {**PLAIN, "fp16": True, "num_steps_per_rollout": 2}

    def train(trainer: Any, *steps: int) -> list[Any]:
        return [trainer.train(i, i + 1, refs[i], store.url, f"w{i + 1}") for i in steps]

    # 2^18 is too large for the gradients of these batches, 2^10 is not (but for the last of them)
    for sharded in (False, True):
        options = {**half, "initial_loss_scale": 2.0**18, "hysteresis": 1, "use_distributed_optimizer": sharded}
        trainer = make_trainer(make_config(model, options))
        before = weights(trainer)
        assert {value.dtype for value in before.values()} == {torch.float16}
        (first,) = train(trainer, 0)
        assert (first.metrics["skipped_steps"], first.metrics["loss_scale"]) == (2, 2.0**16)
        assert (first.optimizer_step, first.metrics["grad_norm"]) == (0, 0)
        assert same(weights(trainer), before)
        train(trainer, 1)
        trainer.save(f"{work}/half-{sharded}", 1)
        later = train(trainer, 2, 3)
        assert 0 < later[-1].optimizer_step < 8
        resumed = make_trainer(make_config(model, options))
        resumed.load(f"{work}/half-{sharded}", 1)
        again = train(resumed, 2, 3)
        assert [result.metrics for result in again] == [result.metrics for result in later]
        assert same(weights(trainer), weights(resumed))

    static = {**half, "loss_scale": 2.0**10}
    trainer = make_trainer(make_config(model, static))
    found = train(trainer, 0, 1, 2)
    assert found[-1].optimizer_step == 6
    assert trainer._parts.optimizer.get_loss_scale() == 2.0**10
    wide = train(make_trainer(make_config(model, {**half, "fp16": False})), 0, 1, 2)
    for narrow, exact in zip(found, wide, strict=True):
        for name in ("loss", "grad_norm"):
            assert narrow.metrics[name] == pytest.approx(exact.metrics[name], abs=1e-3, rel=1e-2)
    with pytest.raises(NonFiniteUpdate):  # a fixed scale cannot be lowered
        train(trainer, 3)
    lowest = make_trainer(make_config(model, {**half, "initial_loss_scale": 2.0**18, "min_loss_scale": 2.0**18}))
    with pytest.raises(NonFiniteUpdate):
        train(lowest, 0)
    assert not lowest.status()["dirty"]


def background(model: str, work: str) -> None:
    """A checkpoint that is written while training goes on holds what was there when it was asked for."""
    from relax_core.training import checkpoint_writer

    store, refs = batches(work)
    url = f"{work}/background"
    trainer = make_trainer(make_config(model, {"async_save": True}))
    direct = make_trainer(make_config(model))
    original, gate = checkpoint_writer._write, threading.Event()

    def slow(*arguments: Any) -> Any:
        gate.wait(60)
        return original(*arguments)

    def train(each: Any, *steps: int) -> None:
        for step in steps:
            each.train(step, step + 1, refs[step], store.url, f"w{step + 1}")

    checkpoint_writer._write = slow
    try:
        train(trainer, 0)
        assert "bytes" not in trainer.save(url, 0)
        train(trainer, 1)  # meanwhile
        assert complete_iterations(url) == []
        assert trainer.status()["checkpoint"] is None
        gate.set()
        trainer._parts.checkpointer._unfinished.write._writing.result()
        train(trainer, 2)  # finds it written
        assert complete_iterations(url) == [(0, "w1")]
        assert trainer.status()["checkpoint"] == f"{url}/iter_0000000"
        gate.clear()
        assert "bytes" not in trainer.save(url, 2)
        gate.set()
        assert trainer.finish_save()["bytes"] > 0
        assert complete_iterations(url) == [(2, "w3"), (0, "w1")]
        assert trainer.finish_save() == {}
        assert trainer.save(url, 2)["bytes"] > 0  # it is there

        # the next one waits for the one before it, and a load for both
        train(trainer, 3)
        trainer.save(url, 3)
        trainer.load(url, 0)
        assert complete_iterations(url)[0] == (3, "w4")

        # what goes wrong is told by the next call, and the checkpoint can be written again
        checkpoint_writer._write = lambda *arguments: OSError("no space")
        trainer.save(f"{url}-full", 0)
        with pytest.raises(UserError, match=r"could not be written: .*no space"):
            trainer.finish_save()
        assert complete_iterations(f"{url}-full") == []
    finally:
        checkpoint_writer._write = original
    trainer.save(f"{url}-full", 0)
    trainer.finish_save()
    assert complete_iterations(f"{url}-full") == [(0, "w1")]

    # the checkpoint of step 0 is that of a trainer that waits
    train(direct, 0, 1, 2, 3)
    train(trainer, 1, 2, 3)
    assert same(weights(trainer), weights(direct))


def ways(model: str, work: str) -> None:
    """Engines with GPUs of their own get weights through a group, which is kept; others through memory."""
    from relax_core.training.push import _way

    def way(cuda: bool, **options: Any) -> Any:
        return _way(make_config(model, options), cuda)

    assert way(False) == way(False, colocate=True, checkpoint_engine_backend="gloo") == {"elsewhere": False}
    assert way(False, checkpoint_engine_backend="gloo")["link"].backend == "gloo"
    assert way(True)["link"].backend == "nccl"
    assert way(True)["link"] is way(True)["link"] is not way(True, checkpoint_engine_backend="gloo")["link"]
    assert way(True, colocate=True) == {"elsewhere": False}
    shared = {"actor": (1, 2), "rollout": (2, 1)}
    assert way(True, colocate=True, resource=shared) == {"elsewhere": True}


CHECKS = (
    passed_through,
    schedules,
    reset,
    on_policy,
    recompute_loss,
    starts,
    reference_follows,
    frozen,
    float16,
    background,
    ways,
)


def one_process(model: str, work: str) -> dict[str, str]:
    """The error of every check, by its name; empty when it holds."""
    found = {}
    for check in CHECKS:
        try:
            check(model, work)
            found[check.__name__] = ""
        except Exception:
            found[check.__name__] = traceback.format_exc()
    return found


def overlapped(model: str, work: str) -> None:
    """Two ranks: exchanging gradients and weights while passes go on changes nothing, also where a rank has nothing to
    do, or none has."""
    store, refs = batches(work)

    def first_half_zero(lengths: Any) -> Any:  # of two optimiser steps: nothing to learn in the first, then uneven
        rows = np.ones(lengths.sum(), np.float32)
        rows[: lengths[:5].sum()] = 0
        return rows

    uneven = make_batch(RunStore(f"{work}/rank-{os.environ['RANK']}"), "uneven", advantages=first_half_zero)
    options = {**PLAIN, "num_steps_per_rollout": 2, "micro_batch_size": 1, "lr": 1e-2}
    kinds = {
        "off": {},
        "whole": {"overlap_grad_reduce": True},
        "sharded": {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True},
    }
    found = {}
    for name, kind in kinds.items():
        buckets = {"bucket_size": 20000} if kind else {}
        trainer = make_trainer(make_config(model, {**options, **kind, **buckets}))
        assert not kind or len(trainer.model.bucket_groups) > 3
        metrics = []
        for step, batch in enumerate((refs[0], uneven, uneven, refs[1])):
            url = f"{work}/rank-{os.environ['RANK']}" if batch is uneven else store.url
            metrics.append(trainer.train(step, step + 1, batch, url, f"w{step + 1}").metrics)
        after = weights(trainer)  # before any further pass
        scores = trainer.log_probs(refs[2], store.url).values
        trainer.save(f"{work}/overlap-{name}", 3)
        trainer.train(4, 5, refs[3], store.url, "w5")
        later = weights(trainer)
        trainer.load(f"{work}/overlap-{name}", 3)
        assert same(weights(trainer), after)
        trainer.train(4, 5, refs[3], store.url, "w5")
        assert same(weights(trainer), later)
        found[name] = metrics, after, scores
    for name in ("whole", "sharded"):
        for left, right in zip(found[name][0], found["off"][0], strict=True):
            assert left == pytest.approx(right, rel=1e-5, abs=1e-6)
        for key, value in found[name][1].items():
            torch.testing.assert_close(value, found["off"][1][key], atol=2e-4, rtol=0)  # of steps of 1e-2
        np.testing.assert_allclose(found[name][2], found["off"][2], atol=1e-4)


def kinds_alone(model: str, work: str, kinds: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What one process does under each of the options: its metrics, a checkpoint of each optimiser, its weights."""
    found = {}
    for name, options in kinds.items():
        for optimizer in ("sharded", "whole"):
            both = {**options, "use_distributed_optimizer": optimizer == "sharded"}
            result = follow(model, work, name, both, save=(f"{work}/{name}-{optimizer}", 1))
        found[name] = result["metrics"]
    return found
