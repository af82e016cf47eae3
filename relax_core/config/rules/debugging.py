"""Rules of debugging and profiling.

Guarantee: two options of which each leaves out what the other needs are refused; what would be recorded never, or over
itself, is told.
"""

from collections.abc import Iterator
from typing import Any

from relax_core.config.forward import forward_needs
from relax_core.config.rules.base import Rule
from relax_core.config.rules.kinds import fills, idle, is_rl
from relax_core.config.values import Values

_PROFILER = (
    "profile_step_start",
    "profile_step_end",
    "profile_target",
    "profile_with_stack",
    "profile_with_memory",
    "profile_with_flops",
)
_MEMORY = ("memory_snapshot_path", "memory_snapshot_dir", "memory_snapshot_num_steps", "memory_recorder")

_PASSES = (
    "loss_type",
    "advantage_estimator",
    "kl_coef",
    "use_opd",
    "opd_type",
    "use_rollout_logprobs",
    "disable_compute_advantages_and_returns",
)
"""What ``_needs_trainers`` reads."""

PLACEHOLDERS: dict[str, tuple[str, ...]] = {
    "load_debug_rollout_data": ("rollout_id",),
    "save_debug_rollout_data": ("rollout_id",),
    "save_debug_train_data": ("rollout_id", "rank"),
}
"""Option with a path -> the placeholders that it may contain."""

DUMPS = {
    "save_debug_rollout_data": "rollout_data/{rollout_id}.parquet",
    "save_debug_train_data": "train_data/{rollout_id}_{rank}.parquet",
}
"""Option -> its path in the folder of ``--dump-details``."""


def _needs_trainers(values: Values) -> bool:
    """Whether the advantages need a pass of the policy, the reference or the critic. Reads ``_PASSES``."""
    needs = forward_needs(values.config)
    return is_rl(values) and bool(needs.policy or needs.critic)


def _bad_placeholders(values: Values) -> Iterator[dict[str, Any]]:
    for name, known in PLACEHOLDERS.items():
        if not fills(values[name], *known):
            yield {"option": name, "known": " and ".join(f"{{{placeholder}}}" for placeholder in known)}


def _overwritten(values: Values) -> Iterator[dict[str, Any]]:
    for name in ("save_debug_rollout_data", "save_debug_train_data"):
        path = values[name]
        if path and "{rollout_id" not in path and values.num_rollout != 1:
            yield {"option": name}


def _dumps(values: Values) -> dict[str, str]:
    """The paths that ``--dump-details`` adds. Reads it and the two paths."""
    folder = values.dump_details
    if not folder:
        return {}
    escaped = folder.rstrip("/").replace("{", "{{").replace("}", "}}")
    return {name: f"{escaped}/{path}" for name, path in DUMPS.items() if values[name] is None}


def _dumped(values: Values) -> list[dict[str, Any]]:
    names = [f"--{name.replace('_', '-')}" for name in _dumps(values)]
    return [{"names": " and ".join(names)}] if names else []


def _without_engines(values: Values) -> Iterator[dict[str, Any]]:
    if values.debug_train_only:
        if values.check_weight_update_equal:
            yield {"option": "check_weight_update_equal", "value": None, "what": "compares nothing"}
        if values.eval_interval is not None and is_rl(values):
            yield {"option": "eval_interval", "what": "evaluates nothing"}


