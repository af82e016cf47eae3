"""Functions of the user around the rollout: prompts, samples before training, scores, logs.

Guarantee: each is called with the arguments that its option promises; what it raises or returns wrongly is an error
that names the option. A sample that a function changes is changed where the option says so and nowhere else.

``args`` has every option and the keys of ``--custom-args`` as attributes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from data.errors import UserError
from data.prompts import Convert
from data.ragged import Ragged
from data.schema import ROLLOUT, conform
from relax_core.config.options import as_namespace
from relax_core.config.sections import RelaxConfig
from relax_core.functions import UserFunction, load_function
from relax_core.proxy import proxied
from relax_core.rollout.custom import load_generate
from relax_core.rollout.sample import Sample, samples_of


def check_functions(config: RelaxConfig) -> None:
    """Load every function, so that a mistake in one is found before an engine starts.

    Raises:
        UserError: one is missing or cannot be called as it will be.
    """
    for load in (_prompt, _post_process, _scores, _log, _evaluation_log):
        load(config)
    paths = [config.rollout.custom_generate_function_path]
    paths += [one.custom_generate_function_path for one in config.eval.eval_datasets or []]
    for path in dict.fromkeys(filter(None, paths)):
        load_generate(path)


def prompt_converter(config: RelaxConfig) -> Convert | None:
    """``--custom-prompt-path``: ``convert(prompt, row) -> prompt``, before the chat template; None without it."""
    function = _prompt(config)
    if function is None:
        return None

    def convert(prompt: Any, row: dict[str, Any], where: str) -> Any:
        return called(function, f"on {where}", config, prompt, row)

    return convert


def post_processed(rollout: pa.Table, reward: pa.Table, config: RelaxConfig) -> pa.Table:
    """``--rollout-data-postprocess-path``: ``postprocess(args, samples)`` changes samples in place.

    They are all samples of a step with their scores and the engine's log-probs. Taken over are ``loss_mask`` and
    ``remove_sample``.

    Args:
        rollout: N rows of schema ``ROLLOUT``.
        reward: rows of schema ``REWARD`` for the same samples.

    Returns:
        N rows of schema ``ROLLOUT``.

    Raises:
        UserError: it failed, or left samples that do not fit the rollout.
    """
    function = _post_process(config)
    if function is None:
        return rollout
    samples = samples_of(rollout, reward)
    returned = called(function, "on the samples of a step", config, as_namespace(config), samples)
    if returned is not None:
        raise UserError(
            f"{function.name} returned a {type(returned).__name__}.", "Change the samples in place, and return nothing."
        )
    lengths = rollout["response_length"].to_pylist()
    columns = {
        "loss_mask": Ragged.from_list(
            [_mask(function, sample, length) for sample, length in zip(samples, lengths, strict=True)], np.uint8
        ).to_arrow(),
        "remove_sample": pa.array([bool(sample.remove_sample) for sample in samples]),
    }
    rollout = conform(rollout, ROLLOUT)  # columns at their places, in a table of an older version too
    for name, column in columns.items():
        rollout = rollout.set_column(ROLLOUT.get_field_index(name), ROLLOUT.field(name), column)
    return conform(rollout, ROLLOUT)


def processed_scores(
    rollout: pa.Table, reward: pa.Table, config: RelaxConfig
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """``--custom-reward-post-process-path``: ``process(args, samples) -> (raw, processed)``, in place of the
    normalisation over groups; None without it.

    Args:
        rollout: N rows of schema ``ROLLOUT``.
        reward: rows of schema ``REWARD`` for the same samples.

    Returns:
        [N] scores for metrics, and [N] scores to train on, in the order of ``rollout``. NaN: none.

    Raises:
        UserError: it failed, or returned something else than two lists of N numbers.
    """
    function = _scores(config)
    if function is None:
        return None
    samples = samples_of(rollout, reward)
    returned = called(function, "on the samples of a step", config, as_namespace(config), samples)
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise UserError(
            f"{function.name} returned a {type(returned).__name__}, not a pair.", "Return (raw, processed), two lists."
        )
    raw = _numbers(function, "raw", returned[0], len(samples))
    processed = _numbers(function, "processed", returned[1], len(samples))
    if np.isinf(processed).any():
        sample = samples[int(np.isinf(processed).argmax())]
        raise UserError(
            f"{function.name} returned an infinite score for sample {sample.sample_id}.",
            "Return a finite number, or None for a sample that is not trained on.",
        )
    return raw, processed


def log_rollout(
    rollout: pa.Table, reward: pa.Table, config: RelaxConfig, *, step: int, seconds: float
) -> tuple[bool, dict[str, float]]:
    """``--custom-rollout-log-function-path``: ``log(rollout_id, args, samples, extra, time)``.

    Args:
        rollout: N rows of schema ``ROLLOUT``.
        reward: rows of schema ``REWARD`` for the same samples.
        config: resolved.
        step: rollout step.
        seconds: how long the generation took.

    Returns:
        Whether it stands for the usual metrics of the rollout, and the metrics that it has put into ``extra``.

    Raises:
        UserError: it failed, or put something else than numbers into ``extra``.
    """
    function = _log(config)
    if function is None:
        return False, {}
    extra: dict[str, Any] = {}
    samples = samples_of(rollout, reward)
    replaces = called(function, f"in step {step}", config, step, as_namespace(config), samples, extra, seconds)
    return bool(replaces), _metrics(function, extra)


def log_evaluation(tables: Mapping[str, pa.Table], config: RelaxConfig, *, step: int) -> tuple[bool, dict[str, float]]:
    """``--custom-eval-rollout-log-function-path``: ``log(rollout_id, args, data, extra)``.

    ``data`` is, for the name of each set, ``{"rewards": [...], "truncated": [...], "samples": [...]}``.

    Args:
        tables: name of a set to its rows of schema ``EVAL``.
        config: resolved.
        step: rollout step; -1 before training.

    Returns:
        Whether it stands for the usual metrics of evaluation, and the metrics that it has put into ``extra``.

    Raises:
        UserError: it failed, or put something else than numbers into ``extra``.
    """
    function = _evaluation_log(config)
    if function is None:
        return False, {}
    data, extra = {}, dict[str, Any]()
    for name, table in tables.items():
        samples = samples_of(table, table)
        data[name] = {
            "rewards": [sample.reward for sample in samples],
            "truncated": [sample.status == Sample.Status.TRUNCATED for sample in samples],
            "samples": samples,
        }
    replaces = called(function, f"after step {step}", config, step, as_namespace(config), data, extra)
    return bool(replaces), _metrics(function, extra)


def advantage_sources(config: RelaxConfig) -> dict[str, str]:
    """The sources of the functions that decide what is trained on, for the identity of that stage."""
    functions = [_post_process(config), _scores(config)]
    return {function.option: function.source_hash for function in functions if function is not None}


def _load(path: str | None, option: str, signature: str, arguments: int) -> UserFunction | None:
    if not path:
        return None
    function = load_function(path, option, signature, arguments)
    if function.is_async:
        raise UserError(f"{function.name} is a coroutine function.", f"Define it as `def {signature}`.")
    return function


def _prompt(config: RelaxConfig) -> UserFunction | None:
    return _load(config.data.custom_prompt_path, "--custom-prompt-path", "convert(prompt, row)", 2)


def _post_process(config: RelaxConfig) -> UserFunction | None:
    path, option = config.rollout.rollout_data_postprocess_path, "--rollout-data-postprocess-path"
    return _load(path, option, "postprocess(args, samples)", 2)


def _scores(config: RelaxConfig) -> UserFunction | None:
    path, option = config.reward.custom_reward_post_process_path, "--custom-reward-post-process-path"
    return _load(path, option, "process(args, samples)", 2)


def _log(config: RelaxConfig) -> UserFunction | None:
    path, option = config.rollout.custom_rollout_log_function_path, "--custom-rollout-log-function-path"
    return _load(path, option, "log(rollout_id, args, samples, extra, time)", 5)


def _evaluation_log(config: RelaxConfig) -> UserFunction | None:
    path, option = config.rollout.custom_eval_rollout_log_function_path, "--custom-eval-rollout-log-function-path"
    return _load(path, option, "log(rollout_id, args, data, extra)", 4)


def called(function: UserFunction, what: str, config: RelaxConfig, *arguments: Any) -> Any:
    """What a function of the user returns, under --http-proxy.

    Raises:
        UserError: it failed; names the function and ``what`` it was called for.
    """
    try:
        with proxied(config.debug.http_proxy):
            return function.call(*arguments)
    except UserError:
        raise
    except Exception as error:
        raise function.failure(what, error) from error


def _metrics(function: UserFunction, extra: dict[str, Any]) -> dict[str, float]:
    try:
        return {str(name): float(value) for name, value in extra.items()}
    except (TypeError, ValueError) as error:
        raise UserError(f"{function.name} put something else than numbers into `extra`: {error}.") from error


def _mask(function: UserFunction, sample: Sample, length: int) -> NDArray[np.uint8]:
    mask = np.ones(length) if sample.loss_mask is None else np.asarray(sample.loss_mask)
    if mask.shape != (length,) or not np.isin(mask, (0, 1)).all():
        raise UserError(
            f"{function.name} left a loss_mask of sample {sample.sample_id} that is not {length} times 0 or 1.",
            "It has one entry for each token of the response.",
        )
    return mask.astype(np.uint8)


def _numbers(function: UserFunction, name: str, values: Any, count: int) -> NDArray[np.float64]:
    """[N] float64; None becomes NaN."""
    try:
        listed: Sequence[Any] = values.tolist() if hasattr(values, "tolist") else list(values)
        numbers = np.array([np.nan if value is None else float(value) for value in listed], np.float64)
    except (TypeError, ValueError) as error:
        raise UserError(f"{function.name} returned {name} scores that are no numbers: {error}.") from error
    if len(numbers) != count:
        raise UserError(
            f"{function.name} returned {len(numbers)} {name} scores for {count} samples.", "Return one for each sample."
        )
    return numbers
