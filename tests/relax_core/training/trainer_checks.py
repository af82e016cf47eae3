"""What the ranks of the trainer's tests run: see test_trainer.py. Not a test module itself."""

from typing import Any

import numpy as np
import pytest
import torch
from trainers import follow, furthest, make_config, make_trainer, plain_update, same, weights
from training_batches import batches, make_batch

from data.errors import UserError
from data.store import RunStore
from relax_core.training import device_step


def one_process(model: str, work: str) -> dict[str, Any]:
    """Everything that one process can show; the fresh-process half of resuming is ``follow`` with ``load``."""
    result = follow(model, work, "plain", {}, save=(f"{work}/checkpoints", 1))
    for kind in ({}, {"use_distributed_optimizer": True}):
        name = "sharded" if kind else "whole"
        result[name] = follow(model, work, name, kind, save=(f"{work}/checkpoints-{name}", 1))["metrics"]
    result["packed"] = follow(model, work, "packed", {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 40})[
        "metrics"
    ]
    result["single"] = follow(model, work, "single", {"micro_batch_size": 1})["metrics"]
    result["reference"] = against_transformers(model, work)
    compare_and_swap(model, work)
    remote_checkpoint(model)
    degenerate_batches(model, work)
    schedules(model)
    not_finite(model, work)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_step, "waits_for", lambda device: True)
        result["decided by the device"] = against_transformers(model, work)
        not_finite(model, work)
    return result


def against_transformers(model: str, work: str) -> dict[str, Any]:
    """One optimiser step, by the trainer and by transformers in float64 with plain loops."""
    import pyarrow.parquet as pq
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {
        "num_steps_per_rollout": 1,
        "use_rollout_logprobs": True,
        "eps_clip_c": 3.0,
        "lr_warmup_iters": 0,
        "clip_grad": 0.5,
    }
    store, refs = batches(work)
    config = make_config(model, options)
    trainer = make_trainer(config)
    metrics = trainer.train(0, 1, refs[0], store.url).metrics
    trainer.export_hf(f"{work}/one-step")

    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64, attn_implementation="eager")
    rows = pq.read_table(store.local_path(refs[0].path)).to_pylist()
    a = config.algorithm
    loss = torch.zeros((), dtype=torch.float64)
    for row in rows:
        ids, n = torch.tensor(row["tokens"]), row["response_length"]
        logits = policy(ids[None]).logits[0, -n - 1 : -1] / config.rollout.rollout_temperature
        dist = torch.distributions.Categorical(logits=logits)
        new = dist.log_prob(ids[-n:])
        ratio = (new - torch.tensor(row["rollout_log_probs"], dtype=torch.float64)).exp()
        for t in range(n):
            if not row["loss_mask"][t]:
                continue
            adv = row["advantages"][t]
            token = torch.maximum(-ratio[t] * adv, -ratio[t].clamp(1 - a.eps_clip, 1 + a.eps_clip_high) * adv)
            if adv < 0:
                token = torch.minimum(token, torch.tensor(-a.eps_clip_c * adv, dtype=torch.float64))
            gap = new[t] - new[t].detach()  # the reference has the same weights: k3 = 0, gradient 0
            token = token - a.entropy_coef * dist.entropy()[t] + a.kl_loss_coef * (torch.expm1(-gap) + gap)
            loss = loss + token / sum(row["loss_mask"]) / len(rows)
    loss.backward()
    named = dict(policy.named_parameters())
    norm = plain_update(config, named)
    worst = furthest(named, f"{work}/one-step")
    return {"loss": [metrics["loss"], loss.item()], "norm": [metrics["grad_norm"], norm], "weights": worst}


