"""Whole steps whose advantages need passes of models, by the trainer and by a plain loop: see test_trainer_forward.py.

Not a test module itself.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from trainers import PLAIN, make_config, make_trainer, plain_adamw

from data.errors import UserError
from data.ragged import Ragged
from data.schema import REWARD, ROLLOUT
from data.schema import table as make_table
from data.store import RunStore, TableRef
from relax_core.algorithms.batch import training_batch
from relax_core.config.forward import forward_needs

REWARD_KL = {
    "advantage_estimator": "reinforce_plus_plus",
    "normalize_advantages": True,
    "kl_coef": 0.2,
    "kl_loss_type": "k1",
    "gamma": 0.9,
    "ref_load": "{other}",
}
TEACHER = {"use_opd": True, "opd_type": "megatron", "opd_kl_coef": 0.3}
CASES: dict[str, dict[str, Any]] = {
    "reinforce_plus_plus": REWARD_KL,
    "reinforce_plus_plus_twice": {**REWARD_KL, "num_steps_per_rollout": 2, "lr": 1e-2},
    "engines_log_probs": {**REWARD_KL, "use_rollout_logprobs": True},
    "distilled": {**TEACHER, "opd_teacher_load": "{other}"},
    "distilled_and_shaped": {**REWARD_KL, **TEACHER, "opd_teacher_load": "{third}", "num_steps_per_rollout": 2},
}
"""Each with the models ``{other}`` and ``{third}`` beside the one that is trained."""


def make_tables() -> tuple[pa.Table, pa.Table]:
    """Four groups of two: masked tokens, a sample without a score, one that is removed, a group without a spread."""
    rng = np.random.default_rng(5)
    n = 8
    prompts, responses = rng.integers(3, 10, n), rng.integers(2, 12, n)
    total = int(responses.sum())
    # not token 0, which pads: transformers gives its embedding no gradient
    tokens = rng.integers(1, 512, int((prompts + responses).sum())).astype(np.int32)
    mask = (rng.random(total) > 0.2).astype(np.uint8)
    ids = [f"000000-{i // 2:04d}-{i % 2:03d}" for i in range(n)]
    rollout = make_table(
        ROLLOUT,
        {
            "sample_id": ids,
            "group_id": [one[:11] for one in ids],
            "prompt_id": [one[:11] for one in ids],
            "group_index": np.arange(n) // 2,
            "index": np.arange(n),
            "step": np.zeros(n, np.int32),
            "seed": np.zeros(n, np.int64),
            "prompt": ["p"] * n,
            "tokens": Ragged.from_lengths(tokens, prompts + responses),
            "prompt_length": prompts.astype(np.int32),
            "response_length": responses.astype(np.int32),
            "response": ["r"] * n,
            "label": pa.nulls(n, pa.string()),
            "metadata": ["{}"] * n,
            "loss_mask": Ragged.from_lengths(mask, responses),
            "rollout_log_probs": Ragged.from_lengths((-rng.random(total) * 4 - 3).astype(np.float32), responses),
            "weight_versions": Ragged.from_list([[0]] * n, np.int32),
            "status": ["completed"] * n,
            "finish_reason": ["stop"] * n,
            "remove_sample": [False] * 5 + [True] + [False] * 2,
            "abort_count": np.zeros(n, np.int32),
        },
    )
    scores = pa.array([1.0, 0.0, None, 0.5, 0.25, 1.0, 0.5, 0.5], pa.float32())
    reward = {"sample_id": ids, "group_id": [one[:11] for one in ids], "reward": scores, "raw_reward": scores}
    return rollout, make_table(REWARD, {**reward, "rm_type": ["t"] * n})


def case_config(name: str, models: dict[str, str], options: dict[str, Any]) -> Any:
    chosen = {**PLAIN, "clip_grad": 0.5, "load": models["model"], "n_samples_per_prompt": 2, **CASES[name], **options}
    filled = {key: value.format(**models) if isinstance(value, str) else value for key, value in chosen.items()}
    return make_config(models["model"], filled)


def whole_step(
    name: str, models: dict[str, str], work: str, options: dict[str, Any] | None = None
) -> tuple[Any, Any, TableRef, dict[str, Any]]:
    """Forward, advantages and update of one case; the weights go to ``<work>/<name>``.

    Returns:
        Configuration, what forward gave, the stored batch, and metrics of advantages and update.
    """
    store, (rollout, rewards) = RunStore(work), make_tables()
    config = case_config(name, models, options or {})
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    stored = store.write_table(f"{name}-{rank}-rollout.parquet", rollout)
    trainer = make_trainer(config)
    forward = trainer.forward(0, stored, store.url, forward_needs(config).policy)
    batch, metrics = training_batch(rollout, rewards, config, None, forward)
    reference = store.write_table(f"{name}-{rank}-batch.parquet", batch)

    def second_pass(data: Any) -> Any:
        raise AssertionError("the batch holds these log-probs")

    trainer._passes_over = second_pass
    metrics |= trainer.train(0, 1, reference, store.url).metrics
    trainer.export_hf(str(Path(work, name)))
    return config, forward, reference, metrics


def all_cases(models: dict[str, str], work: str) -> dict[str, Any]:
    """Of each case: what the trainer and the plain loop give."""
    from safetensors.torch import load_file

    found = {}
    for name in CASES:
        config, forward, _, metrics = whole_step(name, models, work)
        wanted, policy = plain_step(config, models)
        ours = load_file(f"{work}/{name}/model.safetensors")
        named = dict(policy.named_parameters())
        worst = max((named[key].detach() - value.double()).abs().max().item() for key, value in ours.items())
        columns = {key: forward[key].to_pylist() for key in wanted["columns"]}
        found[name] = {
            "metrics": metrics,
            "wanted": wanted,
            "weights": worst,
            "columns": columns,
            "absent": [key for key in forward.column_names[3:] if forward[key].null_count == forward.num_rows],
        }
    return found


def _log_probs(model: Any, row: dict[str, Any], temperature: float) -> Any:
    ids, n = torch.tensor(row["tokens"]), row["response_length"]
    dist = torch.distributions.Categorical(logits=model(ids[None]).logits[0, -n - 1 : -1] / temperature)
    return dist.log_prob(ids[-n:]), dist.entropy()


def plain_step(config: Any, models: dict[str, str]) -> tuple[dict[str, Any], Any]:
    """The same step in float64: one token after the other, from the papers."""
    from transformers import AutoModelForCausalLM

    def model(folder: str) -> Any:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")

    a, rollout, rewards = config.algorithm, *(table.to_pylist() for table in make_tables())
    temperature, scores = config.rollout.rollout_temperature, [row["reward"] for row in rewards]
    policy, copies = model(models["model"]), {"old_log_probs": models["model"]}
    if a.kl_coef:
        copies["ref_log_probs"] = config.checkpoint.ref_load
    if config.opd.use_opd:
        copies["teacher_log_probs"] = config.opd.opd_teacher_load
    columns = {}
    with torch.no_grad():
        for column, folder in copies.items():
            columns[column] = [_log_probs(model(folder), row, temperature)[0].tolist() for row in rollout]
    if a.use_rollout_logprobs:
        columns["old_log_probs"] = [row["rollout_log_probs"] for row in rollout]

    kept = [
        [t for t, on in enumerate(row["loss_mask"]) if on and score is not None and not row["remove_sample"]]
        for row, score in zip(rollout, scores, strict=True)
    ]
    advantages = [[0.0] * row["response_length"] for row in rollout]
    kls, gaps = [], []
    for i, row in enumerate(rollout):
        if a.advantage_estimator == "grpo":
            group = [s for s, other in zip(scores, rollout, strict=True) if other["group_id"] == row["group_id"]]
            group = [s for s in group if s is not None]
            mean, spread = np.mean(group), np.std(group, ddof=1) if len(group) > 1 else 0.0
            reward = (scores[i] - mean) / (spread + 1e-6) if scores[i] is not None and spread else 0.0
            for t in kept[i]:
                advantages[i][t] = reward
            continue
        following = 0.0
        for t in reversed(kept[i]):
            kl = columns["old_log_probs"][i][t] - columns["ref_log_probs"][i][t]
            kls.append(kl)
            following = (scores[i] if t == kept[i][-1] else 0.0) - a.kl_coef * kl + a.gamma * following
            advantages[i][t] = following
    if config.opd.use_opd:
        for i, tokens in enumerate(kept):
            for t in tokens:
                gap = columns["old_log_probs"][i][t] - columns["teacher_log_probs"][i][t]
                gaps.append(gap)
                advantages[i][t] -= config.opd.opd_kl_coef * gap
    if a.normalize_advantages:
        flat = [advantages[i][t] for i, tokens in enumerate(kept) for t in tokens]
        for i, tokens in enumerate(kept):
            for t in tokens:
                advantages[i][t] = (advantages[i][t] - np.mean(flat)) / np.sqrt(max(np.var(flat), 1e-8))

    optimizer = plain_adamw(config, list(policy.parameters()))
    updates, losses, norms = config.batch.num_steps_per_rollout, [], []
    size = len(rollout) // updates
    for update in range(updates):
        loss = torch.zeros((), dtype=torch.float64)
        for i in range(update * size, (update + 1) * size):
            new, entropy = _log_probs(policy, rollout[i], temperature)
            for t in kept[i]:
                old = columns["old_log_probs"][i][t] if updates > 1 or a.use_rollout_logprobs else new[t].detach()
                ratio = (new[t] - old).exp()
                clipped = ratio.clamp(1 - a.eps_clip, 1 + a.eps_clip_high)
                token = -torch.minimum(ratio * advantages[i][t], clipped * advantages[i][t])
                loss = loss + (token - a.entropy_coef * entropy[t]) / len(kept[i]) / size
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(policy.parameters(), config.optimizer.clip_grad).item())
        losses.append(loss.item())
        optimizer.step()
    found = {"loss": np.mean(losses).item(), "grad_norm": np.mean(norms).item()}
    found |= {"reward_kl": np.mean(kls).item()} if kls else {}
    found |= {"opd_reverse_kl": np.mean(gaps).item()} if gaps else {}
    if a.use_rollout_logprobs:
        del columns["old_log_probs"]
    return {"metrics": found, "columns": columns}, policy


def on_ranks(models: dict[str, str], work: str, options: dict[str, Any]) -> dict[str, Any]:
    """The case with everything at once, on this rank's layout."""
    _, forward, _, metrics = whole_step("distilled_and_shaped", models, work, options)
    return {"metrics": metrics, "forward": {key: forward[key].to_pylist() for key in forward.column_names}}


