"""Evaluation sets: what is asked of a prompt file and how the answers are scored, set by set.

Guarantee: everything that is wrong with an evaluation file is reported at once, each mistake with its place in it; a
value comes from the set, else from the file's defaults, else from the ``eval_*`` option, else from the option of the
rollout. All functions are pure but for the file and the environment that ``read_eval_config`` reads.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from data.nearest import nearest
from relax_core.config.eval_set import FIELDS, RANGES, EvalSet, expected, typed
from relax_core.config.problems import Problem
from relax_core.config.references import BadFileError, BadReferenceError, References, load_file

__all__ = ["EvalSet", "complete_sets", "problems_of", "read_eval_config", "sets_from_pairs"]

LONE_EVAL_SET = "aime"
"""Name of a set that is given as a path without a name."""

DEFAULTS = tuple(name for name in FIELDS if name not in ("name", "path"))
"""Fields that an evaluation file's ``defaults`` may have."""

FALLBACKS: dict[str, tuple[str, ...]] = {
    "default_rm_type": ("rm_type",),
    "custom_rm_path": ("custom_rm_path",),
    "reward_key": ("eval_reward_key", "reward_key"),
    "input_key": ("eval_input_key", "input_key"),
    "label_key": ("eval_label_key", "label_key"),
    "tool_key": ("eval_tool_key", "tool_key"),
    "metadata_key": ("metadata_key",),
    "n_samples_per_eval_prompt": ("n_samples_per_eval_prompt",),
    "temperature": ("eval_temperature", "rollout_temperature"),
    "top_p": ("eval_top_p", "rollout_top_p"),
    "top_k": ("eval_top_k", "rollout_top_k"),
    "max_response_len": ("eval_max_response_len", "rollout_max_response_len"),
    "max_prompt_len": ("eval_max_prompt_len", "rollout_max_prompt_len"),
    "max_context_len": ("eval_max_context_len", "rollout_max_context_len"),
    "min_new_tokens": ("eval_min_new_tokens",),
    "stop": ("rollout_stop",),
    "stop_token_ids": ("rollout_stop_token_ids",),
    "custom_generate_function_path": ("custom_generate_function_path",),
}
"""Field -> the options that it follows, the first one that is set."""

_NOTHING: dict[str, Any] = {"min_new_tokens": 0, "stop": [], "stop_token_ids": [], "metadata_overrides": {}}


def sets_from_pairs(pairs: Sequence[str]) -> list[EvalSet]:
    """The sets of ``--eval-prompt-data``: names and paths by turns; a path alone gets the name `aime`.

    A word left over at the end is left out: an odd number of words is for the rules to report.
    """
    words = [LONE_EVAL_SET, *pairs] if len(pairs) == 1 else pairs
    return [EvalSet(name=name, path=path) for name, path in zip(words[::2], words[1::2], strict=False)]


def complete_sets(sets: Iterable[EvalSet], options: Mapping[str, Any]) -> list[EvalSet]:
    """Copies of the sets in which every field that was not given follows the options.

    What was given stays known as such (``model_fields_set``), so that completing a complete set again, with the same
    options or others, is as completing the set that it was made of.

    Args:
        sets: as they were read, or complete.
        options: option name -> value; one that is None or missing is not set.
    """
    return [_complete(each, options) for each in sets]


def _complete(eval_set: EvalSet, options: Mapping[str, Any]) -> EvalSet:
    given = {name for name in eval_set.model_fields_set if getattr(eval_set, name) is not None}
    values: dict[str, Any] = {}
    for name in FIELDS:
        if name in given:
            continue
        follows = () if name == "custom_rm_path" and "rm_type" in given else FALLBACKS.get(name, ())
        found = (options[option] for option in follows if options.get(option) is not None)
        values[name] = next(found, _NOTHING.get(name))
    completed = eval_set.model_copy(update=copy.deepcopy(values), deep=True)
    completed.model_fields_set.intersection_update(given)
    return completed


def problems_of(sets: Sequence[EvalSet]) -> list[Problem]:
    """What is wrong with sets by themselves: names and numbers. Nothing is wrong with a field that is not given."""
    problems: list[Problem] = []
    names = [each.name for each in sets]
    for place, each in enumerate(sets):
        if not _is_name(each.name):
            problems.append(Problem("evaluation set", each.name, *_BAD_NAME))
        elif each.name in names[:place]:
            problems.append(Problem("evaluation set", each.name, *_DOUBLED_NAME))
        values = {name: getattr(each, name) for name in FIELDS}
        for name, value in values.items():
            if name in RANGES and value is not None and not RANGES[name].holds(value):
                where = f"{name} of the evaluation set {each.name}"
                problems.append(Problem(where, value, f"must be {RANGES[name].text}."))
        shortest, longest = each.min_new_tokens, each.max_response_len
        if shortest is not None and longest is not None and 1 <= longest < shortest:
            where = f"min_new_tokens of the evaluation set {each.name}"
            problems.append(Problem(where, shortest, f"is above max_response_len {longest}."))
    return problems


_BAD_NAME = (
    "is no name of an evaluation set.",
    "A name has letters, digits, '-', '_' and '.', at most 100 of them, and begins with no '.'.",
)
_DOUBLED_NAME = ("names two sets.", "Give each set a name of its own.")


def _is_name(name: str) -> bool:
    bare = name.replace("-", "").replace("_", "").replace(".", "")
    return bare.isalnum() and not name.startswith(".") and len(name) <= 100  # it is a part of file names


