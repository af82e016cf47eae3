"""Rules of the generative reward model, the judge.

Guarantee: a key of its two JSON options is known and its value is possible, or it is told with the nearest key; its
devices fit one of the arrangements that there are.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from data.nearest import nearest
from relax_core.config.options import BadValueError, Option, all_options, find_option
from relax_core.config.ranges import COUNT, NOT_NEGATIVE, OFF_OR_COUNT, PROBABILITY, Range, at_least
from relax_core.config.rules.base import Rule
from relax_core.config.rules.kinds import idle
from relax_core.config.values import Values

ENGINE: dict[str, tuple[type, Range]] = {
    "dp_size": (int, COUNT),
    "pp_size": (int, COUNT),
    "ep_size": (int, COUNT),
    "max_total_tokens": (int, COUNT),
    "max_context_len": (int, at_least(2)),
    "mem_fraction_static": (float, PROBABILITY),
}
"""Key of ``--genrm-engine-config`` -> its type and its range; the other arguments of SGLang's server are keys too."""

SAMPLING: dict[str, tuple[type, Range]] = {
    "temperature": (float, NOT_NEGATIVE),
    "top_p": (float, PROBABILITY),
    "top_k": (int, OFF_OR_COUNT),
    "max_response_len": (int, COUNT),
}
"""Key of ``--genrm-sampling-config`` -> its type and its range."""

MAX_CONTEXT, MAX_RESPONSE = 8192, 4096
"""Tokens of the judge's context and of its answer where nothing is given."""

_SERVER = "sglang_"
_CONFIGS = {"genrm_engine_config": ENGINE, "genrm_sampling_config": SAMPLING}
_OPTIONS = ("genrm_num_gpus", "genrm_num_gpus_per_engine", "genrm_template", *_CONFIGS)


def _server_argument(option: str, key: str) -> Option | None:
    """The argument of SGLang's server that a key of the engines' configuration names, if it names one."""
    return find_option(f"{_SERVER}{key}") if option == "genrm_engine_config" else None


def _is_taken(argument: Option) -> bool:
    return argument.passed is not None and argument.passed.role == "owned"


def _unknown_keys(values: Values) -> Iterator[dict[str, Any]]:
    for name, keys in _CONFIGS.items():
        for key in values[name] or {}:
            argument = _server_argument(name, key)
            if key in keys or (argument is not None and not _is_taken(argument)):
                continue
            if argument is not None:
                yield {"option": name, "value": key, "why": "is set by Relax itself", "hint": "Leave it out."}
                continue
            hint = nearest(key, [*keys, *(_server_arguments() if name == "genrm_engine_config" else ())])
            yield {"option": name, "value": key, "why": "is no key of it", "hint": hint or f"Keys: {', '.join(keys)}."}


def _server_arguments() -> Iterator[str]:
    return (name.removeprefix(_SERVER) for name in all_options() if name.startswith(_SERVER))


def _bad_values(values: Values) -> Iterator[dict[str, Any]]:
    for name, keys in _CONFIGS.items():
        for key, value in (values[name] or {}).items():
            if key not in keys:
                argument = _server_argument(name, key)
                if argument is not None and (reason := _why_not(argument, value)):
                    yield {"option": name, "value": f"{key} {value}", "reason": reason}
                continue
            kind, allowed = keys[key]
            if not _is_a(value, kind):
                reason = f"expects {'a whole number' if kind is int else 'a number'}"
            elif not allowed.holds(value):
                reason = f"must be {allowed.text}"
            else:
                continue
            yield {"option": name, "value": f"{key} {value}", "reason": reason}


def _why_not(argument: Option, value: object) -> str:
    """What is wrong with a value of a server argument; empty where nothing is."""
    try:
        argument.convert(value)
    except BadValueError as error:
        return str(error).removesuffix(".")
    return ""


def _is_a(value: object, kind: type) -> bool:
    numbers = (int,) if kind is int else (int, float)
    return isinstance(value, numbers) and not isinstance(value, bool)


def _number(config: Mapping[str, Any] | None, key: str, default: float | None = None) -> Any:
    value = (config or {}).get(key, default)
    return value if value is None or _is_a(value, float) else default


def _long_answers(values: Values) -> list[dict[str, Any]]:
    answer = _number(values.genrm_sampling_config, "max_response_len", MAX_RESPONSE)
    same = _number(values.genrm_engine_config, "context_length", MAX_CONTEXT)  # SGLang's name
    context = _number(values.genrm_engine_config, "max_context_len", same)
    wrong = values.genrm_model_path and answer >= context
    return [{"value": f"max_response_len {answer}", "context": context}] if wrong else []


def _devices(values: Values) -> int:
    """Devices of the judge: those of the role genrm, else the option's. Reads both."""
    of_role = values.devices("genrm")
    return int(of_role or values.genrm_num_gpus)


