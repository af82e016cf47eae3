"""Comparing the samples of a group with each other: ``--custom-rm-path relax_core.rewards.judge.group.pairwise``.

Guarantee: every two samples are compared both ways round, so that their order decides nothing; a comparison without a
verdict counts for neither, and a sample without any has no score, never 0.
"""

from collections.abc import Sequence
from itertools import permutations
from typing import Any

from relax_core import aio
from relax_core.rewards.judge.client import Answer, JudgeService, service_of_environment
from relax_core.rewards.judge.question import Question, question
from relax_core.rewards.types import RewardInput

TEMPLATE = "pairwise"


async def pairwise(samples: Sequence[RewardInput]) -> list[dict[str, Any]]:
    """The share of comparisons with the others of its group that each sample wins; a tie is half a win.

    A group of N takes N (N - 1) questions. Needs --group-rm and --reward-key score.

    Returns:
        For each sample ``score`` (None without a verdict), ``comparisons`` that have one, ``judge_prompt`` and
        ``judge_output`` of those in which it comes first.

    Raises:
        UserError: no judge runs or answers.
    """
    service = service_of_environment()
    pairs = list(permutations(range(len(samples)), 2))
    asked = [question(samples[first], TEMPLATE, other=samples[second].response) for first, second in pairs]
    answers = await aio.gather(_ask(service, one, seed) for seed, one in enumerate(asked))
    wins: list[list[float]] = [[] for _ in samples]
    texts: list[list[tuple[str, str]]] = [[] for _ in samples]
    for (first, second), one, answer in zip(pairs, asked, answers, strict=True):
        texts[first].append((one.messages[-1]["content"], answer.text))
        value = None if answer.cut else one.read(answer.text).value
        if value is not None:
            wins[first].append(value)
            wins[second].append(1 - value)
    return [
        {
            "score": sum(won) / len(won) if won else None,
            "comparisons": len(won),
            "judge_prompt": "\n\n".join(prompt for prompt, _ in told),
            "judge_output": "\n\n".join(output for _, output in told),
        }
        for won, told in zip(wins, texts, strict=True)
    ]


async def _ask(service: JudgeService, one: Question, seed: int) -> Answer:
    return await service.ask(one.messages, seed=seed)
