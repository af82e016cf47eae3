"""Rules of training that overlaps with generation, and of how old the data may be.

Guarantee: what needs a whole step, or the same devices, is refused where steps overlap. Whether a package is there is
found out without importing it.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from relax_core.config.options import flag_of
from relax_core.config.rules.base import Rule
from relax_core.config.rules.kinds import estimator, estimator_text, idle, is_rl
from relax_core.config.values import Values


def _split_groups(values: Values) -> list[dict[str, Any]]:
    size, parts, group = values.global_batch_size, values.num_iters_per_train_update, values.n_samples_per_prompt
    if not values.fully_async or not is_rl(values) or size is None or size % (parts * group) == 0:
        return []
    into = f"into {parts} parts of whole groups" if parts > 1 else "into whole groups"
    other = ", or give another --num-iters-per-train-update" if parts > 1 else ""
    return [{"into": into, "unit": parts * group, "other": other}]


_WHOLE_STEPS = {
    "over_sampling_batch_size": "the groups of a step are known when it ends",
    "dynamic_sampling_filter_path": "the groups of a step are known when it ends",
    "use_opd": "the log-probs of a teacher are asked for when the step is generated",
    "offload_train": "the trainer gives up its gradients when it leaves the device",
    "custom_loss_function_path": "the function may keep what it has seen of a batch",
    "custom_tis_function_path": "the function is asked about the whole batch first",
    "rollout_data_postprocess_path": "the function gets the samples of a whole step",
    "custom_reward_post_process_path": "the function gets the samples of a whole step",
    "custom_convert_samples_to_train_data_path": "the function gets the samples of a whole step",
}
"""Options with which no slice is trained on ahead (``relax_core.batching.slices``, ``relax_core.run.feeding``), and
why."""


def _late_slices(values: Values) -> Iterator[dict[str, Any]]:
    if not values.fully_async or not is_rl(values) or values.num_iters_per_train_update == 1:
        return
    more = (values.over_sampling_batch_size or 0) > (values.rollout_batch_size or 0)
    read = values.use_tis or values.get_mismatch_metrics
    unread = {
        "over_sampling_batch_size": not more,
        "custom_tis_function_path": not read,
        "custom_loss_function_path": values.loss_type != "custom_loss",
    }
    for name, why in _WHOLE_STEPS.items():
        if values[name] and not unread.get(name):
            yield {"other": flag_of(name), "why": why}
            return


RULES: tuple[Rule, ...] = (
    Rule(
        name="one-update-is-on-policy",
        option="fully_async",
        reads=(
            "fully_async",
            "loss_type",
            "max_staleness",
            "true_on_policy_mode",
            "rollout_batch_size",
            "n_samples_per_prompt",
            "global_batch_size",
        ),
        broken=lambda v: (
            v.fully_async
            and is_rl(v)
            and v.max_staleness == 0  # older samples may need a correction
            and not v.true_on_policy_mode
            and v.samples > 0
            and v.samples == v.global_batch_size
        ),
        message="turns --true-on-policy-mode on: one update takes all {samples} samples of a step.",
        corrects=lambda v: {"true_on_policy_mode": True},
    ),
    Rule(
        name="fetch-once-with-routing",
        option="per_rank_fetch",
        reads=("per_rank_fetch", "use_rollout_routing_replay", "loss_type"),
        broken=lambda v: is_rl(v) and v.per_rank_fetch and v.use_rollout_routing_replay,
        message="is off: the experts that --use-rollout-routing-replay records can only be broadcast.",
        corrects=lambda v: {"per_rank_fetch": False},
    ),
    Rule(
        name="async-has-its-own-devices",
        option="fully_async",
        reads=("fully_async", "colocate"),
        broken=lambda v: v.fully_async and v.colocate,
        message="cannot be used with --colocate: generation and training run at the same time.",
        fix="Leave one out.",
    ),
    Rule(
        name="async-estimators",
        option="advantage_estimator",
        reads=("advantage_estimator", "fully_async", "loss_type"),
        broken=lambda v: v.fully_async and is_rl(v) and estimator(v).sync_only,
        message="cannot be used with --fully-async: it needs a whole step of samples by the current weights.",
        fix=f"Use {estimator_text(lambda spec: not spec.sync_only)}, or leave --fully-async out.",
    ),
    Rule(
        name="async-sees-no-whole-batch",
        option="normalize_advantages",
        reads=("normalize_advantages", "fully_async", "loss_type", "advantage_estimator"),
        broken=lambda v: v.normalize_advantages and v.fully_async and is_rl(v) and not estimator(v).sync_only,
        message="cannot be used with --fully-async: advantages are computed before the whole batch is there.",
        fix="Leave one out.",
    ),
    Rule(
        name="async-teacher-is-a-server",
        option="opd_type",
        reads=("opd_type", "use_opd", "fully_async"),
        broken=lambda v: v.fully_async and v.use_opd and v.opd_type == "megatron",
        message="cannot be used with --fully-async: the trainer has no time of its own for a teacher.",
        fix="Use --opd-type sglang.",
    ),
    idle(
        "ahead-of-whom",
        ("max_staleness",),
        ("fully_async",),
        lambda v: not v.fully_async,
        "has no effect without --fully-async: each step trains before the next one generates.",
    ),
    Rule(
        name="kept-weights-made-the-samples",
        option="update_weights_interval",
        reads=("update_weights_interval", "use_rollout_logprobs", "use_tis", "loss_type"),
        broken=lambda v: is_rl(v) and v.update_weights_interval > 1 and not (v.use_rollout_logprobs or v.use_tis),
        message="lets engines generate with weights that the trainer has left behind, and nothing corrects for it.",
        fix="Add --use-rollout-logprobs or --use-tis.",
        severity="warning",
    ),
    idle(
        "slices-of-an-async-batch",
        ("num_iters_per_train_update",),
        ("fully_async",),
        lambda v: not v.fully_async,
        "has no effect without --fully-async.",
    ),
    Rule(
        name="slices-are-early",
        option="num_iters_per_train_update",
        reads=(
            "num_iters_per_train_update",
            "fully_async",
            "loss_type",
            "rollout_batch_size",
            "use_tis",
            "get_mismatch_metrics",
            *_WHOLE_STEPS,
        ),
        each=_late_slices,
        message="has no effect with {other}: {why}.",
        fix="Leave one out.",
        severity="warning",
    ),
    Rule(
        name="slices-have-whole-groups",
        option="global_batch_size",
        reads=(
            "fully_async",
            "loss_type",
            "global_batch_size",
            "num_iters_per_train_update",
            "n_samples_per_prompt",
        ),
        each=_split_groups,
        message="does not divide {into} of --n-samples-per-prompt {n_samples_per_prompt}, in which --fully-async hands"
        " it on.",
        fix="Make it a multiple of {unit}{other}.",
    ),
    Rule(
        name="the-queue-is-installed",
        option="data_transport",
        reads=("data_transport",),
        broken=lambda v: v.data_transport == "transfer_queue" and find_spec("transfer_queue") is None,
        message="needs the package TransferQueue, which is not installed.",
        fix="pip install -c requirements/constraints.txt 'relax-rl[queue]', or leave this out.",
    ),
    idle(
        "slices-are-carried",
        ("data_transport",),
        ("fully_async",),
        lambda v: not v.fully_async,
        "has no effect without --fully-async.",
    ),
    idle(
        "a-queue-is-used",
        ("num_data_storage_units", "polling_mode"),
        ("data_transport",),
        lambda v: v.data_transport != "transfer_queue",
        "has no effect without --data-transport transfer_queue.",
    ),
    Rule(
        name="fetching-from-a-queue",
        option="per_rank_fetch",
        reads=("per_rank_fetch", "data_transport", "loss_type"),
        broken=lambda v: is_rl(v) and v.per_rank_fetch and v.data_transport != "transfer_queue",
        message="has no effect without --data-transport transfer_queue: every rank reads from shared memory anyway.",
        fix="Add it, or leave this out.",
        severity="warning",
    ),
    Rule(
        name="fetching-has-enough-sources",
        option="num_data_storage_units",
        reads=("num_data_storage_units", "per_rank_fetch", "tensor_model_parallel_size", "data_transport"),
        broken=lambda v: (
            v.data_transport == "transfer_queue"
            and v.per_rank_fetch
            and v.num_data_storage_units < v.tensor_model_parallel_size
        ),
        message="is fewer than the {tensor_model_parallel_size} tensor-parallel ranks that read at the same time with"
        " --per-rank-fetch.",
        fix="Make it {tensor_model_parallel_size} or more.",
        severity="warning",
    ),
    # True on-policy
    Rule(
        name="on-policy-once-a-step",
        option="true_on_policy_mode",
        reads=("true_on_policy_mode", "loss_type", "num_steps_per_rollout"),
        broken=lambda v: v.true_on_policy_mode and is_rl(v) and (v.num_steps_per_rollout or 1) > 1,
        message="holds for the first of the {num_steps_per_rollout} updates of a step only: the others train on samples"
        " of older weights.",
        fix="Use --num-steps-per-rollout 1.",
        severity="warning",
    ),
    Rule(
        name="on-policy-data-is-fresh",
        option="max_staleness",
        reads=("max_staleness", "true_on_policy_mode", "use_tis", "loss_type"),
        broken=lambda v: v.true_on_policy_mode and is_rl(v) and v.max_staleness > 0 and not v.use_tis,
        message="lets samples come from older weights, and --true-on-policy-mode corrects nothing.",
        fix="Make it 0, or add --use-tis.",
        severity="warning",
    ),
    Rule(
        name="on-policy-takes-its-own-log-probs",
        option="use_rollout_logprobs",
        reads=("use_rollout_logprobs", "true_on_policy_mode"),
        broken=lambda v: v.use_rollout_logprobs and v.true_on_policy_mode,
        message="has no effect with --true-on-policy-mode: the old policy's log-probs are the policy's own.",
        fix="Leave it out.",
        severity="warning",
    ),
)
