"""One update of every policy loss, by the trainer and by a plain loop: see test_trainer_estimators.py.

Not a test module itself.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from trainers import furthest, make_config, make_trainer, plain_update
from training_batches import batches

REJECTION = "relax_core.algorithms.corrections.rejection_function"
DR_GRPO = "relax_core.algorithms.reduce.dr_grpo"
BASE: dict[str, Any] = {"num_steps_per_rollout": 1, "lr_warmup_iters": 0, "clip_grad": 0.5}
OFF_POLICY = {"use_rollout_logprobs": True}
"""The engine's log-probs are the old policy's, so that ratios are far from 1."""

CASES: dict[str, dict[str, Any]] = {
    "gspo": {**OFF_POLICY, "advantage_estimator": "gspo"},
    "sapo": {**OFF_POLICY, "advantage_estimator": "sapo", "sapo_tau_pos": 1.3, "sapo_tau_neg": 1.7},
    "cispo": {**OFF_POLICY, "advantage_estimator": "cispo"},
    "rloo": {**OFF_POLICY, "advantage_estimator": "rloo", "calculate_per_token_loss": True},
    # their advantages: test_trainer_forward.py, test_trainer_critic.py
    "reinforce_plus_plus": {
        **OFF_POLICY,
        "advantage_estimator": "reinforce_plus_plus",
        "use_kl_loss": False,
        "kl_loss_coef": 0.0,
    },
    "ppo": {**OFF_POLICY, "advantage_estimator": "ppo", "use_kl_loss": False, "kl_loss_coef": 0.0},
    "reinforce_plus_plus_baseline": {
        **OFF_POLICY,
        "advantage_estimator": "reinforce_plus_plus_baseline",
        "kl_loss_type": "k2",
    },
    "opsm": {**OFF_POLICY, "use_opsm": True, "opsm_delta": 0.5},
    "tis": {"use_tis": True, "tis_clip": 1.5, "tis_clip_low": 0.5},
    "own_correction": {
        "get_mismatch_metrics": True,
        "custom_tis_function_path": REJECTION,
        "tis_clip": 2.0,
        "tis_clip_low": 0.2,
    },
    "own_reducer": {**OFF_POLICY, "custom_pg_loss_reducer_function_path": DR_GRPO, "rollout_max_response_len": 12},
}


def all_cases(model: str, work: str) -> dict[str, Any]:
    """Of each case: what the trainer's update and the plain loop's give."""
    return {name: one_update(model, work, name, options) for name, options in CASES.items()}


def one_update(model: str, work: str, name: str, options: dict[str, Any]) -> dict[str, Any]:
    import pyarrow.parquet as pq
    from transformers import AutoModelForCausalLM

    store, refs = batches(work)
    config = make_config(model, {**BASE, **options})
    trainer = make_trainer(config)
    metrics = trainer.train(0, 1, refs[0], store.url).metrics
    trainer.export_hf(f"{work}/{name}")

    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64, attn_implementation="eager")
    rows = pq.read_table(store.local_path(refs[0].path)).to_pylist()
    trained = sum(sum(row["loss_mask"]) for row in rows)
    a, loss = config.algorithm, torch.zeros((), dtype=torch.float64)
    for row in rows:
        ids, n = torch.tensor(row["tokens"]), row["response_length"]
        logits = policy(ids[None]).logits[0, -n - 1 : -1] / config.rollout.rollout_temperature
        dist = torch.distributions.Categorical(logits=logits)
        new = dist.log_prob(ids[-n:])
        engine = torch.tensor(row["rollout_log_probs"], dtype=torch.float64)
        old = engine if a.use_rollout_logprobs else new.detach()
        kept = [t for t in range(n) if row["loss_mask"][t]]
        policy_losses, counted = _policy(config, new, old, engine, row["advantages"], kept)
        pg_loss = sum(policy_losses, start=torch.zeros((), dtype=torch.float64))
        entropies = sum((dist.entropy()[t] for t in kept), start=torch.zeros((), dtype=torch.float64))
        if config.optimizer.calculate_per_token_loss:
            loss = loss + (pg_loss - a.entropy_coef * entropies) / trained
            continue
        length = config.rollout.rollout_max_response_len if a.custom_pg_loss_reducer_function_path else max(counted, 1)
        # the reference has the actor's weights: no KL, and no gradient of it
        loss = loss + (pg_loss / length - a.entropy_coef * entropies / max(len(kept), 1)) / len(rows)
    loss.backward()
    named = dict(policy.named_parameters())
    norm = plain_update(config, named)
    worst = furthest(named, f"{work}/{name}")
    found = {"loss": metrics["loss"], "norm": metrics["grad_norm"]}
    return {"found": found, "wanted": {"loss": loss.item(), "norm": norm}, "weights": worst, "metrics": metrics}


def _policy(
    config: Any, new: Tensor, old: Tensor, engine: Tensor, advantages: list[float], kept: list[int]
) -> tuple[list[Tensor], int]:
    """The losses of a sample's trained tokens, and how many of them there are to the mean."""
    a, losses, counted = config.algorithm, [], 0
    mean_ratio = (sum(new[t] - old[t] for t in kept) / max(len(kept), 1) + 0.0 * new.sum()).exp()
    for t in kept:
        adv, ratio = advantages[t], (new[t] - old[t]).exp()
        loss = _losses(a, adv)[a.advantage_estimator](mean_ratio if a.advantage_estimator == "gspo" else ratio, new[t])
        if a.use_opsm and adv < 0 and -mean_ratio.log().item() > a.opsm_delta:
            loss = loss * 0
        weight = math.exp(new[t].item() - engine[t].item())
        if a.use_tis:
            loss = loss * min(max(weight, a.tis_clip_low), a.tis_clip)
        if a.custom_tis_function_path and not a.tis_clip_low <= weight <= a.tis_clip:
            continue
        counted += 1
        losses.append(loss)
    return losses, counted


def _losses(a: Any, adv: float) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Each estimator's loss of a token from its ratio and its log-probability."""
    low, high = 1 - a.eps_clip, 1 + a.eps_clip_high

    def clipped(ratio: Tensor, new: Tensor) -> Tensor:
        return -torch.minimum(ratio * adv, ratio.clamp(low, high) * adv)

    def gated(ratio: Tensor, new: Tensor) -> Tensor:
        tau = a.sapo_tau_pos if adv > 0 else a.sapo_tau_neg
        return -4 / tau / (1 + (-tau * (ratio - 1)).exp()) * adv

    def bounded(ratio: Tensor, new: Tensor) -> Tensor:
        return -(min(ratio.item(), high) if adv >= 0 else max(ratio.item(), low)) * adv * new

    return {
        "grpo": clipped,
        "gspo": clipped,
        "reinforce_plus_plus": clipped,
        "reinforce_plus_plus_baseline": clipped,
        "ppo": clipped,
        "sapo": gated,
        "cispo": bounded,
        "rloo": lambda ratio, new: -adv * new,
    }
