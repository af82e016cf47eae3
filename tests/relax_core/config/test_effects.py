"""No option is dead: a changed value of every option that is honoured changes what the code does."""

import json
import shutil
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import effect_probes as probes
import pytest
from effect_cases import CASES, ONE_VALUE
from effect_probes import Probe, report_of, watched
from ranks import run_ranks
from safetensors.numpy import load_file, save_file
from training_batches import write_batches

from relax_core.config.examine import Report
from relax_core.config.options import OPTIONS, BadValueError, with_options
from relax_core.config.passthrough import PassThrough, pass_throughs, server_words
from relax_core.config.sections import RelaxConfig
from relax_core.config.wired import unwired_problems
from relax_core.rewards.sandbox import run as sandbox

WIRED = {name: option for name, option in OPTIONS.items() if option.effect}


def test_every_honoured_option_has_a_case_and_no_other() -> None:
    assert CASES.keys() | ONE_VALUE.keys() == WIRED.keys()
    assert not CASES.keys() & ONE_VALUE.keys()


BEFORE = (
    "flows/cli/main.py",
    "relax_core/config/parser.py",
    "relax_core/config/resolve.py",
    "relax_core/config/eval_sets.py",
)
"""Modules in which options take effect before there is the configuration that a probe gets."""

# the module that it names asks for --debug-train-only first, which the check adds
HERE = [name for name, case in CASES.items() if not isinstance(case.probe, str)]
THERE = [name for name, case in CASES.items() if isinstance(case.probe, str)]
"""Options whose probe runs in this process, and those whose probe needs Megatron and a process of its own."""


def report(folder: Path, name: str, changed: bool, **places: str) -> Report:
    """What the check makes of one of the two configurations of a case, whose files are made anew.

    Args:
        places: what stands in texts for `{its name}`.
    """
    case = CASES[name]
    shutil.rmtree(folder, ignore_errors=True)
    return report_of(folder, {**case.base, **({name: case.value} if changed else {})}, **places)


def assert_accepted(name: str, before: Report, after: Report) -> None:
    """The two configurations of a case are such as a run takes."""
    case = CASES[name]
    if case.judged:
        refused = [OPTIONS[name].flag] if case.refused else []
        told = [[problem.option for problem in one.errors] for one in (before, after)]
        assert told == [[], refused], [str(error) for one in (before, after) for error in one.errors]


@dataclass
class Here:
    """Probes of this process. ``known``: what they found of configurations that are not changed, which many share."""

    folder: Path
    known: dict[str, list[tuple[Report, Any]]] = field(default_factory=dict)

    def unchanged(self, name: str, probe: Probe) -> list[tuple[Report, Any]]:
        """What the probe finds of a case's first configuration, twice."""
        key = json.dumps([probe.__name__, CASES[name].base])
        if key not in self.known:
            made = (report(self.folder, name, False) for _ in range(2))
            self.known[key] = [(one, probe(one.config)) for one in made]
        return self.known[key]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, relax_home: Path) -> Iterator[Here]:
    """A working directory of its own, no services, and no proxy between this process and itself."""
    folder = tmp_path_factory.mktemp("here")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            patch.delenv(name, raising=False)
            patch.delenv(name.upper(), raising=False)
        yield Here(folder / "case")


@pytest.fixture(autouse=True)
def _able_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are accepted wherever the tests run: what comes of one is compared, not whether it runs."""
    monkeypatch.setattr(sandbox, "hindrance", lambda isolated: "")


@pytest.mark.parametrize("name", HERE)
def test_another_value_changes_what_is_done(name: str, here: Here) -> None:
    probe = CASES[name].probe
    assert not isinstance(probe, str)
    (before, first), (_, again) = here.unchanged(name, probe)
    after = report(here.folder, name, True)
    config, modules = watched(after.config, name)
    second = probe(config)
    assert_accepted(name, before, after)
    assert_shown(name, [first, again, second], modules)


def assert_shown(name: str, results: list[Any], modules: Collection[str]) -> None:
    """The first two results, of one configuration, are equal, the third one is not, and the option was read.

    Args:
        modules: that read it.
    """
    first, again, second = results
    assert first == again, "it differs by itself"
    assert first != second
    effect = WIRED[name].effect
    assert effect in modules or effect in BEFORE


@pytest.mark.parametrize("name", ONE_VALUE)
def test_another_value_than_the_only_one_is_refused(name: str) -> None:
    option, value = OPTIONS[name], ONE_VALUE[name]
    if option.choices and value not in option.choices:
        assert option.choices == (option.default,)
        with pytest.raises(BadValueError):
            option.convert(value)
        return
    assert option.details.honours == (option.default,)
    config = with_options(RelaxConfig(), {name: option.convert(value)})
    [problem] = unwired_problems(config, {})
    assert (problem.option, problem.severity) == (option.flag, "error")


# In a process with Megatron


class There(NamedTuple):
    """What that process says, by option; ``constructed``: what each of Megatron's constructors gets."""

    reports: dict[str, tuple[Report, Report]]
    answers: dict[str, list[dict[str, Any]]]
    constructed: dict[str, dict[str, str]]