def teachers(models: dict[str, str], work: str) -> dict[str, Any]:
    """Teachers that are checkpoints, and those that cannot be."""
    from training_batches import batches

    store, refs = batches(work)
    first = make_trainer(make_config(models["other"], PLAIN))
    first.train(0, 1, refs[0], store.url, "w1")
    first.save(f"{work}/checkpoints", 0)
    first.export_hf(f"{work}/exported")
    rollout = store.write_table("teachers-rollout.parquet", make_tables()[0])
    found: dict[str, Any] = {}
    places = {"checkpoint": f"{work}/checkpoints", "folder": f"{work}/exported", "itself": models["model"]}
    for name, place in places.items():
        trainer = make_trainer(case_config("distilled", models, {"opd_teacher_load": place}))
        table = trainer.forward(0, rollout, store.url, ["old_log_probs", "teacher_log_probs"])
        again = trainer.log_probs(rollout, store.url)  # the policy has its own weights again
        found[name] = {
            "teacher": table["teacher_log_probs"].to_pylist(),
            "policy": table["old_log_probs"].to_pylist(),
            "after": [row.tolist() for row in again],
        }
    wide = make_trainer(make_config(models["wide"], PLAIN))
    wide.train(0, 1, refs[0], store.url, "w1")
    wide.save(f"{work}/wide-checkpoints", 0)

    def refusal(place: str) -> str:
        try:
            make_trainer(case_config("distilled", models, {"opd_teacher_load": place}))
        except UserError as error:
            return str(error)
        return ""

    found["wide"], found["wide_checkpoint"] = refusal(models["wide"]), refusal(f"{work}/wide-checkpoints")
    Path(models["wide"], "config.json").unlink()  # of the model that the checkpoint is of
    found["wide_alone"] = refusal(f"{work}/wide-checkpoints")
    return found
