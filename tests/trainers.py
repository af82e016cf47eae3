"""Trainers for tests of Megatron: what the ranks of ``tests/relax_core/training`` run (see ``tests/ranks.py``)."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from ranks import meeting_file
from safetensors.torch import load_file
from training_batches import batches

from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig

OPTIONS = {
    "lr": 1e-3,
    "adam_eps": 1e-6,  # Adam divides by |gradient| + eps: less of it, and rounding would decide signs
    "lr_warmup_iters": 1,
    "lr_decay_style": "linear",
    "num_rollout": 4,
    "rollout_temperature": 0.8,
    "num_steps_per_rollout": 2,
    "micro_batch_size": 2,
    "use_kl_loss": True,
    "kl_loss_coef": 0.1,
    "kl_loss_type": "k3",
    "entropy_coef": 0.01,
    "eps_clip_high": 0.28,
}
"""Everything at once: two optimiser steps a rollout step (so an old-policy pass), reference, entropy, schedule."""

PLAIN = {
    "lr_warmup_iters": 0,
    "lr_decay_style": "constant",
    "num_steps_per_rollout": 1,
    "use_kl_loss": False,
    "kl_loss_coef": 0.0,
    "entropy_coef": 0.0,
}
"""What makes of ``OPTIONS`` one optimiser step a rollout step of the policy loss alone, always with the same rate."""


def make_config(model: str, options: dict[str, Any] | None = None) -> RelaxConfig:
    """``OPTIONS`` with these changed."""
    return with_options(RelaxConfig(), {"hf_checkpoint": model, **OPTIONS, **(options or {})})


def make_trainer(config: RelaxConfig) -> Any:
    """This rank's trainer at version 0."""
    from relax_core.training.trainer import Trainer

    trainer = Trainer(config, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ.get("DEVICE", "cpu"))
    trainer.join(meeting_file())
    trainer.initialise()
    return trainer


def plain_adamw(
    config: RelaxConfig, parameters: Sequence[torch.Tensor], rate: float | None = None
) -> torch.optim.AdamW:
    """PyTorch's own optimiser as the options describe the trainer's: vectors do not decay.

    Args:
        rate: in place of --lr.
    """
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.optimizer.weight_decay},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=rate or config.optimizer.lr, eps=config.optimizer.adam_eps)


def plain_update(config: RelaxConfig, named: Mapping[str, torch.Tensor], rate: float | None = None) -> float:
    """Clip the gradients of parameters and take one step; the norm before that."""
    norm = torch.nn.utils.clip_grad_norm_(named.values(), config.optimizer.clip_grad)
    plain_adamw(config, list(named.values()), rate).step()
    return norm.item()


def furthest(named: Mapping[str, torch.Tensor], folder: str) -> float:
    """How far the weights in a Hugging Face folder are from these at most; it has these and no others."""
    saved = load_file(f"{folder}/model.safetensors")
    assert saved.keys() == named.keys()
    return max((named[key].detach() - value.double()).abs().max().item() for key, value in saved.items())


def follow(
    model: str,
    work: str,
    name: str,
    options: dict[str, Any],
    stop: int = 3,
    load: tuple[str, int] | None = None,
    save: tuple[str, int] | None = None,
) -> dict[str, Any]:
    """Train from version 0 or a checkpoint up to ``stop``; weights go to ``<work>/<name>`` as a Hugging Face folder."""
    store, refs = batches(work)
    trainer = make_trainer(make_config(model, options))
    if load is not None:
        trainer.load(*load)
    rows = []
    for i in range(trainer.status()["version"], stop):
        rows.append(trainer.train(i, i + 1, refs[i], store.url, f"w{i + 1}").metrics)
        if save is not None and save[1] == i:
            trainer.save(*save)
    trainer.export_hf(str(Path(work, name)))
    scores = trainer.log_probs(refs[0], store.url)
    return {"metrics": rows, "scores": scores.values.tolist(), "status": trainer.status()}


def fresh_and_loaded(
    model: str, work: str, name: str, options: dict[str, Any], load: tuple[str, int], save: tuple[str, int]
) -> list[dict[str, Any]]:
    """The same steps from version 0, and the last of them from another layout's checkpoint; without process ids."""
    results = [
        follow(model, work, name, options),
        follow(model, work, f"{name}-loaded", options, load=load, save=save),
    ]
    for result in results:
        del result["status"]["pid"]
    return results


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    """Copies of a rank's parameters, by name."""
    return {name: value.detach().clone() for name, value in trainer.model.named_parameters()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Bit by bit."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