RULES: tuple[Rule, ...] = (
    Rule(
        name="saved-rollouts-replace-engines",
        option="load_debug_rollout_data",
        reads=("load_debug_rollout_data", "debug_train_only"),
        broken=lambda v: v.load_debug_rollout_data and not v.debug_train_only,
        message="turns --debug-train-only on: nothing is generated.",
        corrects=lambda v: {"debug_train_only": True},
    ),
    Rule(
        name="dump-has-paths",
        option="dump_details",
        reads=("dump_details", *DUMPS),
        each=lambda v: (
            [{"names": " and ".join(f"--{name.replace('_', '-')}" for name in _dumps(v))}] if _dumps(v) else []
        ),
        message="sets {names}.",
        corrects=_dumps,
    ),
    Rule(
        name="half-a-loop",
        option="debug_rollout_only",
        reads=("debug_rollout_only", "debug_train_only"),
        broken=lambda v: v.debug_rollout_only and v.debug_train_only,
        message="cannot be used with --debug-train-only: nothing would be left to do.",
        fix="Leave one out.",
    ),
    Rule(
        name="no-advantages-without-their-models",
        option="debug_rollout_only",
        reads=("debug_rollout_only", *_PASSES),
        broken=lambda v: v.debug_rollout_only and _needs_trainers(v),
        message="makes samples and scores, but no advantages: those of this configuration need passes of models that it"
        " does not start.",
        severity="warning",
    ),
    Rule(
        name="training-alone-has-data",
        option="debug_train_only",
        reads=("debug_train_only", "load_debug_rollout_data", "loss_type"),
        broken=lambda v: v.debug_train_only and not v.load_debug_rollout_data and is_rl(v),
        message="needs --load-debug-rollout-data, the samples to train on.",
        shows=False,
    ),
    Rule(
        name="training-alone-has-no-engines",
        option="debug_train_only",
        reads=("debug_train_only", "check_weight_update_equal", "eval_interval", "loss_type"),
        each=_without_engines,
        message="{what} with --debug-train-only, which starts no engine.",
        severity="warning",
    ),
    Rule(
        name="debug-placeholders",
        option="save_debug_rollout_data",
        reads=tuple(PLACEHOLDERS),
        each=_bad_placeholders,
        message="can contain no other placeholder than {known}.",
    ),
    Rule(
        name="rollouts-alone-start-from-the-model",
        option="debug_rollout_only",
        reads=("debug_rollout_only", "load", "ref_load"),
        broken=lambda v: v.debug_rollout_only and v.load is not None,
        message="generates with the weights of --hf-checkpoint: --load and --ref-load need a trainer.",
        fix="Give the model as --hf-checkpoint instead.",
        shows=False,
    ),
    Rule(
        name="dumps-do-not-meet",
        option="save_debug_rollout_data",
        reads=("save_debug_rollout_data", "save_debug_train_data", "num_rollout"),
        each=_overwritten,
        message="is one file for all: each step replaces the one before.",
        fix="Put {{rollout_id}} into it.",
        severity="warning",
    ),
    idle(
        "subsample-of-saved-rollouts",
        ("load_debug_rollout_data_subsample",),
        ("load_debug_rollout_data",),
        lambda v: not v.load_debug_rollout_data,
        "has no effect without --load-debug-rollout-data.",
    ),
    Rule(
        name="recorded-samples-are-not-tracked",
        option="use_tensorboard",
        reads=("use_tensorboard", "load_debug_rollout_data"),
        broken=lambda v: v.use_tensorboard and v.load_debug_rollout_data,
        message="gets nothing with --load-debug-rollout-data: metrics of recorded samples are in metrics.jsonl alone.",
        severity="warning",
    ),
    # Profiler
    Rule(
        name="profiled-steps-in-order",
        option="profile_step_end",
        reads=("profile_step_end", "profile_step_start"),
        broken=lambda v: v.profile_step_end < v.profile_step_start,
        message="is before --profile-step-start {profile_step_start}.",
    ),
    Rule(
        name="profiled-training-happens",
        option="profile_step_start",
        reads=("profile_step_start", "use_pytorch_profiler", "num_rollout"),
        broken=lambda v: v.use_pytorch_profiler and v.num_rollout is not None and v.profile_step_start >= v.num_rollout,
        message="is after the last of --num-rollout {num_rollout} steps, counted from 0: nothing is recorded.",
        fix="Lower it, and --profile-step-end.",
        severity="warning",
    ),
    idle(
        "profile-details-need-the-profiler",
        _PROFILER,
        ("use_pytorch_profiler", "profile"),
        lambda v: not v.use_pytorch_profiler and not v.profile,
        "has no effect without --use-pytorch-profiler.",
    ),
    Rule(
        name="one-profiler-at-a-time",
        option="profile",
        reads=("profile", "use_pytorch_profiler"),
        broken=lambda v: v.profile and v.use_pytorch_profiler,
        message="traces the same kernels as --use-pytorch-profiler: only one of the two gets them.",
        fix="Leave one out.",
        severity="warning",
    ),
    # Memory
    idle(
        "snapshots-need-a-history",
        _MEMORY,
        ("record_memory_history",),
        lambda v: not v.record_memory_history,
        "has no effect without --record-memory-history.",
    ),
    Rule(
        name="snapshot-is-a-file",
        option="memory_snapshot_path",
        reads=("memory_snapshot_path",),
        broken=lambda v: not v.memory_snapshot_path or "/" in v.memory_snapshot_path,
        message="is no file name.",
        fix="Its folder is --memory-snapshot-dir.",
    ),
    Rule(
        name="snapshot-is-taken",
        option="memory_snapshot_num_steps",
        reads=("memory_snapshot_num_steps", "record_memory_history", "num_rollout"),
        broken=lambda v: (
            v.record_memory_history
            and v.memory_snapshot_num_steps is not None
            and v.num_rollout is not None
            and v.memory_snapshot_num_steps > v.num_rollout
        ),
        message="is more than --num-rollout {num_rollout} steps: a snapshot is left only where memory runs out.",
        severity="warning",
    ),
)