def compare_and_swap(model: str, work: str) -> None:
    """An update happens once; what does not fit is refused and changes nothing."""
    from relax_core.training.errors import DirtyTrainer, VersionMismatch

    store, refs = batches(work)
    trainer = make_trainer(make_config(model))
    first = trainer.train(0, 1, refs[0], store.url, "w1")
    before = weights(trainer)
    again = trainer.train(0, 1, refs[0], store.url, "w1")
    assert again.already_done
    assert again.metrics == first.metrics
    for arguments in (
        (0, 1, refs[1], store.url, "w1"),
        (0, 1, refs[0], store.url, "other"),
        (2, 3, refs[0], store.url, "w3"),
    ):
        with pytest.raises(VersionMismatch) as caught:
            trainer.train(*arguments)
        assert caught.value.actual == 1
    with pytest.raises(VersionMismatch):
        trainer.push_weights(2, [])
    with pytest.raises(VersionMismatch):
        trainer.save(f"{work}/never", 5)
    assert same(before, weights(trainer))
    assert trainer.status()["version"] == 1

    # The optimiser breaks in the second optimiser step of the update, after the first has changed the weights.
    steps = iter([trainer._parts.optimizer.step_with_ready_grads])

    def breaks() -> Any:
        for step in steps:
            return step()
        raise RuntimeError("out of memory")

    trainer._parts.optimizer.step_with_ready_grads = breaks
    with pytest.raises(RuntimeError):
        trainer.train(1, 2, refs[1], store.url, "w2")
    assert trainer.status()["dirty"]
    for call in (
        lambda: trainer.train(1, 2, refs[1], store.url, "w2"),
        lambda: trainer.push_weights(1, []),
        lambda: trainer.save(f"{work}/never", 0),
        lambda: trainer.export_hf(f"{work}/never"),
        lambda: trainer.log_probs(refs[0], store.url),
    ):
        with pytest.raises(DirtyTrainer):
            call()
    trainer.initialise()
    repeated = trainer.train(0, 1, refs[0], store.url, "w1")
    assert not repeated.already_done
    assert repeated.metrics == first.metrics
    assert same(before, weights(trainer))


def remote_checkpoint(model: str) -> None:
    """Checkpoints and batches on no local folder; saving changes nothing; a damaged checkpoint is passed over."""
    from relax_core.training.checkpoint_index import complete_iterations, newest_complete

    store = RunStore("memory://run")
    refs = [make_batch(store, f"b{i}", seed=i) for i in range(4)]
    url = "memory://run/checkpoints"
    trainer = make_trainer(make_config(model))
    for i in range(2):
        trainer.train(i, i + 1, refs[i], store.url, f"w{i + 1}")
        trainer.save(url, i)
    assert complete_iterations(url) == [(1, "w2"), (0, "w1")]
    assert trainer.save(url, 1)["bytes"] == trainer.save(url, 1)["bytes"]
    trainer.train(2, 3, refs[2], store.url, "w3")
    third = weights(trainer)
    trainer.load(url, 1)
    assert trainer.train(1, 2, refs[1], store.url, "w2").already_done
    trainer.train(2, 3, refs[2], store.url, "w3")
    assert same(third, weights(trainer))

    name = next(path for path in store.sizes("checkpoints/iter_0000001") if path.endswith(".distcp"))
    store.write_bytes(name, store.read_bytes(name)[:-1])
    assert newest_complete(url) == 0
    with pytest.raises(UserError, match="bytes instead of"):
        trainer.load(url, 1)
    assert not trainer.status()["dirty"]
    trainer.load(url, 0)
    assert trainer.status()["version"] == 1
    assert trainer.status()["weights_id"] == "w1"

    config = make_config(model, {"no_save_optim": True})
    small = make_trainer(config)
    small.train(0, 1, refs[0], store.url, "w1")
    small.save("memory://run/weights", 0)
    with pytest.raises(UserError, match="no-save-optim"):
        small.load("memory://run/weights", 0)
    config.checkpoint.load = "memory://run/weights"
    fresh = make_trainer(config)
    assert fresh.status()["version"] == 0
    assert same(weights(small), weights(fresh))


