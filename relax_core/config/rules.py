"""The rules between options, and the check of a whole configuration.

Guarantee: ``check`` finds every mistake at once, without starting anything and without importing torch; a rule is left
out only where an option that it needs is wrong already. Each rule is one short function in the list of its module.
"""

from collections.abc import Callable, Iterator
from typing import Literal

from relax_core.config import derived
from relax_core.config.files import check_files
from relax_core.config.model_rules import MODEL_RULES
from relax_core.config.options import OPTIONS, get_option
from relax_core.config.problems import Problem, nearest, raise_problems
from relax_core.config.ranges import RANGES
from relax_core.config.resolve import FOLLOWS, resolve
from relax_core.config.sections import RelaxConfig

Purpose = Literal["train", "evaluate"]
"""What the configuration is for: the options that are required differ."""

ROLES = ("actor", "rollout")
"""The roles that ``--resource`` can name: trainer and engines."""

Rule = Callable[[RelaxConfig], Iterator[Problem]]


def check(config: RelaxConfig, purpose: Purpose = "train") -> list[Problem]:
    """Everything that is wrong with a configuration, resolved or not, in the order of the options."""
    return _resolve_and_check(config, purpose)[1]


def validate(config: RelaxConfig, purpose: Purpose = "train") -> None:
    """Raise one `UserError` that lists everything ``check`` finds; return when that is nothing."""
    prepare(config, purpose)


def prepare(config: RelaxConfig, purpose: Purpose = "train") -> RelaxConfig:
    """The resolved and valid form of what a person gave: the configuration that a run is made of.

    Raises:
        UserError: everything that ``check`` finds.
    """
    config, problems = _resolve_and_check(config, purpose)
    raise_problems(problems)
    return config


def _resolve_and_check(config: RelaxConfig, purpose: Purpose) -> tuple[RelaxConfig, list[Problem]]:
    model, files = check_files(config, purpose)
    config = resolve(config, model)
    problems = [*_required(config, purpose), *_ranges(config)]
    wrong = {problem.option for problem in problems}
    for needs, rule in RULES:
        if not wrong.intersection(OPTIONS[name].flag for name in needs):
            problems += rule(config)
    if model is not None:
        for needs, model_rule in MODEL_RULES:
            if not wrong.intersection(OPTIONS[name].flag for name in needs):
                problems += model_rule(config, model)
    return config, [*problems, *files]


def _required(config: RelaxConfig, purpose: Purpose) -> Iterator[Problem]:
    names = ["hf_checkpoint"]
    names += ["prompt_data", "rollout_batch_size"] if purpose == "train" else ["eval_prompt_data"]
    for name in names:
        if get_option(config, name) in (None, "", []):
            yield Problem(OPTIONS[name].flag, None, "is required.", OPTIONS[name].help)
    rollout = config.rollout
    if purpose == "train" and rollout.num_rollout is None and rollout.num_epoch is None:
        yield Problem("--num-rollout", None, "is required, or --num-epoch.", "It says how many steps the run has.")
    lengths = [rollout.rollout_max_response_len, rollout.rollout_max_context_len]
    if purpose == "evaluate":
        lengths.append(config.eval.eval_max_response_len)
    if all(length is None for length in lengths):
        fix = "Without a bound a response may fill the model's whole context."
        yield Problem("--rollout-max-response-len", None, "is required, or --rollout-max-context-len.", fix)
    if config.reward.rm_type is None and config.reward.custom_rm_path is None:
        reason = "is required, or --custom-rm-path."
        yield Problem("--rm-type", None, reason, "It scores every sample whose metadata names no rm_type.")


def _ranges(config: RelaxConfig) -> Iterator[Problem]:
    for name, allowed in RANGES.items():
        value = get_option(config, name)
        if value is not None and not allowed.holds(value) and not _is_copy(config, name):
            yield Problem(OPTIONS[name].flag, value, f"must be {allowed.text}.")


def _is_copy(config: RelaxConfig, name: str) -> bool:
    """Whether a value is that of the option it follows, so that a mistake in it is told there, once."""
    return name in FOLLOWS and get_option(config, name) == get_option(config, FOLLOWS[name])


def _resource_names_roles(config: RelaxConfig) -> Iterator[Problem]:
    resource = config.cluster.resource
    for role in resource:
        if role not in ROLES:
            hint = nearest(role, ROLES) or f"Roles: {', '.join(ROLES)}."
            yield Problem("--resource", role, "is no role of this loop.", hint)
    for role in ROLES:
        if role not in resource:
            yield Problem("--resource", None, f"gives no devices to the role {role}.", f'Add "{role}":[1,1].')
            continue
        replicas, devices = resource[role]
        if replicas != 1:
            yield Problem(
                "--resource", f"{role} {replicas}", "replicas must be 1.", "More devices go in the second place."
            )
        if devices < 1:
            yield Problem("--resource", f"{role} {devices}", "devices must be 1 or more.")