def read_eval_config(path: str) -> tuple[list[EvalSet], list[Problem]]:
    """The sets of an evaluation file, YAML or (`*.json`) JSON, with its ``defaults`` filled in, and what is wrong.

    A value that is wrong is left out of its set, and a set without a usable name or path is left out.
    """
    reader = _Reader(path)
    try:
        return reader.sets(load_file(path)), reader.problems
    except BadFileError as error:
        return [], [Problem(f"--eval-config {path}", None, str(error))]


class _Reader:
    """Reads one file and collects what is wrong with it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.problems: list[Problem] = []

    def sets(self, content: Any) -> list[EvalSet]:
        """Every set of the file that has a name and a path."""
        root = content if isinstance(content, dict) else {}
        below = "eval." if "eval" in root else ""
        section = root["eval"] if below else root
        if not isinstance(section, dict) or not section.get("datasets"):
            fix = "Write `datasets:` and below it a list of sets, each with `name:` and `path:`."
            self.problems.append(Problem(f"--eval-config {self.path}", None, "holds no evaluation sets.", fix))
        section = section if isinstance(section, dict) else {}
        references = References(root)
        defaults = self._fields(section.get("defaults"), f"{below}defaults", DEFAULTS, references)
        sets: dict[str, EvalSet] = {}
        for where, item in self._items(section.get("datasets"), f"{below}datasets"):
            values = self._fields(item, where, FIELDS, references)
            name = values.get("name")
            if name is not None and not _is_name(name):
                self._wrong(f"{where}.name", name, *_BAD_NAME)
            elif name in sets:
                self._wrong(f"{where}.name", name, *_DOUBLED_NAME)
            elif name is not None and "path" in values:
                sets[name] = _merged(defaults, values)
        self._refuse_unused(root, section, below, references)
        return list(sets.values())

    def _items(self, datasets: Any, where: str) -> Iterator[tuple[str, Any]]:
        """Place and content of each set, from a list or from a mapping of names."""
        if isinstance(datasets, dict):
            for name, item in datasets.items():
                if isinstance(item, dict) and item.get("name", name) != name:
                    self._wrong(f"{where}.{name}.name", item["name"], "is another name than the key above it.")
                yield f"{where}.{name}", {**item, "name": name} if isinstance(item, dict) else item
        elif isinstance(datasets, list):
            yield from ((f"{where}[{number}]", item) for number, item in enumerate(datasets))
        elif datasets is not None:
            self._wrong(where, datasets, "expects a list of sets.")

    def _fields(self, given: Any, where: str, known: Sequence[str], references: References) -> dict[str, Any]:
        """The typed values of a mapping that are right; null counts as not given."""
        given = self._resolved(given, where, references) if isinstance(given, str) else given
        if given is _WRONG or (given is None and "name" not in known):
            return {}
        if not isinstance(given, dict):
            self._wrong(where, given, "expects fields below it, such as `temperature: 0.6`.")
            return {}
        values: dict[str, Any] = {}
        for key, value in given.items():
            place = f"{where}.{key}"
            if key in known:
                values[key] = self._value(key, value, place, references)
            elif key in FIELDS:
                self._wrong(place, value, "belongs to each set, not to the defaults.")
            else:
                self._wrong(place, None, "no such field.", nearest(str(key).replace("-", "_").lower(), known))
        for key in ("name", "path"):
            if key in known and values.get(key) is None:
                self._wrong(f"{where}.{key}", None, "is required.")
        return {key: value for key, value in values.items() if value is not None and value is not _WRONG}

    def _value(self, key: str, value: Any, place: str, references: References) -> Any:
        """The typed value of a field; None where it is null or empty, ``_WRONG`` where that has been told."""
        value = self._resolved(value, place, references)
        if value is _WRONG or value is None or (value == "" and key in ("name", "path")):
            return value or None
        try:
            value = typed(key, value)
        except ValueError:
            self._wrong(place, value, f"expects {expected(key)}.")
            return _WRONG
        if key in RANGES and not RANGES[key].holds(value):
            self._wrong(place, value, f"must be {RANGES[key].text}.")
            return _WRONG
        return value

    def _resolved(self, value: Any, place: str, references: References) -> Any:
        try:
            return references.resolve(value)
        except BadReferenceError as error:
            self._wrong(place, value, str(error), error.fix)
            return _WRONG

    def _refuse_unused(self, root: Any, section: Any, below: str, references: References) -> None:
        """A key beside those that are known may only be there for references, or for anchors (`x-...`)."""
        known = ("defaults", "datasets")
        levels = [((), root, ("eval",)), (("eval",), section, known)] if below else [((), root, known)]
        for above, mapping, names in levels:
            for key in map(str, mapping):
                place = (*above, key)
                if key not in names and not key.startswith("x-") and place not in references.used:
                    hint = "It belongs below `eval:`." if key in known else nearest(key, (*known, "eval"))
                    self._wrong(".".join(place), None, "no such key.", hint)

    def _wrong(self, where: str, value: Any, reason: str, fix: str = "") -> None:
        self.problems.append(Problem(f"{where} in {self.path}", value, reason, fix))


_WRONG = object()


def _merged(defaults: dict[str, Any], values: dict[str, Any]) -> EvalSet:
    """A set with the file's defaults; a reward that it names is not replaced by a function from there."""
    merged = {**defaults, **values}
    if "rm_type" in values and "custom_rm_path" not in values:
        merged.pop("custom_rm_path", None)
    return EvalSet(**merged)
