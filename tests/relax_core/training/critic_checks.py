"""What the ranks of the critic's tests run: see test_trainer_critic.py. Not a test module itself."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import meeting_file
from trainers import furthest, make_config, make_trainer, plain_update, same, weights
from training_batches import make_batch, value_batch

from data.errors import UserError
from data.ragged import Ragged
from data.store import RunStore, TableRef

PPO: dict[str, Any] = {
    "advantage_estimator": "ppo",
    "use_kl_loss": False,
    "kl_loss_coef": 0.0,
    "entropy_coef": 0.0,
    "critic_lr": 2e-3,
    "critic_lr_warmup_iters": 1,
    "value_clip": 0.3,
}
CASES: dict[str, dict[str, Any]] = {
    "over samples": {},
    "over tokens": {"calculate_per_token_loss": True},
}


def make_critic(config: Any) -> Any:
    """This rank's trainer of a critic at version 0."""
    from relax_core.training.trainer import Trainer

    critic = Trainer(config, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), role="critic")
    critic.join(meeting_file())
    critic.initialise()
    return critic


def values_of(critic: Any, store: RunStore, ref: TableRef, version: int = 0) -> Ragged:
    return Ragged.from_arrow(critic.forward(version, ref, store.url, ["values"])["values"])


def one_process(model: str, work: str) -> dict[str, Any]:
    """Everything that one process can show."""
    result: dict[str, Any] = {name: one_update(model, work, name, options) for name, options in CASES.items()}
    result["plain"] = follow(model, work, "alone", {})
    result["packed"] = follow(model, work, "packed", {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 40})
    first_weights(model, work)
    every_sample_counts(model, work)
    an_actor_that_rests(model, work)
    starts(model, work)
    again_from_a_checkpoint(model, work)
    number_formats(model, work)
    return result


