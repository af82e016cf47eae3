"""How a response is sampled: options, seeds and the token budget.

Guarantee: what the engine is asked for depends on the options and on (run seed, step, prompt, sample) alone, never on
the order of requests, the number of engines or the time; and prompt and response together never exceed the context.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

from data.errors import UserError
from relax_core.config.eval_set import MAX_STOP_STRINGS, EvalSet
from relax_core.config.eval_sets import problems_of
from relax_core.config.problems import raise_problems
from relax_core.config.sections import RelaxConfig

EVAL_STEP = -1
"""The step that seeds of evaluation samples are made for: the same noise at every evaluation of a run, so that two of
them differ by the weights only."""


@dataclass(frozen=True)
class Sampling:
    """Sampling options, checked. Make one by ``for_training`` or ``for_evaluation``.

    Attributes:
        temperature: 0 is greedy, allowed in evaluation only.
        top_p: in (0, 1].
        top_k: -1 is off.
        max_new_tokens: most tokens of a response; None leaves the context as the only bound.
        min_new_tokens: fewest tokens of a response before a token may end it; a stop string may end it sooner.
        stop: stop strings.
        stop_token_ids: stop tokens beside the model's own end-of-sequence tokens.
        skip_special_tokens: leave special tokens out of the response text.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    max_new_tokens: int | None = None
    min_new_tokens: int = 0
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
        sampling._check()
        return sampling

    @classmethod
    def for_evaluation(cls, eval_set: EvalSet, config: RelaxConfig) -> "Sampling":
        """The options of an evaluation set, which alone says how its responses are sampled.

        Args:
            eval_set: of a resolved configuration.
            config: says how responses become text.

        Raises:
            UserError: a value out of range.
        """
        raise_problems(problems_of([eval_set]))
        given = {
            "temperature": eval_set.temperature,
            "top_p": eval_set.top_p,
            "top_k": eval_set.top_k,
            "max_new_tokens": eval_set.max_response_len,
            "min_new_tokens": eval_set.min_new_tokens,
            "stop": tuple(eval_set.stop or ()),
            "stop_token_ids": tuple(eval_set.stop_token_ids or ()),
        }
        options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        return cls(**options, skip_special_tokens=config.rollout.rollout_skip_special_tokens)

    def params(self, seed: int, budget: int) -> dict[str, Any]:
        """SGLang's ``sampling_params`` of one request, a new dict each time.

        Args:
            seed: see ``sample_seed``. SGLang heeds it in its deterministic mode only.
            budget: most new tokens, from ``response_budget``; at least 1.
        """
        params: dict[str, Any] = {
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
        if self.min_new_tokens:  # SGLang refuses more than there is room for
            params["min_new_tokens"] = min(self.min_new_tokens, budget)
        return params

    def _check(self) -> None:
        """Refuse what SGLang would refuse, under the option's own name."""
        wrong: list[str] = []
        if not 0 <= self.temperature < float("inf"):
            wrong.append(f"--rollout-temperature {self.temperature} is not a finite number of at least 0")
        if not 0 < self.top_p <= 1:
            wrong.append(f"--rollout-top-p {self.top_p} is not in (0, 1]")
        if self.top_k != -1 and self.top_k < 1:
            wrong.append(f"--rollout-top-k {self.top_k} is neither -1 (off) nor at least 1")
        if self.max_new_tokens is not None and self.max_new_tokens < 1:
            wrong.append(f"--rollout-max-response-len {self.max_new_tokens} is below 1")
        if len(self.stop) > MAX_STOP_STRINGS:
            wrong.append(f"--rollout-stop has {len(self.stop)} strings, SGLang takes {MAX_STOP_STRINGS}")
        if "" in self.stop:
            wrong.append("--rollout-stop holds an empty string, which would end every response at once")
        if wrong:
            raise UserError("Sampling options: " + "; ".join(wrong) + ".", "Change the named options.")


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