def degenerate_batches(model: str, work: str) -> None:
    """All-zero advantages, samples without a token to learn from, and a batch without any."""
    store = RunStore(work)
    plain = {"use_kl_loss": False, "entropy_coef": 0.0, "num_steps_per_rollout": 1}
    trainer = make_trainer(make_config(model, plain))
    zeros = make_batch(store, "zeros", advantages=lambda n: np.zeros(n.sum(), np.float32))
    metrics = trainer.train(0, 1, zeros, store.url).metrics
    assert metrics["loss"] == 0.0
    assert metrics["grad_norm"] == 0.0

    def half_zero(lengths: Any) -> Any:
        rows = np.ones(lengths.sum(), np.float32)
        rows[: lengths[: len(lengths) // 2].sum()] = 0
        return rows

    # Samples without a signal go forward only; a coefficient of next to nothing sends them through both passes.
    half = make_batch(store, "half", advantages=half_zero)
    shorter, longer = (
        make_trainer(make_config(model, {**plain, "entropy_coef": coefficient})) for coefficient in (0.0, 1e-30)
    )
    left, right = (each.train(0, 1, half, store.url).metrics for each in (shorter, longer))
    assert left == pytest.approx(right, rel=1e-5)
    second = weights(longer)
    assert all(torch.allclose(value, second[name], atol=1e-6) for name, value in weights(shorter).items())

    def first_masked(lengths: Any) -> Any:
        mask = np.ones(lengths.sum(), np.uint8)
        mask[: lengths[0]] = 0
        return mask

    masked = make_batch(store, "masked", loss_mask=first_masked)
    assert np.isfinite(list(trainer.train(1, 2, masked, store.url).metrics.values())).all()
    nothing = make_batch(store, "nothing", loss_mask=lambda n: np.zeros(n.sum(), np.uint8))
    for per_token in (False, True):
        other = make_trainer(make_config(model, {**plain, "calculate_per_token_loss": per_token}))
        metrics = other.train(0, 1, nothing, store.url).metrics
        assert metrics["loss"] == 0.0
        assert np.isfinite(list(metrics.values())).all()


def schedules(model: str) -> None:
    """lr 1e-3, 4 rollout steps of 2 optimiser steps, 2 of warm-up: by hand."""
    from relax_core.training.optimizer import current_rate

    expected = {
        "constant": [0, 5e-4, 1e-3, 1e-3, 1e-3],
        "linear": [0, 5e-4, 1e-3, 1e-4 + 9e-4 * 5 / 6, 1e-4 + 9e-4 * 4 / 6],
        "cosine": [0, 5e-4, *(1e-4 + 9e-4 * (1 + np.cos(np.pi * n / 6)) / 2 for n in range(3))],
    }
    for style, rates in expected.items():
        options = {"lr_decay_style": style, "lr_warmup_iters": 2, "min_lr": 1e-4}
        parts = make_trainer(make_config(model, options))._parts
        seen = []
        for _ in rates:
            seen.append(current_rate(parts.optimizer))
            parts.schedule.step(1)
        np.testing.assert_allclose(seen, rates, atol=1e-12)
    with pytest.raises(UserError, match="lr-warmup-iters 8"):
        make_trainer(make_config(model, {"lr_warmup_iters": 8}))


def not_finite(model: str, work: str) -> None:
    """A step that is not finite is not applied: at first the trainer stays as it was, later it is dirty."""
    from relax_core.training.errors import NonFiniteUpdate

    store = RunStore(work)

    def last_is(value: float) -> Any:
        def advantages(lengths: Any) -> Any:
            rows = np.ones(lengths.sum(), np.float32)
            rows[-1] = value
            return rows

        return advantages

    ones = {"loss_mask": lambda n: np.ones(n.sum(), np.uint8)}
    broken = make_batch(store, "broken", advantages=last_is(np.nan), **ones)
    trainer = make_trainer(make_config(model, {"num_steps_per_rollout": 1}))
    before = weights(trainer)
    with pytest.raises(NonFiniteUpdate, match="step 0"):
        trainer.train(0, 1, broken, store.url)
    assert same(before, weights(trainer))
    assert not trainer.status()["dirty"]
    counted = [float(state["step"]) for part in trainer._parts.optimizer.chained_optimizers
               for state in part.optimizer.state.values()]  # fmt: skip
    assert not any(counted)
    twice = make_trainer(make_config(model))
    with pytest.raises(NonFiniteUpdate, match="optimiser step 1 of it"):
        twice.train(0, 1, broken, store.url)
    assert twice.status()["dirty"]
