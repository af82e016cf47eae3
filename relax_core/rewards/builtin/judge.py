"""Rewards of a judge: ``judge`` grades with any template, ``dapo-genrm`` decides whether the answer is the label's.

Guarantee: the score is the judge's verdict, from 0 to 1, or there is none: an answer without a verdict, with one off
the scale, or cut off before its end is no score, never 0. Question and answer are kept whole. The same sample is asked
with the same seed.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

from data.errors import UserError
from relax_core import aio
from relax_core.rewards.judge.client import Answer, JudgeService, service_of_environment
from relax_core.rewards.judge.question import Question, builtin_templates, question
from relax_core.rewards.judge.verdict import Verdict
from relax_core.rewards.registry import register
from relax_core.rewards.types import RewardInput

OPTIONS = ("genrm_urls", "genrm_sampling_config", "genrm_template")
SEPARATOR = "\n\n=== the other way round ===\n\n"
"""Between the two questions, and answers, of a comparison."""


@register("judge", options=OPTIONS, key="score")
async def judge(
    sample: RewardInput,
    genrm_urls: Sequence[str] | None = None,
    genrm_sampling_config: dict[str, Any] | None = None,
    genrm_template: str | None = None,
) -> dict[str, Any]:
    """What a model (--genrm-model-path) thinks of the response, 0 to 1, asked with --genrm-template.

    Args:
        genrm_urls: addresses of the judge's engines; none: those of the variable RELAX_GENRM_URLS.
        genrm_sampling_config, genrm_template: the options; without a template it is pointwise. A row's
            metadata.judge_template, a built-in one's name, wins.

    Returns:
        ``score`` (None: no verdict), ``verdict`` as the judge gave it, ``verdict_error`` where there is none,
        ``criterion_1`` and so on of a rubric, ``judge_prompt`` and ``judge_output``.

    Raises:
        UserError: no judge runs or answers, or the sample lacks what the template asks for.
    """
    return await _judged(sample, genrm_urls, genrm_sampling_config, genrm_template or "pointwise")


@register("dapo-genrm", options=OPTIONS, key="score")
async def dapo_genrm(
    sample: RewardInput,
    genrm_urls: Sequence[str] | None = None,
    genrm_sampling_config: dict[str, Any] | None = None,
    genrm_template: str | None = None,
) -> dict[str, Any]:
    """1 where a model (--genrm-model-path) finds the answer to be the label's, else 0; see ``judge``."""
    return await _judged(sample, genrm_urls, genrm_sampling_config, genrm_template or "correctness")


async def _judged(
    sample: RewardInput, urls: Sequence[str] | None, sampling: dict[str, Any] | None, template: str
) -> dict[str, Any]:
    own = sample.metadata.get("judge_template")
    if own is not None and own not in builtin_templates():  # a file named by data would be read from this machine
        raise UserError(
            f"Sample {sample.sample_id}: its metadata.judge_template is {str(own)[:80]!r}.",
            f"Write one of {', '.join(builtin_templates())}.",
        )
    asked = question(sample, own or template)
    service = JudgeService(tuple(urls), sampling or {}) if urls else service_of_environment()
    digest = hashlib.sha256(sample.sample_id.encode(errors="surrogatepass")).digest()
    seed = int.from_bytes(digest[:4], "big") >> 1
    both = [asked.messages, *([asked.swapped] if asked.swapped else [])]
    answers: list[Answer] = await aio.gather(service.ask(messages, seed=seed) for messages in both)
    verdicts = [_read(asked, answer) for answer in answers]
    return {
        "score": _score(asked, verdicts),
        **_told(asked, verdicts),
        "judge_prompt": SEPARATOR.join(map(_text, both)),
        "judge_output": SEPARATOR.join(answer.text for answer in answers),
    }


def _read(asked: Question, answer: Answer) -> Verdict:
    return Verdict(None, "the answer was cut off at max_response_len") if answer.cut else asked.read(answer.text)


def _score(asked: Question, verdicts: Sequence[Verdict]) -> float | None:
    """The mean over both orders of a comparison, in the second of which the response is the second answer."""
    if any(verdict.value is None for verdict in verdicts):
        return None
    scores = [asked.score(verdict) for verdict in verdicts]
    return scores[0] if len(scores) == 1 else (scores[0] + 1 - scores[1]) / 2


def _told(asked: Question, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    told: dict[str, Any] = {"verdict": verdicts[0].value}
    if len(verdicts) > 1:
        told["verdict_swapped"] = verdicts[1].value
    if reasons := [verdict.why for verdict in verdicts if verdict.why]:
        told["verdict_error"] = "; ".join(reasons)
    return told | {f"criterion_{k}": verdicts[0].parts.get(k) for k in range(1, len(asked.criteria) + 1)}


def _text(messages: Sequence[dict[str, str]]) -> str:
    return "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in messages)