def _engines_share_out_devices(config: RelaxConfig) -> Iterator[Problem]:
    devices, size = derived.role_devices(config, "rollout"), config.cluster.rollout_num_gpus_per_engine
    if devices % size:
        reason = f"does not divide the {devices} devices of the role rollout."
        yield Problem("--rollout-num-gpus-per-engine", size, reason, "Change it, or --resource.")


def _world_holds_whole_models(config: RelaxConfig) -> Iterator[Problem]:
    world, model = derived.trainer_world_size(config), derived.model_parallel_size(config)
    if world % model:
        tensor, pipeline = config.parallel.tensor_model_parallel_size, config.parallel.pipeline_model_parallel_size
        reason = (
            f"tensor {tensor} x pipeline {pipeline} = {model} does not divide the {world} devices of the role actor."
        )
        yield Problem("--tensor-model-parallel-size", tensor, reason, "Change the parallel sizes, or --resource.")


def _batches_fill_a_step(config: RelaxConfig) -> Iterator[Problem]:
    samples, size, steps = (
        derived.samples_per_step(config),
        config.batch.global_batch_size,
        config.batch.num_steps_per_rollout,
    )
    made_of = (
        f"--rollout-batch-size {config.rollout.rollout_batch_size} x --n-samples-per-prompt"
        f" {config.rollout.n_samples_per_prompt} = {samples} samples a step"
    )
    if not samples:
        return
    if size is None:
        reason = f"is more than there are samples: {made_of}."
        yield Problem("--num-steps-per-rollout", steps, reason, f"It can be at most {samples}.")
    elif samples % size:
        if steps is not None and samples // steps == size:
            yield Problem("--num-steps-per-rollout", steps, f"does not divide {made_of}.")
        else:
            yield Problem("--global-batch-size", size, f"does not divide {made_of}.")
    elif steps is not None and samples // size != steps:
        reason = f"does not agree with --num-steps-per-rollout {steps}: {made_of}, which is {samples // size} steps."
        yield Problem("--global-batch-size", size, reason, "Give one of the two.")


def _batch_splits_over_replicas(config: RelaxConfig) -> Iterator[Problem]:
    size, replicas = config.batch.global_batch_size, derived.data_parallel_size(config)
    if size is not None and replicas and size % replicas:
        reason = f"cannot be shared out evenly over {replicas} data-parallel replicas."
        yield Problem("--global-batch-size", size, reason, f"Make it a multiple of {replicas}.")


def _layout_is_packed(config: RelaxConfig) -> Iterator[Problem]:
    if config.backend.qkv_format == "bshd":
        fix = "Use --qkv-format thd: the same loss, without computing on padding."
        yield Problem("--qkv-format", "bshd", "padded micro-batches are not supported by this version.", fix)


def _dynamic_batch_has_a_budget(config: RelaxConfig) -> Iterator[Problem]:
    batch = config.batch
    if batch.use_dynamic_batch_size and batch.max_tokens_per_gpu is None:
        reason = "needs --max-tokens-per-gpu, the tokens of a micro-batch."
        yield Problem("--use-dynamic-batch-size", None, reason)
    if not batch.use_dynamic_batch_size and batch.max_tokens_per_gpu is not None:
        reason = "has no effect without --use-dynamic-batch-size."
        yield Problem("--max-tokens-per-gpu", batch.max_tokens_per_gpu, reason, "Add it, or leave this out.")


def _lengths_fit_context(config: RelaxConfig) -> Iterator[Problem]:
    context = config.rollout.rollout_max_context_len
    if context is None:
        return
    for name in ("rollout_max_prompt_len", "rollout_max_response_len", "eval_max_response_len"):
        length = get_option(config, name)
        if length is not None and length > context - 1 and not _is_copy(config, name):
            other = "response" if "prompt" in name else "prompt"
            reason = f"leaves no room for a {other} in a context of {context} tokens."
            yield Problem(OPTIONS[name].flag, length, reason, f"It can be at most {context - 1}.")
    engine = config.sglang.sglang_context_length
    if engine is not None and engine < context:
        reason = f"is below --rollout-max-context-len {context}: the engine would cut responses short."
        yield Problem("--sglang-context-length", engine, reason, f"Make it {context} or more, or leave it out.")


