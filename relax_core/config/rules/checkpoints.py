"""Rules of checkpoints: where a run starts, what it saves and what it keeps.

Guarantee: a step that is asked for and is not there, as far as this machine can see, is told before anything starts.
"""

import os
from typing import Any

from relax_core.config.derived import ACTOR_FOLDER, CRITIC_FOLDER
from relax_core.config.rules.base import Rule
from relax_core.config.rules.kinds import estimator, fills, is_model, is_rl, local, newest_iteration
from relax_core.config.values import Values
from relax_core.training.checkpoint_names import iteration_of


def _critic_step(values: Values) -> tuple[int | None, int | None]:
    """Steps of the checkpoints that a critic and its actor go on from; None: none, or not to be seen from here."""
    if not is_rl(values) or not estimator(values).needs_critic or values.critic_load == values.load:
        return None, None
    return _step_of(values.critic_load), _step_of(values.load)


def _step_of(place: str | None) -> int | None:
    """The step that a place names (``.../iter_0000012``), else its newest."""
    named = None if place is None else iteration_of(place)
    return newest_iteration(place) if named is None else named


def _two_steps(values: Values) -> list[dict[str, Any]]:
    critic, actor = _critic_step(values)
    return [] if critic is None or actor is None or critic == actor else [{"critic": critic, "actor": actor}]


def _one_step(values: Values) -> list[dict[str, Any]]:
    critic, actor = _critic_step(values)
    if (critic is None) == (actor is None):
        return []
    saved, fresh = ("critic", "actor") if actor is None else ("actor", "critic")
    return [{"saved": saved, "fresh": fresh, "step": critic if actor is None else actor}]


def _same_folder(values: Values) -> list[dict[str, Any]]:
    """Where actor and critic are both saved, whoever named the folder and however it is written."""
    critic_is_saved = is_rl(values) and estimator(values).needs_critic
    if not critic_is_saved and values.critic_save is None:
        return []
    run = str(values.run_dir).rstrip("/")
    actor = values.save or f"{run}/{ACTOR_FOLDER}"
    critic = values.critic_save or f"{run}/{CRITIC_FOLDER}"
    return [{"value": critic}] if _canonical(actor) == _canonical(critic) else []


def _canonical(place: str) -> str:
    """A folder's absolute path; another file system's URL as it is."""
    path = local(place)
    return place.rstrip("/") if path is None else os.path.realpath(path)


