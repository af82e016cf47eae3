"""The check of a whole configuration.

Guarantee: ``examine`` finds every mistake at once, without starting anything and without importing torch; a rule is
left out only where an option that it reads is wrong already. Values that a rule corrects are corrected in the
configuration that comes out, and the report says so. Nothing bypasses a check: it is the resolved configuration that is
looked at, wherever its values came from.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace

from relax_core.config.files import check_files, local_path
from relax_core.config.function_files import check_function_files
from relax_core.config.options import OPTIONS, find_option, get_option, option_values, with_options
from relax_core.config.parser import Given, mark_derived
from relax_core.config.problems import Problem, errors_of, option_name, raise_problems
from relax_core.config.prompt_columns import check_columns
from relax_core.config.resolve import FOLLOWS, resolve
from relax_core.config.reward_files import check_reward_files
from relax_core.config.rules import RULES
from relax_core.config.rules.base import Purpose, Rule
from relax_core.config.sections import RelaxConfig
from relax_core.config.sources import CORRECTED, DEFAULT, Source, is_given
from relax_core.config.values import Values
from relax_core.config.wired import unwired_problems
from relax_core.training.shape import ModelShape

log = logging.getLogger(__name__)
_told: set[str] = set()


@dataclass(frozen=True)
class Report:
    """What ``examine`` found.

    Args:
        config: resolved, with what rules correct corrected.
        model: the shape of the model; None when its folder cannot be read.
        problems: errors and warnings, in the order of the checks.
        sources: the source of every option.
    """

    config: RelaxConfig
    model: ModelShape | None
    problems: tuple[Problem, ...]
    sources: Mapping[str, Source]

    @property
    def errors(self) -> list[Problem]:
        """What stops a run."""
        return errors_of(self.problems)

    @property
    def warnings(self) -> list[Problem]:
        """What a person should know."""
        return [problem for problem in self.problems if problem.severity == "warning"]


def examine(
    config: RelaxConfig,
    purpose: Purpose = "train",
    sources: Mapping[str, Source] | None = None,
    unread: frozenset[str] = frozenset(),
    files: bool = True,
) -> Report:
    """Resolve and check a configuration.

    Args:
        config: what a person gave, or an already resolved configuration.
        purpose: what it is for.
        sources: where each value comes from; they are told with the problems.
        unread: flags of options that were given a value which could not be read: what they have now is nobody's, and
            nothing is told of it.
        files: whether the files that it names are on this machine. Without them rules that read the model's shape are
            left out.
    """
    sources = dict(sources or {})
    given = frozenset(name for name in option_values(config) if _is_set(config, name))
    model, wrong_files = check_files(config, purpose) if files else (None, [])
    resolved = resolve(config, model)
    wrong = _wrong_flags(resolved, purpose) | unread
    problems: list[Problem] = []
    for rule in _judged(purpose, model, wrong):
        if rule.corrects is None:
            continue
        values = Values(resolved, model, given)
        found = list(rule.problems(values, sources))
        if found:
            problems += found
            corrections = rule.corrects(values)
            resolved = resolve(with_options(resolved, corrections), model)
            sources |= dict.fromkeys(corrections, CORRECTED)
    own = [*_required(resolved, purpose), *_empty(config, sources), *_ranges(resolved, sources)]
    problems = [*(problem for problem in own if problem.option not in unread), *problems]
    if files:
        wrong_files += check_columns(resolved, purpose, local_path)
        wrong_files += [*check_reward_files(resolved), *check_function_files(resolved, purpose)]
    problems += _told_by_rules(Values(resolved, model, given), purpose, sources, unread | _flags_of(problems))
    problems += [*_overlooked(config, sources), *unwired_problems(config, sources)]
    return Report(resolved, model, (*problems, *wrong_files), mark_derived(config, resolved, sources))


def examine_given(given: Given, purpose: Purpose = "train", files: bool = True) -> Report:
    """``examine`` together with what was wrong in what a person gave.

    An option that is missing because it was misspelt is told once, and none is missing where a file could not be read.
    """
    named = (find_option(option_name(problem.option)) for problem in errors_of(given.notes))
    wrong = frozenset(option.flag for option in named if option)
    report = examine(given.config, purpose, given.sources, wrong, files)
    unread = any(problem.option.startswith(_FILES) for problem in errors_of(given.notes))
    told = " ".join(f"{problem.option} {problem.fix}" for problem in given.notes)
    rest = [
        problem
        for problem in report.problems
        if not (
            problem.reason.startswith("is required")
            and (unread or f"{problem.option} " in f"{told} ".replace("?", " "))
        )
    ]
    return replace(report, problems=(*given.notes, *rest))


_FILES = ("--config ", "base ", "--custom-config-path ", "--env-file ")
"""What the problems of whole files begin with."""


def check(config: RelaxConfig, purpose: Purpose = "train") -> list[Problem]:
    """The errors of a configuration, resolved or not, in the order of the checks."""
    return examine(config, purpose).errors


def validate(config: RelaxConfig, purpose: Purpose = "train", sources: Mapping[str, Source] | None = None) -> None:
    """Raise one `UserError` that lists everything ``check`` finds; return when that is nothing."""
    prepare(config, purpose, sources)


def prepare(
    config: RelaxConfig, purpose: Purpose = "train", sources: Mapping[str, Source] | None = None
) -> RelaxConfig:
    """The resolved and valid form of what a person gave: the configuration that a run is made of.

    Warnings are logged, each once a process.

    Raises:
        UserError: everything that ``check`` finds.
    """
    report = examine(config, purpose, sources)
    accept(report)
    return report.config


def accept(report: Report) -> None:
    """Log the warnings of a report, each once a process.

    Raises:
        UserError: the errors of the report, all of them.
    """
    raise_problems(report.problems)
    for problem in report.warnings:
        if str(problem) not in _told:
            _told.add(str(problem))
            log.warning("%s", problem)


def _told_by_rules(
    values: Values, purpose: Purpose, sources: Mapping[str, Source], wrong: frozenset[str]
) -> list[Problem]:
    """What the rules that correct nothing say. A warning is left out where it reads an option of which an error is
    told: with a right value of that it may not hold."""
    told = [
        (rule, list(rule.problems(values, sources)))
        for rule in _judged(purpose, values.model, wrong)
        if rule.corrects is None
    ]
    mistaken = _flags_of(problem for _, problems in told for problem in problems)
    return [
        problem
        for rule, problems in told
        for problem in problems
        if problem.severity == "error" or not mistaken.intersection(_reads(rule))
    ]


def _flags_of(problems: Iterable[Problem]) -> frozenset[str]:
    """The options of which an error is told."""
    return frozenset(problem.option for problem in problems if problem.severity == "error")


def _reads(rule: Rule) -> set[str]:
    """The flags of the options that a rule reads."""
    return {OPTIONS[name].flag for name in rule.reads if name in OPTIONS}


def _is_set(config: RelaxConfig, name: str) -> bool:
    option = OPTIONS.get(name)
    return option is None or name in getattr(config, option.section).model_fields_set


def _judged(purpose: Purpose, model: ModelShape | None, wrong: Set[str]) -> Iterator[Rule]:
    for rule in RULES:
        if rule.purpose not in (None, purpose) or (rule.needs_model and model is None):
            continue
        if not wrong & _reads(rule):
            yield rule


def _wrong_flags(config: RelaxConfig, purpose: Purpose) -> set[str]:
    return {problem.option for problem in [*_required(config, purpose), *_ranges(config, {})]}


def _required(config: RelaxConfig, purpose: Purpose) -> Iterator[Problem]:
    supervised = config.algorithm.loss_type in ("sft", "sft_loss")
    batch = "global_batch_size" if supervised else "rollout_batch_size"
    names = ["hf_checkpoint"]
    names += ["prompt_data", batch] if purpose == "train" else ["eval_datasets"]
    for name in names:
        if get_option(config, name) in (None, "", []):
            told = OPTIONS["eval_prompt_data" if name == "eval_datasets" else name]
            yield Problem(told.flag, None, "is required.", told.help.replace(" (required)", ""))
    rollout = config.rollout
    if purpose == "train" and rollout.num_rollout is None and rollout.num_epoch is None:
        yield Problem("--num-rollout", None, "is required, or --num-epoch.", "It says how many steps the run has.")
    if supervised and purpose == "train":
        return
    lengths = [rollout.rollout_max_response_len, rollout.rollout_max_context_len]
    if purpose == "evaluate":
        sets = config.eval.eval_datasets or []
        lengths += [length for one in sets for length in (one.max_response_len, one.max_context_len)]
    if all(length is None for length in lengths):
        fix = "Without a bound a response may fill the model's whole context."
        yield Problem("--rollout-max-response-len", None, "is required, or --rollout-max-context-len.", fix)
    sets = config.eval.eval_datasets or []
    scored = bool(sets) and all(one.rm_type or one.custom_rm_path for one in sets)
    if (purpose == "evaluate" and scored) or _is_scored(config):
        return
    if not config.opd.use_opd:
        reason = "is required, or --custom-rm-path."
        yield Problem("--rm-type", None, reason, "It scores every sample whose metadata names no rm_type.")
    elif sets and not scored and (purpose == "evaluate" or config.eval.eval_interval):
        reason = "is required for the evaluation, or --custom-rm-path."
        yield Problem("--rm-type", None, reason, "Distillation needs no reward; the answers to evaluation sets do.")


def _is_scored(config: RelaxConfig) -> bool:
    """Whether something scores a sample whose metadata names no reward: rewards, or what stands in for them."""
    reward = config.reward
    named = (reward.rm_type, reward.custom_rm_path, reward.rm_type_fallback)
    recorded = config.debug.load_debug_rollout_data  # may hold its rewards
    return any(named) or reward.rm_type_infer or bool(recorded)


def _empty(config: RelaxConfig, sources: Mapping[str, Source]) -> Iterator[Problem]:
    """Texts without a character, as `"$VARIABLE"` gives them where the variable is not set."""
    for name, option in OPTIONS.items():
        if option.kind != "text" or not option.optional or name in _MAY_BE_EMPTY or get_option(config, name) != "":
            continue
        source = sources.get(name, DEFAULT)
        if name not in _REQUIRED and not _is_copy(config, name):
            yield Problem(option.flag, "", "is empty.", "Leave it out.", origin=source if is_given(source) else "")


_REQUIRED = ("hf_checkpoint", "prompt_data")
_MAY_BE_EMPTY = frozenset({"system_prompt", *(name for name in OPTIONS if name.endswith("_key"))})
"""Texts of which the empty one means something: no such column, no words."""


def _overlooked(config: RelaxConfig, sources: Mapping[str, Source]) -> Iterator[Problem]:
    """Evaluation sets of a run file win over those that another option names, wherever that stands."""
    if not config.eval.eval_datasets or not is_given(sources.get("eval_datasets", DEFAULT)):
        return
    for name in ("eval_config", "eval_prompt_data"):
        source = sources.get(name, DEFAULT)
        if is_given(source) and (value := get_option(config, name)) is not None:
            reason = f"is not used: eval_datasets ({sources['eval_datasets']}) says which sets there are."
            yield Problem(OPTIONS[name].flag, value, reason, "Leave one out.", "warning", source)


def _ranges(config: RelaxConfig, sources: Mapping[str, Source]) -> Iterator[Problem]:
    for name, option in OPTIONS.items():
        value = get_option(config, name)
        if option.range is None or value is None or option.range.holds(value) or _is_copy(config, name):
            continue
        source = sources.get(name, DEFAULT)
        origin = source if is_given(source) else ""
        yield Problem(option.flag, value, f"must be {option.range.text}.", origin=origin)


def _is_copy(config: RelaxConfig, name: str) -> bool:
    """Whether a value is that of the option it follows, so that a mistake in it is told there, once."""
    return name in FOLLOWS and get_option(config, name) == get_option(config, FOLLOWS[name])