def _sizes(values: Values) -> list[dict[str, Any]]:
    """Pipeline and data-parallel sizes that do not divide an engine's devices."""
    given, devices = values.genrm_engine_config, values.genrm_num_gpus_per_engine
    pipeline, copies = _number(given, "pp_size", 1), _number(given, "dp_size", 1)
    if (given or {}).get("enable_dp_attention"):
        copies = 1  # its copies are among the tensor-parallel ranks
    product = int(pipeline * copies)
    return [{"product": product}] if values.genrm_model_path and product > 0 and devices % product else []


def _disagreement(values: Values) -> list[dict[str, Any]]:
    role, option = values.devices("genrm"), values.genrm_num_gpus
    return [{"role": role}] if values.genrm_model_path and role > 0 and option not in (1, role) else []


def _shared(values: Values) -> bool:
    """Whether judge and engines are both on all of the actor's devices."""
    actor, rollout = values.devices("actor"), values.devices("rollout")
    return bool(values.genrm_model_path and values.colocate and _devices(values) == rollout == actor)


def _no_arrangement(values: Values) -> list[dict[str, Any]]:
    if not values.genrm_model_path or not values.colocate or _shared(values):
        return []
    actor, rollout, judge = values.devices("actor"), values.devices("rollout"), _devices(values)
    if rollout + judge == actor:
        return []
    return [{"value": judge, "actor": actor, "rollout": rollout}]


def _fractions(values: Values) -> list[dict[str, Any]]:
    if not _shared(values):
        return []
    judge = _number(values.genrm_engine_config, "mem_fraction_static")
    engine = values.sglang_mem_fraction_static
    if judge is None or engine is None:
        needs = "--sglang-mem-fraction-static and mem_fraction_static in --genrm-engine-config"
        return [{"value": None, "reason": f"shares the engines' devices: it needs {needs}."}]
    if judge + engine < 1:
        return []
    both = f"{engine:g} of --sglang-mem-fraction-static and {judge:g} of the judge"
    return [{"value": None, "reason": f"shares the engines' devices: {both} must be below 1 together."}]


RULES: tuple[Rule, ...] = (
    idle(
        "judge-options-need-a-judge",
        _OPTIONS,
        ("genrm_model_path",),
        lambda v: v.genrm_model_path is None,
        "has no effect without --genrm-model-path.",
    ),
    Rule(
        name="judge-keys-are-known",
        option="genrm_engine_config",
        reads=tuple(_CONFIGS),
        each=_unknown_keys,
        message="{why}.",
        fix="{hint}",
    ),
    Rule(
        name="judge-values-are-possible",
        option="genrm_engine_config",
        reads=tuple(_CONFIGS),
        each=_bad_values,
        message="{reason}.",
    ),
    Rule(
        name="judge-context-holds-its-answer",
        option="genrm_sampling_config",
        reads=("genrm_model_path", *_CONFIGS),
        each=_long_answers,
        message="leaves no room for a question in the judge's context of {context} tokens.",
        fix="Lower it, or raise max_context_len in --genrm-engine-config.",
    ),
    Rule(
        name="judge-engines-share-out-devices",
        option="genrm_num_gpus_per_engine",
        reads=("genrm_model_path", "genrm_num_gpus_per_engine", "genrm_num_gpus", "resource"),
        each=lambda v: (
            [{"judge": _devices(v)}]
            if v.genrm_model_path and v.genrm_num_gpus_per_engine > 0 and _devices(v) % v.genrm_num_gpus_per_engine
            else []
        ),
        message="does not divide the {judge} devices of the judge.",
    ),
    Rule(
        name="judge-parallel-sizes-fit-an-engine",
        option="genrm_num_gpus_per_engine",
        reads=("genrm_model_path", "genrm_num_gpus_per_engine", "genrm_engine_config"),
        each=_sizes,
        message="is not divided by the {product} of pp_size times dp_size in --genrm-engine-config.",
    ),
    Rule(
        name="judge-devices-agree",
        option="genrm_num_gpus",
        reads=("genrm_model_path", "genrm_num_gpus", "resource"),
        each=_disagreement,
        message="does not agree with the {role} devices of the role genrm in --resource.",
        fix="Leave one out.",
    ),
    Rule(
        name="judge-fits-beside-the-engines",
        option="genrm_num_gpus",
        reads=("genrm_model_path", "genrm_num_gpus", "resource", "colocate"),
        each=_no_arrangement,
        message="does not fit beside the {rollout} devices of the role rollout on the actor's {actor}, which --colocate"
        " shares.",
        fix="Together they must be as many, or each of them.",
    ),
    Rule(
        name="judge-and-engines-share-memory",
        option="genrm_num_gpus",
        reads=(
            "genrm_model_path",
            "genrm_num_gpus",
            "resource",
            "colocate",
            "genrm_engine_config",
            "sglang_mem_fraction_static",
        ),
        each=_fractions,
        message="{reason}",
    ),
)
