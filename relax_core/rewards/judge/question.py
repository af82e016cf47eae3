"""The question that a judge is asked: a Jinja template, filled in with a sample.

Guarantee: a sample's texts are data: nothing in them is run as a template, none of them can end the part that the
template gives it, since its marks depend on the texts, and what a model's chat format would take for the end of a turn
is broken up. The built-in templates are files beside this module; the user's is one like them.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from data.errors import UserError
from relax_core.rewards.answers.thinking import final_part
from relax_core.rewards.judge import verdict
from relax_core.rewards.judge.verdict import Verdict
from relax_core.rewards.types import RewardInput

OPTION = "--genrm-template"
FOLDER = Path(__file__).parent / "templates"
SUFFIX = ".jinja"

PARSERS = ("number", "yes_no", "preference", "criteria")
"""What a template may say that its verdict is."""

_CONTROL = re.compile(
    r"<(?=[|｜])|(?<=[|｜])>|<(?=/?(?:s|bos|eos|pad|unk|start_of_turn|end_of_turn|think)>)|\[(?=/?(?:INST|SYSTEM_PROMPT)\])",
    re.IGNORECASE,
)
"""Where marks of chat formats begin or end."""


@dataclass(frozen=True)
class Question:
    """What to ask and how to read the answer.

    Attributes:
        messages: as chat models take them: ``role`` and ``content``.
        read: the verdict in an answer.
        score: the score of a verdict's value, 0 to 1.
        swapped: of a comparison: the same with the two answers changed over.
        criteria: weights of a list of criteria, from the first one on.
    """

    messages: tuple[dict[str, str], ...]
    read: Callable[[str], Verdict]
    score: Callable[[Verdict], float]
    swapped: "tuple[dict[str, str], ...] | None" = None
    criteria: tuple[float, ...] = ()


def builtin_templates() -> tuple[str, ...]:
    """Names of the templates that come with Relax."""
    return tuple(sorted(path.name.removesuffix(SUFFIX) for path in FOLDER.glob(f"*{SUFFIX}")))


def template_text(name: str) -> str:
    """The text of a built-in template, or of the user's file.

    Raises:
        UserError: there is neither.
    """
    path = FOLDER / f"{name}{SUFFIX}" if name in builtin_templates() else Path(name)
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"{OPTION} {name}: it is no template: {error}.",
            f"Name a file, or one of {', '.join(builtin_templates())}.",
        ) from error


def check_template(name: str) -> None:
    """Find mistakes of form in a template.

    Raises:
        UserError: see ``template_text``; or it cannot be read as a template.
    """
    _compiled(template_text(name), name)


def question(sample: RewardInput, name: str, other: str | None = None) -> Question:
    """What to ask about a sample.

    Args:
        sample: its metadata may hold ``reference`` (an answer to compare with), ``rubric`` (criteria) and
            ``judge_scale`` (two numbers).
        name: a built-in template, or the user's file.
        other: an answer to compare with, in place of the reference.

    Raises:
        UserError: the template is wrong, or needs what the sample does not have.
    """
    given = _given(sample, other)
    messages, module = _rendered(name, given, sample)
    parser = getattr(module, "verdict", "number")
    if parser not in PARSERS:
        raise UserError(f"{OPTION} {name}: it sets verdict to {parser!r}.", f"Set it to one of {', '.join(PARSERS)}.")
    if parser == "yes_no":
        return Question(messages, verdict.yes_no, lambda found: found.value or 0.0)
    if parser == "preference":
        turned = {**given, "first": given.get("second"), "second": given.get("first")}
        swapped, _ = _rendered(name, turned, sample)
        return Question(messages, verdict.preference, lambda found: found.value or 0.0, swapped)
    if parser == "criteria":
        weights = _weights(sample)
        return Question(
            messages,
            lambda output: verdict.criteria(output, len(weights)),
            lambda found: _weighed(found, weights),
            criteria=weights,
        )
    low, high = _scale(getattr(module, "scale", (0, 10)), name, sample)
    return Question(
        messages,
        lambda output: verdict.number(output, low, high),
        lambda found: ((found.value or 0.0) - low) / (high - low),
    )


def plain(text: str) -> str:
    """A text without marks that a chat format would take for its own: a blank breaks each of them up."""
    return _CONTROL.sub(lambda match: f" {match[0]}" if match[0] == ">" else f"{match[0]} ", text)


def _given(sample: RewardInput, other: str | None) -> dict[str, Any]:
    """The variables of a template; what a sample lacks is missing, and a template that needs it fails."""
    second = sample.metadata.get("reference") if other is None else other
    texts: dict[str, Any] = {
        "prompt": sample.prompt,
        "response": sample.response,
        "answer": final_part(sample.response).strip(),
        "label": sample.label,
        "reference": sample.metadata.get("reference"),
        "second": None if second is None else final_part(str(second)).strip(),
    }
    given: dict[str, Any] = {key: plain(str(value)) for key, value in texts.items() if value is not None}
    given["first"] = given["answer"]
    if (rubric := sample.metadata.get("rubric")) is not None:
        given["criteria"] = [plain(text) for text, _ in _rubric(rubric, sample)]
    if (scale := sample.metadata.get("judge_scale")) is not None:
        given["judge_scale"] = scale
    given["metadata"] = sample.metadata
    told = "\0".join(str(value) for value in texts.values())
    given["mark"] = hashlib.sha256(told.encode(errors="surrogatepass")).hexdigest()[:12]
    return given


def _rendered(name: str, given: Mapping[str, Any], sample: RewardInput) -> tuple[tuple[dict[str, str], ...], Any]:
    """The messages, and what the template sets."""
    from jinja2 import TemplateError, UndefinedError

    template = _compiled(template_text(name), name)
    try:
        module = template.make_module({key: value for key, value in given.items() if value is not None})
    except UndefinedError as error:
        raise UserError(
            f"Sample {sample.sample_id} lacks what the judge's template {name} asks for: {error.message}.",
            "label, metadata.reference (to compare with) and metadata.rubric (criteria) come from the prompt file; "
            f"or take another template with {OPTION}.",
        ) from error
    except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"The judge's template {name} failed on sample {sample.sample_id}: {type(error).__name__}: {error}.",
            f"Correct the file of {OPTION}.",
        ) from error
    messages = [{"role": "user", "content": str(module).strip()}]
    if system := str(getattr(module, "system", "")).strip():
        messages.insert(0, {"role": "system", "content": system})
    return tuple(messages), module


@lru_cache(maxsize=32)
def _compiled(text: str, name: str) -> Any:
    from jinja2 import StrictUndefined, TemplateSyntaxError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    try:
        return environment.from_string(text)
    except TemplateSyntaxError as error:
        raise UserError(f"{OPTION} {name}: line {error.lineno}: {error.message}.", "Correct the template.") from error


def _scale(scale: Any, name: str, sample: RewardInput) -> tuple[float, float]:
    try:
        low, high = (float(end) for end in scale)
    except (TypeError, ValueError):
        low = high = 0.0
    if not low < high < float("inf") or low == float("-inf"):
        raise UserError(
            f"Sample {sample.sample_id}: the judge's scale is {scale!r} (template {name}, or metadata.judge_scale).",
            "Write two numbers, the lower one first: [0, 10].",
        )
    return low, high


def _rubric(rubric: Any, sample: RewardInput) -> list[tuple[str, float]]:
    """Criteria and their weights."""
    found = []
    for entry in rubric if isinstance(rubric, list) else [None]:
        pair: tuple[Any, Any] | None = (entry, 1.0) if isinstance(entry, str) else None
        if isinstance(entry, Mapping):
            pair = (entry.get("criterion"), entry.get("weight", 1.0))
        if pair is None or not isinstance(pair[0], str) or not _is_number(pair[1]):
            raise UserError(
                f"Sample {sample.sample_id}: its metadata.rubric has the entry {str(entry)[:80]!r}.",
                'Write a list of texts, or of {"criterion": text, "weight": number}.',
            )
        found.append((pair[0], float(pair[1])))
    if not any(weight > 0 for _, weight in found):
        raise UserError(
            f"Sample {sample.sample_id}: its metadata.rubric has no criterion with a weight above 0.",
            "One at least must add to the score.",
        )
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9


def _weights(sample: RewardInput) -> tuple[float, ...]:
    return tuple(weight for _, weight in _rubric(sample.metadata.get("rubric"), sample))


def _weighed(found: Verdict, weights: tuple[float, ...]) -> float:
    """The weight of what is met, of that of all that add: from 0 to 1, as criteria of negative weight take away."""
    met = sum(weight * found.parts[k] for k, weight in enumerate(weights, 1))
    return min(max(met / sum(weight for weight in weights if weight > 0), 0.0), 1.0)
