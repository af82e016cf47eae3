"""The rules between the options and the model's shape.

Guarantee: a split that the model does not allow is refused before anything starts, with both numbers.
"""

from collections.abc import Callable, Iterator

from relax_core.config.derived import longest_sample
from relax_core.config.options import OPTIONS, get_option
from relax_core.config.problems import Problem
from relax_core.config.sections import RelaxConfig
from relax_core.training.shape import ModelShape

ModelRule = Callable[[RelaxConfig, ModelShape], Iterator[Problem]]


def _context_fits_model(config: RelaxConfig, model: ModelShape) -> Iterator[Problem]:
    for name in ("rollout_max_context_len", "sglang_context_length"):
        context = get_option(config, name)
        if context is not None and context > model.max_positions:
            reason = f"is more than the model's {model.max_positions} positions (config.json)."
            yield Problem(OPTIONS[name].flag, context, reason)


def _tensor_parallel_fits_model(config: RelaxConfig, model: ModelShape) -> Iterator[Problem]:
    size = config.parallel.tensor_model_parallel_size
    counts = {
        "attention heads": model.heads,
        "key-value heads": model.kv_heads,
        "vocabulary entries": model.vocab,
        "feed-forward columns": model.ffn,
    }
    for what, count in counts.items():
        if count % size:
            reason = f"does not divide the model's {count} {what}."
            yield Problem("--tensor-model-parallel-size", size, reason)


def _pipeline_fits_model(config: RelaxConfig, model: ModelShape) -> Iterator[Problem]:
    size = config.parallel.pipeline_model_parallel_size
    if model.layers % size:
        reason = f"does not divide the model's {model.layers} layers."
        yield Problem("--pipeline-model-parallel-size", size, reason)
    layers = config.parallel.recompute_num_layers
    if layers is not None and layers > model.layers // size:
        reason = f"is more than the {model.layers // size} layers of a pipeline stage."
        yield Problem("--recompute-num-layers", layers, reason)


def _engine_fits_model(config: RelaxConfig, model: ModelShape) -> Iterator[Problem]:
    size = config.cluster.rollout_num_gpus_per_engine
    if model.heads % size:
        reason = f"does not divide the model's {model.heads} attention heads."
        yield Problem("--rollout-num-gpus-per-engine", size, reason)


def _budget_fits_samples(config: RelaxConfig, model: ModelShape) -> Iterator[Problem]:
    budget, longest = config.batch.max_tokens_per_gpu, longest_sample(config)
    # Where only the model bounds a sample, its limit says nothing about this run's samples: one that is longer than
    # the budget gets a micro-batch of its own.
    bounded = longest is not None and longest < model.max_positions
    if (
        config.batch.use_dynamic_batch_size
        and budget is not None
        and bounded
        and longest is not None
        and budget < longest
    ):
        reason = f"is less than the {longest} tokens that a prompt and its response may have."
        yield Problem("--max-tokens-per-gpu", budget, reason, f"Make it {longest} or more, or shorten the samples.")


def _token_ids_exist(config: RelaxConfig, model: ModelShape) -> Iterator[Problem]:
    for token in config.rollout.rollout_stop_token_ids or ():
        if token >= model.vocab:
            reason = f"is outside the model's vocabulary of {model.vocab} entries."
            yield Problem("--rollout-stop-token-ids", token, reason)


MODEL_RULES: tuple[tuple[tuple[str, ...], ModelRule], ...] = (
    (("rollout_max_context_len", "sglang_context_length"), _context_fits_model),
    (("tensor_model_parallel_size",), _tensor_parallel_fits_model),
    (("pipeline_model_parallel_size", "recompute_num_layers"), _pipeline_fits_model),
    (("rollout_num_gpus_per_engine",), _engine_fits_model),
    (("max_tokens_per_gpu", "rollout_max_context_len", "rollout_max_response_len"), _budget_fits_samples),
    (("rollout_stop_token_ids",), _token_ids_exist),
)
"""Every rule with the options that it can only judge when they are right by themselves."""
