"""The judge, for reward functions of the user.

Guarantee: ``judge`` works in every reward function of a run that has a judge (--genrm-model-path); without one it says
so. It is the engines' plain answer: reading a verdict in it is ``relax_core.rewards.judge.verdict``'s.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from relax_core.rewards.judge.client import service_of_environment


async def judge(prompt: str | Sequence[Mapping[str, str]], **sampling: Any) -> str:
    """What the judge answers.

    Args:
        prompt: a text, or messages with ``role`` and ``content``.
        sampling: in place of --genrm-sampling-config: temperature, top_p, top_k, max_response_len, seed, and what else
            SGLang's chat requests take.

    Raises:
        UserError: no judge runs, it refuses the question, or it does not answer in three tries.
    """
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return (await service_of_environment().ask(messages, **sampling)).text


__all__ = ["judge"]