RULES: tuple[Rule, ...] = (
    Rule(
        name="rotation-has-landmarks",
        option="rotate_ckpt",
        reads=("rotate_ckpt", "save_interval"),
        broken=lambda v: v.rotate_ckpt and v.save_interval is None,
        message="needs --save-interval: of the older checkpoints it keeps those at its multiples.",
    ),
    Rule(
        name="rotation-in-the-background",
        option="rotate_ckpt",
        reads=("rotate_ckpt", "async_save"),
        broken=lambda v: v.rotate_ckpt and not v.async_save,
        message="needs --async-save: it saves after every step.",
    ),
    Rule(
        name="keep-of-several",
        option="max_actor_ckpt_to_keep",
        reads=("max_actor_ckpt_to_keep", "save_interval"),
        broken=lambda v: v.max_actor_ckpt_to_keep is not None and v.save_interval is None,
        message="deletes nothing without --save-interval: only the last step is saved.",
        severity="warning",
    ),
    Rule(
        name="resume-needs-the-optimiser",
        option="no_save_optim",
        reads=("no_save_optim",),
        broken=lambda v: v.no_save_optim,
        message="means that this run cannot go on from its checkpoints: they hold no optimiser state.",
        severity="warning",
    ),
    Rule(
        name="export-placeholder",
        option="save_hf",
        reads=("save_hf",),
        broken=lambda v: not fills(v.save_hf, "rollout_id"),
        message="the only placeholder that it may contain is {{rollout_id}}.",
    ),
    Rule(
        name="exports-do-not-meet",
        option="save_hf",
        reads=("save_hf", "save_interval"),
        broken=lambda v: v.save_hf and v.save_interval is not None and "{rollout_id" not in v.save_hf,
        message="is one place for the exports of all checkpoints: each replaces the one before.",
        fix="Put {{rollout_id}} into it to keep them.",
        severity="warning",
    ),
    Rule(
        name="reference-step-needs-a-reference",
        option="ref_ckpt_step",
        reads=("ref_ckpt_step", "ref_load"),
        broken=lambda v: v.ref_ckpt_step is not None and v.ref_load is None,
        message="needs --ref-load, the folder of its checkpoints.",
    ),
    Rule(
        name="a-model-has-no-steps",
        option="ref_ckpt_step",
        reads=("ref_ckpt_step", "ref_load"),
        broken=lambda v: v.ref_ckpt_step is not None and is_model(v.ref_load),
        message="chooses among checkpoints, and --ref-load {ref_load} is one model.",
        fix="Leave it out.",
    ),
    Rule(
        name="teacher-step-needs-a-teacher",
        option="opd_teacher_ckpt_step",
        reads=("use_opd", "opd_teacher_ckpt_step", "opd_teacher_load"),
        broken=lambda v: v.use_opd and v.opd_teacher_ckpt_step is not None and v.opd_teacher_load is None,
        message="needs --opd-teacher-load, the folder of its checkpoints.",
    ),
    Rule(
        name="a-teacher-model-has-no-steps",
        option="opd_teacher_ckpt_step",
        reads=("use_opd", "opd_teacher_ckpt_step", "opd_teacher_load"),
        broken=lambda v: v.use_opd and v.opd_teacher_ckpt_step is not None and is_model(v.opd_teacher_load),
        message="chooses among checkpoints, and --opd-teacher-load {opd_teacher_load} is one model.",
        fix="Leave it out.",
    ),
    Rule(
        name="load-starts-at-step-0",
        option="load",
        reads=("load", "ref_load", "start_rollout_id"),
        broken=lambda v: v.start_rollout_id is None and v.load != v.ref_load and newest_iteration(v.load) is not None,
        message="gives this run its first weights, without optimiser state; its steps are counted from 0.",
        fix="To go on with the run that saved it, give the --run-dir of that run.",
        severity="warning",
    ),
    Rule(
        name="steps-remain",
        option="start_rollout_id",
        reads=("start_rollout_id", "num_rollout"),
        broken=lambda v: (
            v.start_rollout_id is not None and v.num_rollout is not None and v.start_rollout_id >= v.num_rollout
        ),
        message="leaves none of --num-rollout {num_rollout} steps, which are counted from 0.",
    ),
    # PPO
    Rule(
        name="critic-of-the-same-step",
        option="critic_load",
        reads=("critic_load", "load", "advantage_estimator", "loss_type"),
        each=_two_steps,
        message="is at step {critic}, and --load {load} at step {actor}: actor and critic go on together.",
        fix="Give two checkpoints of one step.",
    ),
    Rule(
        name="critic-and-actor-begin-together",
        option="critic_load",
        reads=("critic_load", "load", "advantage_estimator", "loss_type"),
        each=_one_step,
        message="the {saved} has a checkpoint of step {step}, and the {fresh} has none: their training begins apart.",
        fix="Give two checkpoints of one step, or none.",
        severity="warning",
    ),
    Rule(
        name="saves-do-not-meet",
        option="critic_save",
        reads=("critic_save", "save", "run_dir", "advantage_estimator", "loss_type"),
        each=_same_folder,
        message="is where the actor is saved too: the critic's checkpoints would replace the actor's.",
        fix="Give it a folder of its own.",
    ),
    Rule(
        name="weights-have-a-transport",
        option="checkpoint_engine_backend",
        reads=("checkpoint_engine_backend",),
        broken=lambda v: v.checkpoint_engine_backend not in ("nccl", "gloo"),
        message="is no transport of weights.",
        fix="Use nccl or gloo.",
    ),
)