def _learning_rates_fit(config: RelaxConfig) -> Iterator[Problem]:
    optimizer = config.optimizer
    if optimizer.lr_decay_style != "constant" and optimizer.min_lr > optimizer.lr:
        yield Problem("--min-lr", optimizer.min_lr, f"is above --lr {optimizer.lr}.")


def _sequence_parallel_has_ranks(config: RelaxConfig) -> Iterator[Problem]:
    if config.parallel.sequence_parallel and config.parallel.tensor_model_parallel_size == 1:
        yield Problem("--sequence-parallel", None, "needs --tensor-model-parallel-size above 1.")


def _recompute_is_whole(config: RelaxConfig) -> Iterator[Problem]:
    parallel = config.parallel
    full = parallel.recompute_granularity == "full"
    for name in ("recompute_method", "recompute_num_layers"):
        value = get_option(config, name)
        if full and value is None:
            yield Problem(OPTIONS[name].flag, None, "is required with --recompute-granularity full.")
        if not full and value is not None:
            yield Problem(OPTIONS[name].flag, value, "has an effect only with --recompute-granularity full.")


def _kl_is_weighted(config: RelaxConfig) -> Iterator[Problem]:
    algorithm = config.algorithm
    if algorithm.kl_loss_coef and not algorithm.use_kl_loss:
        reason = "has no effect without --use-kl-loss."
        yield Problem("--kl-loss-coef", algorithm.kl_loss_coef, reason, "Add it, or leave this out.")
    if algorithm.use_kl_loss and not algorithm.kl_loss_coef and "kl_loss_coef" not in algorithm.model_fields_set:
        reason = "needs --kl-loss-coef, the weight of the KL."
        yield Problem("--use-kl-loss", None, reason, "A weight of 0 only measures the KL.")
    if algorithm.use_unbiased_kl and not algorithm.use_kl_loss:
        yield Problem("--use-unbiased-kl", None, "has no effect without --use-kl-loss.")


def _evaluation_has_sets(config: RelaxConfig) -> Iterator[Problem]:
    pairs = config.eval.eval_prompt_data
    if config.eval.eval_interval is not None and not pairs:
        yield Problem("--eval-interval", config.eval.eval_interval, "needs --eval-prompt-data NAME PATH.")
    if not pairs:
        return
    if len(pairs) % 2:
        reason = f"expects pairs of name and path, and got {len(pairs)} words."
        yield Problem("--eval-prompt-data", pairs, reason, "Only one path alone needs no name.")
        return
    names = pairs[::2]
    for name in sorted(set(names)):
        if not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or name.startswith("."):
            reason = "is no name of an evaluation set: letters, digits, '-', '_' and '.' are."
            yield Problem("--eval-prompt-data", name, reason, "Pairs are a name, then its path.")
        if names.count(name) > 1:
            yield Problem("--eval-prompt-data", name, "names two sets.", "Give each set a name of its own.")


def _export_path_formats(config: RelaxConfig) -> Iterator[Problem]:
    path = config.checkpoint.save_hf
    try:
        (path or "").format(rollout_id=0)
    except (KeyError, IndexError, ValueError, AttributeError):
        yield Problem("--save-hf", path, "the only placeholder that it may contain is {rollout_id}.")


_SIZES = ("rollout_batch_size", "n_samples_per_prompt", "global_batch_size", "num_steps_per_rollout")
_MODEL_SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size")
_LENGTHS = ("rollout_max_context_len", "rollout_max_prompt_len", "rollout_max_response_len", "eval_max_response_len")

RULES: tuple[tuple[tuple[str, ...], Rule], ...] = (
    ((), _resource_names_roles),
    (("rollout_num_gpus_per_engine",), _engines_share_out_devices),
    (_MODEL_SIZES, _world_holds_whole_models),
    (("kl_loss_coef",), _kl_is_weighted),
    (_SIZES, _batches_fill_a_step),
    ((*_SIZES, *_MODEL_SIZES), _batch_splits_over_replicas),
    ((), _layout_is_packed),
    (("max_tokens_per_gpu",), _dynamic_batch_has_a_budget),
    ((*_LENGTHS, "sglang_context_length"), _lengths_fit_context),
    (("lr", "min_lr"), _learning_rates_fit),
    (("tensor_model_parallel_size",), _sequence_parallel_has_ranks),
    (("recompute_num_layers",), _recompute_is_whole),
    (("eval_interval", "eval_prompt_data"), _evaluation_has_sets),
    ((), _export_path_formats),
)
"""Every rule with the options that it can only judge when they are right by themselves."""
