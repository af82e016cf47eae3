"""Functions of the user, by whose convention they are called: relax, slime, verl, TRL or verifiers.

Guarantee: a function is called with the names and shapes that its own system gives it, as far as a reward has them;
what it asks for and a reward does not have is an error before the run, or names the sample. Which convention it is
comes from the names of its arguments, and where those fit none or several it is an error that lists them.

The conventions: slime's `(args, sample)`; verl's `compute_score(data_source, solution_str, ground_truth, extra_info)`,
or the plural names of its batches; TRL's `(completions, prompts, **columns) -> list`; the rubric functions of
verifiers, which take by name what they need of `prompt, completion, answer, info, state, task`.
"""

import inspect
import json
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from data.errors import UserError
from relax_core.rewards.signatures import (
    SHAPES,
    SIGNATURE,
    VERIFIERS,
    VERIFIERS_GROUP,
    VERL,
    VERL_BATCH,
    Parameters,
    recognised,
)
from relax_core.rewards.types import Convention, RewardFunction, RewardInput

EXPECTED: dict[Convention, str] = {
    "relax": "With --group-rm it gets the list of a group's samples and returns one result for each, in their order.",
    "slime": "With --group-rm it gets (args, samples) and returns one result for each sample, in their order.",
    "verl": "A function of batches returns one result for each of solution_strs, in their order.",
    "trl": "A function of TRL's gets the completions of a group and returns a list with a number or None for each.",
    "verifiers": "A function of groups returns one number for each of completions, in their order.",
}
"""Convention -> what a function of groups returns."""


@dataclass(frozen=True)
class Adapter:
    """A function in the form that the library calls.

    Attributes:
        function: takes a ``RewardInput``, or the list of a group's.
        convention: of the function.
        of_group: which of the two.
        key: of the score in its dicts, where --reward-key names none.
    """

    function: RewardFunction
    convention: Convention
    of_group: bool
    key: str | None = None


def adapt(
    call: Callable[..., Any],
    what: str,
    convention: str,
    *,
    of_group: bool,
    settings: Callable[[Convention], str],
) -> tuple[Adapter, str]:
    """The user's function in the form that the library calls, and what it is configured with.

    Args:
        call: the function.
        what: names it in errors.
        convention: of the function, or ``auto``.
        of_group: --group-rm.
        settings: gives the JSON text of what a convention is configured with, see ``wants``.

    Raises:
        UserError: its arguments fit no convention, several, or not the one that is said.
    """
    parameters = Parameters.of(call)
    chosen = recognised(parameters, what) if convention == "auto" else _convention(convention)
    text = settings(chosen) if chosen in ("slime", "trl", "verifiers") else ""
    return _MAKERS[chosen](call, parameters, what, of_group, json.loads(text or "{}")), text


def _convention(name: str) -> Convention:
    for known in get_args(Convention):
        if name == known:
            return known  # type: ignore[no-any-return]
    raise UserError(f"{SIGNATURE} {name}: there is no such convention.", f"Choose one of {', '.join(SHAPES)}, auto.")


# Relax


def _relax(
    call: Callable[..., Any], parameters: Parameters, what: str, of_group: bool, settings: dict[str, Any]
) -> Adapter:
    shape = "reward(samples)" if of_group else "reward(sample)"
    _check_places(call, 1, what, shape)
    return Adapter(call, "relax", of_group)


def _check_places(call: Callable[..., Any], count: int, what: str, shape: str) -> None:
    try:
        inspect.signature(call).bind(*[None] * count)
    except TypeError as error:
        arguments = "one argument" if count == 1 else "two arguments"
        raise UserError(
            f"{what} cannot be called with {arguments}: {error}.",
            f"Define it as `def {shape}` or `async def {shape}`, or say how it is called with {SIGNATURE}.",
        ) from None
    except ValueError:  # one that is compiled: the first call will tell
        pass


# slime


def _slime(
    call: Callable[..., Any], parameters: Parameters, what: str, of_group: bool, settings: dict[str, Any]
) -> Adapter:
    _check_places(call, 2, what, "reward(args, samples)" if of_group else "reward(args, sample)")
    args = types.SimpleNamespace(**settings)

    def one(sample: RewardInput) -> Any:
        return call(args, _slime_sample(sample))

    def several(samples: list[RewardInput]) -> Any:
        return call(args, [_slime_sample(sample) for sample in samples])

    return Adapter(several if of_group else one, "slime", of_group)  # type: ignore[arg-type]


def _slime_sample(given: RewardInput) -> Any:
    """The sample as every other function of the user gets it. It has neither log-probs nor a loss mask of its own: a
    reward decides nothing by them, and they stay where they are."""
    from relax_core.rollout.sample import Sample, Status

    return Sample(
        sample_id=given.sample_id,
        group_id=given.sample_id.rpartition("-")[0],
        index=given.index,
        group_index=given.group_index,
        prompt=given.prompt,
        tokens=[] if given.tokens is None else given.tokens.tolist(),
        label=given.label,
        metadata=given.metadata,
        response=given.response,
        response_length=given.response_length,
        status=Status(given.status),
    )


# verl


