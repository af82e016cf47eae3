"""Rules of evaluation: which sets there are, and how they are sampled.

Guarantee: every evaluation set is checked as it will be used, whether it comes from pairs, from a file or from the run
file; what is wrong with an option that a set follows is told at the option alone.
"""

from collections.abc import Iterator
from typing import Any

from relax_core.config.eval_sets import EvalSet, problems_of
from relax_core.config.resolve import FOLLOWS
from relax_core.config.rules.base import Rule
from relax_core.config.rules.kinds import idle, is_rl
from relax_core.config.rules.prompts import bad_slice
from relax_core.config.rules.sampling import names_function
from relax_core.config.values import Values

SETS = ("eval_datasets", "eval_config", "eval_prompt_data")
"""Where evaluation sets come from; what ``_sets`` and ``_source`` read."""

FOLLOWED = (
    *(name for name in FOLLOWS if name.startswith("eval_")),
    *(followed for name, followed in FOLLOWS.items() if name.startswith("eval_")),
    "eval_min_new_tokens",
    "n_samples_per_eval_prompt",
    "rollout_stop",
    "rollout_stop_token_ids",
    "custom_rm_path",
    "custom_generate_function_path",
)
"""Options that a set follows where it says nothing; a rule that reads them leaves their own mistakes to others."""

SAMPLING = tuple(name for name in FOLLOWS if name.startswith("eval_") and name != "eval_function_path")


def _sets(values: Values) -> list[EvalSet]:
    return list(values.eval_datasets or ())


def _source(values: Values) -> str:
    """The option that the sets come from."""
    if values.eval_config:
        return "eval_config"
    return "eval_prompt_data" if values.eval_prompt_data else "eval_datasets"


def _odd_pairs(values: Values) -> list[dict[str, Any]]:
    count = len(values.eval_prompt_data or ())
    return [{"count": count}] if count % 2 else []


def _wrong_sets(values: Values) -> Iterator[dict[str, Any]]:
    option = _source(values)
    for problem in problems_of([_without_followed(one, values) for one in _sets(values)]):
        if problem.option == "evaluation set":
            yield {"option": option, "value": problem.value, "reason": problem.reason, "hint": problem.fix}
        else:
            reason = f"{problem.option} is {problem.value}: it {problem.reason}"
            yield {"option": option, "value": None, "reason": reason, "hint": problem.fix}


def _without_followed(one: EvalSet, values: Values) -> EvalSet:
    """The set without the fewest tokens of a response where both bounds are the options', which tell it themselves."""
    bounds = (values.eval_min_new_tokens, values.eval_max_response_len)
    if (one.min_new_tokens, one.max_response_len) == bounds:
        return one.model_copy(update={"min_new_tokens": None})
    return one


def _bad_slices(values: Values) -> Iterator[dict[str, Any]]:
    for one in _sets(values):
        if end := bad_slice(one.path):
            yield {"option": _source(values), "value": one.path, "end": end}


def _bad_functions(values: Values) -> Iterator[dict[str, Any]]:
    for one in _sets(values):
        for field in ("custom_rm_path", "custom_generate_function_path"):
            path = getattr(one, field)
            if path and path != values[field] and not names_function(path):
                yield {"option": _source(values), "value": path, "field": field, "set": one.name}


def _same_answers(values: Values) -> Iterator[dict[str, Any]]:
    for one in _sets(values):
        if one.temperature == 0 and (one.n_samples_per_eval_prompt or 1) > 1:
            yield {"value": one.n_samples_per_eval_prompt, "set": one.name}


RULES: tuple[Rule, ...] = (
    Rule(
        name="evaluation-has-sets",
        option="eval_interval",
        reads=("eval_interval", "loss_type", *SETS),
        broken=lambda v: (
            v.eval_interval is not None and is_rl(v) and not (v.eval_datasets or v.eval_config or v.eval_prompt_data)
        ),
        message="needs --eval-prompt-data NAME PATH.",
    ),
    Rule(
        name="sets-are-pairs",
        option="eval_prompt_data",
        reads=("eval_prompt_data",),
        each=_odd_pairs,
        message="expects pairs of name and path, and got {count} words.",
        fix="Only one path alone needs no name.",
    ),
    Rule(
        name="sets-are-right",
        option="eval_prompt_data",
        reads=(*SETS, *FOLLOWED),
        each=_wrong_sets,
        message="{reason}",
        fix="{hint}",
    ),
    Rule(
        name="sets-have-row-slices",
        option="eval_prompt_data",
        reads=SETS,
        each=_bad_slices,
        message="{end} is no row slice.",
        fix="Write @[a:b] with whole numbers, such as @[0:100].",
    ),
    Rule(
        name="functions-of-sets-have-a-path",
        option="eval_config",
        reads=(*SETS, "custom_rm_path", "custom_generate_function_path"),
        each=_bad_functions,
        message="names no function, as {field} of the evaluation set {set}.",
        fix="Write package.module.function, package.module:function or path/to/file.py:function.",
    ),
    Rule(
        name="evaluation-file-wins",
        option="eval_prompt_data",
        reads=("eval_prompt_data", "eval_config"),
        broken=lambda v: v.eval_prompt_data and v.eval_config,
        message="is not used: --eval-config {eval_config} says which sets there are.",
        fix="Leave one out.",
        severity="warning",
    ),
    Rule(
        name="greedy-answers-are-the-same",
        option="n_samples_per_eval_prompt",
        reads=("eval_datasets", "n_samples_per_eval_prompt"),
        each=_same_answers,
        message="gives the same response each time: the evaluation set {set} is sampled at temperature 0.",
        fix="One is enough, or raise the temperature.",
        severity="warning",
    ),
    idle(
        "evaluation-before-training",
        ("skip_eval_before_train",),
        ("eval_interval",),
        lambda v: v.eval_interval is None,
        "has no effect without --eval-interval: nothing is evaluated in training.",
    ),
    idle(
        "evaluation-options-need-sets",
        (*SAMPLING, "eval_min_new_tokens", "n_samples_per_eval_prompt", "eval_function_path"),
        (*SETS, "eval_size"),
        lambda v: not (v.eval_datasets or v.eval_config or v.eval_prompt_data or v.eval_size),
        "has no effect without --eval-prompt-data or --eval-config.",
    ),
)