@pytest.fixture(scope="module", autouse=True)
def started(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], There] | None]:
    """One process for all of it, which takes seconds, beside the first tests; None where no test asks for it."""
    items = [item for item in request.session.items if item.path == request.path]
    if not any("there" in getattr(item, "fixturenames", ()) for item in items):
        yield None
        return
    work = tmp_path_factory.mktemp("effects")
    write_batches(str(work))
    model: Path = request.getfixturevalue("tiny_model")
    other = Path(shutil.copytree(model, work / "other-model")) / "model.safetensors"
    save_file({name: 2 * weight for name, weight in load_file(other).items()}, other, {"format": "pt"})
    models = {"model": str(model), "other_model": str(other.parent)}
    found = {
        name: (report(work / "case", name, False, **models), report(work / "case", name, True, **models))
        for name in THERE
    }
    cases = [
        {"probe": CASES[name].probe, "config": one.config.model_dump(mode="json"), "name": looked_at}
        for name, (before, after) in found.items()
        for one, looked_at in ((before, None), (before, None), (after, name))
    ]
    values = {option.name: other_value(option) for option in PASSED["megatron"]}
    (work / "asked.json").write_text(json.dumps({"cases": cases, "values": values}))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_ranks, 1, "effect_probes_training:everything", {"work": str(work)})

        def result() -> There:
            [answer] = running.result()
            answers = iter(answer["answers"])
            return There(found, {name: [next(answers) for _ in range(3)] for name in THERE}, answer["constructed"])

        yield result


@pytest.fixture(scope="module")
def there(started: Callable[[], There] | None) -> There:
    """What the process says."""
    assert started is not None
    return started()


@pytest.mark.megatron
@pytest.mark.parametrize("name", THERE)
def test_another_value_changes_what_is_trained(name: str, there: There) -> None:
    assert_accepted(name, *there.reports[name])
    for answer in there.answers[name]:
        assert not answer["error"], answer["error"]
    assert_shown(name, [answer["value"] for answer in there.answers[name]], there.answers[name][-1]["modules"])


# Options that are passed through

PASSED = {
    section: [
        option
        for name, option in pass_throughs().items()
        if option.section == section and option.role == "passed" and name not in OPTIONS
    ]
    for section in ("megatron", "sglang")
}


def other_value(option: PassThrough) -> Any:
    """A value of an option that is not its default, if there is one."""
    if option.kind == "bool":
        return option.default is not True
    if option.choices:
        choice = next((choice for choice in option.choices if choice != option.default), option.choices[0])
        return [choice] if option.kind == "list" else choice
    items: dict[str, list[Any]] = {
        "int": [7, 8],
        "float": [0.5, 0.25],
        "text": ["a", "b"],
        "json": [{"a": 1}, {"b": 2}],
    }
    if option.kind == "list":
        return items[option.item]
    return next(value for value in items[option.kind] if value != option.default)


CONVERTED = {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16", "fp8": "torch.uint8"}


@pytest.mark.megatron
@pytest.mark.parametrize("option", PASSED["megatron"], ids=lambda option: option.name)
def test_what_is_passed_to_megatron_reaches_its_constructors(option: PassThrough, there: There) -> None:
    value = other_value(option)
    alone = value[0] if option.converts == "one" and len(value) == 1 else value
    text = CONVERTED[value] if option.converts == "dtype" else repr(alone)
    assert there.constructed[option.name] == {
        target: f"{{{option.field_of(target)!r}: {text}}}" for target in option.targets
    }


@pytest.mark.parametrize("option", PASSED["sglang"], ids=lambda option: option.name)
def test_what_is_passed_to_sglang_is_on_its_command_line(option: PassThrough, tmp_path: Path) -> None:
    value = other_value(option)
    words = server_words(option, value)
    before, after = (
        probes.engines(with_options(RelaxConfig(), {"hf_checkpoint": str(tmp_path), **given}))
        for given in ({}, {option.name: value})
    )
    assert words
    assert after != before  # on a CPU some are there without asking
    for spec in after:
        assert any(spec.arguments[place:][: len(words)] == words for place in range(len(spec.arguments)))
