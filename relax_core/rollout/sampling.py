"""How a response is sampled: options, seeds and the token budget.

Guarantee: what the engine is asked for depends on the options and on (run seed, step, prompt, sample) alone, never on
the order of requests, the number of engines or the time; and prompt and response together never exceed the context.
"""

import hashlib
from dataclasses import dataclass
from typing import Any, TypeVar

from data.errors import UserError
from relax_core.config.sections import RelaxConfig

T = TypeVar("T")

EVAL_STEP = -1
"""The step that seeds of evaluation samples are made for: the same noise at every evaluation of a run, so that two of
them differ by the weights only."""

MAX_STOP_STRINGS = 32
"""SGLang refuses more stop strings than this."""


@dataclass(frozen=True)
class Sampling:
    """Sampling options, checked. Make one by ``for_training`` or ``for_evaluation``.

    Attributes:
        temperature: 0 is greedy, allowed in evaluation only.
        top_p: in (0, 1].
        top_k: -1 is off.
        max_new_tokens: most tokens of a response; None leaves the context as the only bound.
        stop: stop strings.
        stop_token_ids: stop tokens beside the model's own end-of-sequence tokens.
        skip_special_tokens: leave special tokens out of the response text.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    skip_special_tokens: bool = False

    @classmethod
    def for_training(cls, config: RelaxConfig) -> "Sampling":
        """The options of training rollouts.

        Raises:
            UserError: a value out of range, a temperature of 0 included: log-probs are scaled by the temperature.
        """
        options = config.rollout
        if not options.rollout_temperature > 0:
            raise UserError(
                f"--rollout-temperature {options.rollout_temperature} is not positive.",
                "Training needs varied responses: use a value above 0, e.g. 1.0.",
            )
        sampling = cls(
            temperature=options.rollout_temperature,
            top_p=options.rollout_top_p,
            top_k=options.rollout_top_k,
            max_new_tokens=options.rollout_max_response_len,
            stop=tuple(options.rollout_stop or ()),
            stop_token_ids=tuple(options.rollout_stop_token_ids or ()),
            skip_special_tokens=options.rollout_skip_special_tokens,
        )
        sampling._check("rollout")
        return sampling

    @classmethod
    def for_evaluation(cls, config: RelaxConfig) -> "Sampling":
        """The options of evaluation: each ``eval_*`` option where set, else its ``rollout_*`` counterpart.

        Raises:
            UserError: a value out of range.
        """
        options, rollout = config.eval, config.rollout
        sampling = cls(
            temperature=_first(options.eval_temperature, rollout.rollout_temperature),
            top_p=_first(options.eval_top_p, rollout.rollout_top_p),
            top_k=_first(options.eval_top_k, rollout.rollout_top_k),
            max_new_tokens=_first(options.eval_max_response_len, rollout.rollout_max_response_len),
            stop=tuple(rollout.rollout_stop or ()),
            stop_token_ids=tuple(rollout.rollout_stop_token_ids or ()),
            skip_special_tokens=rollout.rollout_skip_special_tokens,
        )
        sampling._check("eval")
        return sampling

    def params(self, seed: int, budget: int) -> dict[str, Any]:
        """SGLang's ``sampling_params`` of one request, a new dict each time.

        Args:
            seed: see ``sample_seed``. SGLang heeds it in its deterministic mode only.
            budget: most new tokens, from ``response_budget``; at least 1.
        """
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "max_new_tokens": budget,
            "stop": list(self.stop) or None,
            "stop_token_ids": list(self.stop_token_ids) or None,
            "skip_special_tokens": self.skip_special_tokens,
            # The tokens that ended a response belong to it: they are trained on.
            "no_stop_trim": True,
            "spaces_between_special_tokens": False,
            "sampling_seed": seed,
        }

    def _check(self, prefix: str) -> None:
        """Refuse what SGLang would refuse, under the option's own name."""
        wrong: list[str] = []
        if not 0 <= self.temperature < float("inf"):
            wrong.append(f"--{prefix}-temperature {self.temperature} is not a finite number of at least 0")
        if not 0 < self.top_p <= 1:
            wrong.append(f"--{prefix}-top-p {self.top_p} is not in (0, 1]")
        if self.top_k != -1 and self.top_k < 1:
            wrong.append(f"--{prefix}-top-k {self.top_k} is neither -1 (off) nor at least 1")
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            wrong.append(f"--{prefix}-max-response-len {self.max_new_tokens} is below 1")
        if len(self.stop) > MAX_STOP_STRINGS:
            wrong.append(f"--rollout-stop has {len(self.stop)} strings, SGLang takes {MAX_STOP_STRINGS}")
        if "" in self.stop:
            wrong.append("--rollout-stop holds an empty string, which would end every response at once")
        if wrong:
            raise UserError("Sampling options: " + "; ".join(wrong) + ".", "Change the named options.")


def _first(value: T | None, default: T) -> T:
    """``value`` unless it is None; 0 is a value."""
    return default if value is None else value


def sample_seed(run_seed: int, step: int, prompt_id: str, k: int) -> int:
    """The sampling seed of one sample: the first 31 bits of SHA-256 of ``"run_seed/step/prompt_id/k"``.

    Independent of order, process and platform, so that a repeated generation asks for the same noise.

    Args:
        run_seed: ``--rollout-seed``.
        step: rollout step, or ``EVAL_STEP``.
        prompt_id: of the prompt; with the name of its set in evaluation.
        k: number of the sample among those of this prompt in this step. A prompt that a step draws twice goes on
            counting, see ``rollout.requests``.

    Returns:
        An integer in [0, 2**31).
    """
    digest = hashlib.sha256(f"{run_seed}/{step}/{prompt_id}/{k}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def response_budget(prompt_length: int, max_new_tokens: int | None, context: int, produced: int = 0) -> int:
    """Tokens that may still be generated; 0 means that the response is truncated without asking the engine.

    Args:
        prompt_length: tokens of the prompt.
        max_new_tokens: most tokens of the whole response; None for no bound but the context.
        context: most tokens of prompt and response together.
        produced: tokens of the response that exist already.
    """
    room = context - prompt_length - produced
    if max_new_tokens is not None:
        room = min(room, max_new_tokens - produced)
    return max(room, 0)
