"""Losses of the user in the trainer, against the built-in ones: see test_trainer_custom_loss.py.

Not a test module itself.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from trainers import make_config, make_trainer, weights
from training_batches import batches

SLOW = {"adam_eps": 1e-3, "entropy_coef": 0.0}
"""Adam far from the sign of the gradient, so that weights differ by rounding alone."""


def chosen(batch: dict[str, Any], logits: Tensor) -> Tensor:
    """[r] log-probabilities of the response tokens."""
    return logits.log_softmax(-1).gather(1, torch.cat(batch["response_tokens"])[:, None]).squeeze(1)


def clipped(args: Any, batch: dict[str, Any], logits: Tensor, sum_of_sample_mean: Any) -> Any:
    """GRPO's loss with the KL to the reference as k3."""
    new = chosen(batch, logits)
    old, reference, advantages = (torch.cat(batch[name]) for name in ("log_probs", "ref_log_probs", "advantages"))
    ratio = (new - old).exp()
    bounded = ratio.clamp(1 - args.eps_clip, 1 + args.eps_clip_high)
    pg_loss = sum_of_sample_mean(-torch.minimum(ratio * advantages, bounded * advantages))
    kl = sum_of_sample_mean((reference - new).exp() - 1 - (reference - new))
    clipped = sum_of_sample_mean((bounded * advantages < ratio * advantages).float())
    metrics = {"pg_loss": pg_loss.detach(), "kl_loss": kl.detach(), "pg_clipfrac": clipped}
    return pg_loss + args.kl_loss_coef * kl, metrics


def likelihood(args: Any, batch: dict[str, Any], logits: Tensor, sum_of_sample_mean: Any) -> Any:
    """The supervised loss."""
    return sum_of_sample_mean(-chosen(batch, logits)), {}


def own(name: str) -> dict[str, Any]:
    """The options of a loss of this file."""
    return {"loss_type": "custom_loss", "custom_loss_function_path": f"{Path(__file__).resolve()}:{name}"}


OTHER = {"calculate_per_token_loss": True, "use_rollout_logprobs": True}
"""Means over tokens, and ratios to the engine's log-probs: far from 1, so that they are clipped."""
PACKED = {"use_dynamic_batch_size": True, "max_tokens_per_gpu": 40}
SUPERVISED = {"use_kl_loss": False, "disable_compute_advantages_and_returns": True}

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {}),
    "own": ("grpo", own("clipped")),
    "own_packed": ("grpo", {**own("clipped"), **PACKED}),
    "grpo_clipped": ("grpo_clipped", OTHER),
    "own_clipped": ("grpo_clipped", {**own("clipped"), **OTHER}),
    "sft": ("sft", {"loss_type": "sft", **SUPERVISED}),
    "own_likelihood": ("sft", {**own("likelihood"), **SUPERVISED}),
    "own_likelihood_packed": ("sft", {**own("likelihood"), **SUPERVISED, **PACKED}),
}
"""Of each run: the one that it must equal, and its options; all else is the same."""


def all_runs(model: str, work: str, options: dict[str, Any]) -> dict[str, Any]:
    """Of each run two rollout steps of two optimiser steps each: metrics, phases, and how far the weights have moved
    and are apart from those that they must equal."""
    found: dict[str, Any] = {}
    ends: dict[str, dict[str, Tensor]] = {}
    store, refs = batches(work)
    for name, (like, given) in RUNS.items():
        trainer = make_trainer(make_config(model, {**SLOW, **options, **given}))
        start = weights(trainer)
        done = [trainer.train(i, i + 1, refs[i], store.url, f"w{i + 1}") for i in range(2)]
        ends[name] = weights(trainer)
        found[name] = {
            "metrics": [step.metrics for step in done],
            "phases": [sorted(step.seconds) for step in done],
            "moved": _apart(ends[name], start),
            "apart": _apart(ends[name], ends[like]),
        }
    return found


def _apart(left: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    return max(float((left[key] - right[key]).abs().max()) for key in left)