def one_update(model: str, work: str, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """One optimiser step, by the trainer and by transformers' body with torch's linear layer, in float64."""
    import pyarrow.parquet as pq
    from safetensors.torch import load_file
    from transformers import AutoModel

    store = RunStore(work)
    ref = value_batch(store, f"one-{name}")
    own = {"num_steps_per_rollout": 1, "critic_lr_warmup_iters": 0, "clip_grad": 0.5}
    config = make_config(model, {**PPO, **own, **options})
    critic = make_critic(config)
    critic.export_hf(f"{work}/first")
    values = values_of(critic, store, ref)
    metrics = critic.train(0, 1, ref, store.url).metrics
    critic.export_hf(f"{work}/{name}")

    body = AutoModel.from_pretrained(model, dtype=torch.float64, attn_implementation="eager")
    head = torch.nn.Linear(body.config.hidden_size, 1, dtype=torch.float64)
    start = load_file(f"{work}/first/model.safetensors")
    with torch.no_grad():
        head.weight.copy_(start["score.weight"])
        head.bias.copy_(start["score.bias"])
    rows = pq.read_table(store.local_path(ref.path)).to_pylist()
    trained = sum(sum(row["loss_mask"]) for row in rows)
    loss, worst_value = torch.zeros((), dtype=torch.float64), 0.0
    clipped, explained = 0.0, ([], [])
    for row, ours in zip(rows, values.to_arrow().to_pylist(), strict=True):
        ids, n = torch.tensor(row["tokens"]), row["response_length"]
        new = head(body(ids[None]).last_hidden_state[0, -n - 1 : -1]).squeeze(-1)  # V of t is read before t
        worst_value = max(worst_value, (new.detach() - torch.tensor(ours)).abs().max().item())
        kept = sum(row["loss_mask"])
        per_token = config.optimizer.calculate_per_token_loss
        weight = 1 / trained if per_token else 1 / max(kept, 1) / len(rows)
        for t in range(n):
            if not row["loss_mask"][t]:
                continue
            old, target = row["values"][t], row["returns"][t]
            bounded = new[t].clamp(old - config.algorithm.value_clip, old + config.algorithm.value_clip)
            loss = loss + weight * torch.maximum((new[t] - target) ** 2, (bounded - target) ** 2)
            clipped += weight * (abs(new[t].item() - old) > config.algorithm.value_clip)
            explained[0].append(target)
            explained[1].append(target - old)
    loss.backward()
    named = {f"model.{key}": value for key, value in body.named_parameters()}
    named |= {"score.weight": head.weight, "score.bias": head.bias}
    norm = plain_update(config, named, config.algorithm.critic_lr)
    worst = furthest(named, f"{work}/{name}")
    return {
        "found": {key: metrics[key] for key in ("loss", "value_loss", "value_clipfrac", "grad_norm", "lr")}
        | {"explained_variance": metrics["explained_variance"]},
        "wanted": {
            "loss": loss.item(),
            "value_loss": loss.item(),
            "value_clipfrac": clipped,
            "grad_norm": norm,
            "lr": config.algorithm.critic_lr,
            "explained_variance": 1 - np.var(explained[1]) / np.var(explained[0]),
        },
        "values": worst_value,
        "weights": worst,
    }


def follow(model: str, work: str, name: str, options: dict[str, Any], stop: int = 3) -> dict[str, Any]:
    """Two optimiser steps in each of three rollout steps; the weights go to ``<work>/<name>``."""
    store = RunStore(work)
    refs = [TableRef.from_json(row) for row in store.read_json("value-refs.json")]
    critic = make_critic(make_config(model, {**PPO, **options}))
    before = values_of(critic, store, refs[0]).values.tolist()
    rows = [critic.train(i, i + 1, refs[i], store.url, f"c{i + 1}").metrics for i in range(stop)]
    critic.export_hf(str(Path(work, name)))
    after = values_of(critic, store, refs[0], stop).values.tolist()
    return {"metrics": rows, "values": [before, after]}


def first_weights(model: str, work: str) -> None:
    """The head follows the seed; its bias is 0; a temperature changes no value; transformers loads an export."""
    from safetensors.torch import load_file
    from transformers import AutoModelForTokenClassification

    store = RunStore(work)
    ref = value_batch(store, "first")
    heads, values = [], []
    for options in ({}, {"seed": 7}, {"rollout_temperature": 0.1}):
        critic = make_critic(make_config(model, {**PPO, **options}))
        critic.export_hf(f"{work}/seeded")
        found = load_file(f"{work}/seeded/model.safetensors")
        heads.append(found["score.weight"])
        values.append(values_of(critic, store, ref))
        assert found["score.bias"].item() == 0
        assert 0.01 < found["score.weight"].std() < 0.03
        assert "lm_head.weight" not in found
    assert torch.equal(heads[0], heads[2])
    assert not torch.equal(heads[0], heads[1])
    assert np.array_equal(values[0].values, values[2].values)
    assert not np.array_equal(values[0].values, values[1].values)
    loaded = AutoModelForTokenClassification.from_pretrained(f"{work}/seeded", dtype=torch.float32).eval()
    row = store.read_table(ref).to_pylist()[0]
    ids, n = torch.tensor(row["tokens"]), row["response_length"]
    with torch.no_grad():
        theirs = loaded(ids[None]).logits[0, -n - 1 : -1, 0]
    np.testing.assert_allclose(values[2].to_arrow().to_pylist()[0], theirs.numpy(), atol=1e-5)


def every_sample_counts(model: str, work: str) -> None:
    """Samples whose advantages are 0 teach the critic; masked tokens do not; a batch needs values."""
    store = RunStore(work)
    config = make_config(model, {**PPO, "num_steps_per_rollout": 1, "critic_lr_warmup_iters": 0})
    columns: dict[str, Any] = {
        "values": lambda n: np.zeros(n.sum(), np.float32),
        "returns": lambda n: np.ones(n.sum(), np.float32),
        "advantages": lambda n: np.zeros(n.sum(), np.float32),
    }
    zeros = make_batch(store, "no-advantages", **columns)
    critic = make_critic(config)
    metrics = critic.train(0, 1, zeros, store.url).metrics
    assert metrics["grad_norm"] > 0.1
    assert metrics["return_mean"] == pytest.approx(1.0)
    assert "explained_variance" not in metrics  # the returns do not differ
    masked = make_batch(store, "all-masked", loss_mask=lambda n: np.zeros(n.sum(), np.uint8), **columns)
    metrics = critic.train(1, 2, masked, store.url).metrics
    assert (metrics["loss"], metrics["grad_norm"]) == (0.0, 0.0)
    without = make_batch(store, "without-values")
    with pytest.raises(UserError, match="no column values"):
        critic.train(2, 3, without, store.url)
    assert not critic.status()["dirty"]


def an_actor_that_rests(model: str, work: str) -> None:
    """In the critic's own steps the actor becomes the next version as it is, however often it is asked."""
    store = RunStore(work)
    refs = [value_batch(store, f"rest-{i}", seed=i) for i in range(3)]
    for options, steps in (({"num_critic_only_steps": 2}, [0, 0, 2]), ({"critic_train_only": True}, [0, 0, 0])):
        actor = make_trainer(make_config(model, {**PPO, **options}))
        before, found = weights(actor), []
        for i, ref in enumerate(refs):
            done = actor.train(i, i + 1, ref, store.url, f"w{i + 1}")
            assert actor.train(i, i + 1, ref, store.url, f"w{i + 1}").already_done
            found.append(actor.status()["optimizer_step"])
            assert (done.metrics == {}) is (steps[i] == 0)
            assert same(before, weights(actor)) is (steps[i] == 0)
        assert found == steps
        assert actor.status()["version"] == 3
    critic = make_critic(make_config(model, {**PPO, "num_critic_only_steps": 2}))
    assert critic.train(0, 1, refs[0], store.url).optimizer_step == 2


def starts(model: str, work: str) -> None:
    """A critic takes an actor's body with a fresh head, or all of a critic's checkpoint; an actor takes no critic's."""
    store = RunStore(work)
    ref = value_batch(store, "starts")
    actor = make_trainer(make_config(model, {**PPO, "num_steps_per_rollout": 1, "lr_warmup_iters": 0}))
    actor.train(0, 1, ref, store.url, "w1")
    actor.save(f"{work}/actor-checkpoints", 0)
    of_model = make_critic(make_config(model, PPO))
    of_actor = make_critic(make_config(model, {**PPO, "critic_load": f"{work}/actor-checkpoints"}))
    body = weights(actor)
    for name, value in weights(of_actor).items():
        if "value_head" in name:
            assert torch.equal(value, weights(of_model)[name])
        else:
            assert torch.equal(value, body[name])
            assert not torch.equal(value, weights(of_model)[name]) or "norm" in name
    of_actor.train(0, 1, ref, store.url, "c1")
    of_actor.save(f"{work}/critic-origin", 0)
    of_critic = make_critic(make_config(model, {**PPO, "critic_load": f"{work}/critic-origin"}))
    assert same(weights(of_actor), weights(of_critic))
    assert of_critic.status()["version"] == 0
    with pytest.raises(UserError, match="is a critic's"):
        make_trainer(make_config(model, {**PPO, "load": f"{work}/critic-origin"}))


def again_from_a_checkpoint(model: str, work: str) -> None:
    """Saved, loaded and gone on with, the critic has the same bits; so it has with the distributed optimiser."""
    store = RunStore(work)
    refs = [value_batch(store, f"again-{i}", seed=i) for i in range(3)]
    for kind in ({}, {"use_distributed_optimizer": True}):
        url = f"{work}/critic-{len(kind)}"
        critic = make_critic(make_config(model, {**PPO, **kind}))
        for i in range(2):
            critic.train(i, i + 1, refs[i], store.url, f"c{i + 1}")
        critic.save(url, 1)
        wanted = critic.train(2, 3, refs[2], store.url, "c3").metrics
        other = make_critic(make_config(model, {**PPO, **kind}))
        other.load(url, 1)
        assert other.status()["optimizer_step"] == 4
        assert other.train(2, 3, refs[2], store.url, "c3").metrics == wanted
        assert same(weights(critic), weights(other))


def number_formats(model: str, work: str) -> None:
    """Values are float32 and near those of float32 weights in any format; a step in it is finite."""
    store = RunStore(work)
    ref = value_batch(store, "formats")
    plain = values_of(make_critic(make_config(model, PPO)), store, ref)
    half: dict[str, Any] = {"fp16": True, "use_precision_aware_optimizer": False, "initial_loss_scale": 256.0}
    for options in ({"bf16": True}, half):
        critic = make_critic(make_config(model, {**PPO, **options}))
        found = values_of(critic, store, ref)
        assert found.values.dtype == np.float32
        np.testing.assert_allclose(found.values, plain.values, atol=0.05)
        metrics = critic.train(0, 1, ref, store.url).metrics
        assert np.isfinite(list(metrics.values())).all()
        assert critic.status()["optimizer_step"] > 0


def loaded(model: str, work: str, options: dict[str, Any]) -> list[float]:
    """Values of a critic that another layout has saved, as ``save_for_others`` did."""
    store = RunStore(work)
    ref = TableRef.from_json(store.read_json("value-refs.json")[0])
    critic = make_critic(make_config(model, {**PPO, **options}))
    critic.load(f"{work}/critic-for-others", 0)
    return list(values_of(critic, store, ref, 1).values.tolist())


def save_for_others(model: str, work: str) -> list[float]:
    store = RunStore(work)
    ref = TableRef.from_json(store.read_json("value-refs.json")[0])
    critic = make_critic(make_config(model, PPO))
    critic.train(0, 1, ref, store.url, "c1")
    critic.save(f"{work}/critic-for-others", 0)
    return list(values_of(critic, store, ref, 1).values.tolist())