def _verl(
    call: Callable[..., Any], parameters: Parameters, what: str, of_group: bool, settings: dict[str, Any]
) -> Adapter:
    batch = bool(set(parameters.names) & set(VERL_BATCH))
    if of_group and not batch:
        raise _scores_one(what, "compute_score(data_sources, solution_strs, ground_truths, extra_infos)")
    _check_names(parameters, VERL_BATCH if batch else VERL, what, "verl")

    def one(sample: RewardInput) -> Any:
        return call(**parameters.wanted(dict(zip(VERL, _verl_values(sample), strict=True))))

    def several(samples: list[RewardInput]) -> Any:
        columns = zip(*map(_verl_values, samples), strict=True)
        return call(**parameters.wanted({name: list(column) for name, column in zip(VERL_BATCH, columns, strict=True)}))

    return Adapter(several if batch else one, "verl", batch, key="score")  # type: ignore[arg-type]


def _verl_values(sample: RewardInput) -> tuple[Any, ...]:
    """verl's columns; its data sets keep the label in reward_model.ground_truth."""
    metadata, label = sample.metadata, sample.label
    if label is None:
        label = metadata.get("reward_model")
    if isinstance(label, dict) and "ground_truth" in label:
        label = label["ground_truth"]
    extra = metadata.get("extra_info")
    return str(metadata.get("data_source") or ""), sample.response, label, metadata if extra is None else extra


def _scores_one(what: str, shape: str) -> UserError:
    return UserError(
        f"{what} scores one sample at a time, and --group-rm asks for a function of groups.",
        f"Leave --group-rm out, or define it as `def {shape}`.",
    )


def _check_names(parameters: Parameters, given: Sequence[str], what: str, system: str) -> None:
    missing = [name for name in parameters.required if name not in given]
    if missing:
        raise UserError(
            f"{what} needs {', '.join(missing)}, which Relax does not have for a function of {system}'s convention.",
            f"It gets {', '.join(given)}: give the others a default.",
        )


# TRL


def _trl(
    call: Callable[..., Any], parameters: Parameters, what: str, of_group: bool, settings: dict[str, Any]
) -> Adapter:
    if "completions" not in parameters.names and not parameters.takes_more:
        raise UserError(
            f"{what} has no argument completions: its arguments are {parameters.text}.",
            f"Define it as `def {SHAPES['trl']}`.",
        )

    def several(samples: list[RewardInput]) -> Any:
        columns = _trl_columns(samples, settings)
        missing = [name for name in parameters.required if name not in columns]
        if missing:
            raise UserError(
                f"{what} needs {', '.join(missing)}, which the samples beside {samples[0].sample_id} do not have.",
                f"They have {', '.join(sorted(columns))}: put the others into the rows' metadata, or give them a "
                "default.",
            )
        return call(**parameters.wanted(columns))

    return Adapter(several, "trl", True)  # type: ignore[arg-type]


def _trl_columns(samples: list[RewardInput], settings: dict[str, Any]) -> dict[str, list[Any]]:
    """TRL's columns: what the rows' metadata has, None where one has it not; labels under two names."""
    names = dict.fromkeys(name for sample in samples for name in sample.metadata)
    labels = [sample.label for sample in samples]
    return {
        **{str(name): [sample.metadata.get(name) for sample in samples] for name in names},
        **({str(settings["label_key"]): labels} if settings.get("label_key") else {}),
        "label": labels,
        "prompts": [_prompt(sample, settings) for sample in samples],
        "completions": [_completion(sample, settings) for sample in samples],
    }


def _prompt(sample: RewardInput, settings: dict[str, Any]) -> Any:
    return [{"role": "user", "content": sample.prompt}] if settings.get("conversational") else sample.prompt


def _completion(sample: RewardInput, settings: dict[str, Any]) -> Any:
    return [{"role": "assistant", "content": sample.response}] if settings.get("conversational") else sample.response


# verifiers


def _verifiers(
    call: Callable[..., Any], parameters: Parameters, what: str, of_group: bool, settings: dict[str, Any]
) -> Adapter:
    group = bool(set(parameters.names) & set(VERIFIERS_GROUP))
    if of_group and not group:
        raise _scores_one(what, "reward(completions, answers, states)")
    _check_names(parameters, VERIFIERS_GROUP if group else VERIFIERS, what, "verifiers")

    def one(sample: RewardInput) -> Any:
        return call(**parameters.wanted(_verifiers_values(sample, settings)))

    def several(samples: list[RewardInput]) -> Any:
        rows = [_verifiers_values(sample, settings) for sample in samples]
        columns = {plural: [row[name] for row in rows] for name, plural in zip(VERIFIERS, VERIFIERS_GROUP, strict=True)}
        return call(**parameters.wanted(columns))

    return Adapter(several if group else one, "verifiers", group)  # type: ignore[arg-type]


def _verifiers_values(sample: RewardInput, settings: dict[str, Any]) -> dict[str, Any]:
    info = sample.metadata.get("info")
    values = {
        "prompt": _prompt(sample, settings),
        "completion": _completion(sample, settings),
        "answer": "" if sample.label is None else sample.label,
        "info": info if isinstance(info, dict) else sample.metadata,
        "task": sample.metadata.get("task", "default"),
    }
    state = {
        **values,
        "example_id": sample.sample_id,
        "is_completed": True,
        "is_truncated": sample.status == "truncated",
    }
    return {**values, "state": state}


_MAKERS: dict[Convention, Callable[..., Adapter]] = {
    "relax": _relax,
    "slime": _slime,
    "verl": _verl,
    "trl": _trl,
    "verifiers": _verifiers,
}
