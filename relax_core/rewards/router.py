"""Which reward scores a sample.

Guarantee: an explicit type wins (``metadata.rm_type``, then --rm-type), then one that exactly one label matcher tells
(--rm-type-infer), then --rm-type-fallback, then 0 with --use-opd, else it is an error; a name with ``boxed_`` before it
grades the last box of the response. What was not as said is warned of once per reason, and counted.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

from data.errors import UserError
from relax_core.rewards import registry
from relax_core.rewards.types import RewardInput, RewardSpec

log = logging.getLogger(__name__)

Decision = Literal["custom", "explicit", "inferred", "fallback", "distilled"]
"""How a sample came to its reward."""


class Route(NamedTuple):
    """The reward of a sample, how it was found, and why not as said, if so: what ``Router.counts`` counts."""

    spec: RewardSpec
    decision: Decision
    reason: str | None = None


ZERO = "zero"
"""--rm-type-fallback that scores nothing: 0 for each sample."""

_warned: set[str] = set()


class Router:
    """Finds a sample's reward.

    Args:
        rm_type: --rm-type.
        infer: --rm-type-infer.
        fallback: --rm-type-fallback.
        reward_key: --reward-key: a score of ZERO has it.
        configured: gives a reward the options that it takes.
        distils: a teacher's log-probs are what is learned from (--use-opd): a sample without a type scores 0, which is
            as it should be.

    Attributes:
        counts: reason -> samples that were not scored as said.
    """

    def __init__(
        self,
        rm_type: str | None,
        infer: bool = False,
        fallback: str | None = None,
        reward_key: str | None = None,
        configured: Callable[[RewardSpec], RewardSpec] = lambda spec: spec,
        distils: bool = False,
    ) -> None:
        self._type, self._infer, self._configured = rm_type, infer, configured
        self._unscored = _fallback(ZERO, reward_key) if distils else None
        self._fallback = None if fallback is None else configured(_fallback(fallback, reward_key))
        self._known: dict[str, RewardSpec | UserError] = {}
        matchers = [spec for spec in registry.builtin_rewards().values() if spec.matches] if infer else []
        self._matchers = [configured(spec) for spec in matchers]
        self.counts: Counter[str] = Counter()

    def route(self, sample_id: str, metadata: Mapping[str, Any], label: Any) -> Route:
        """The reward of a sample.

        Raises:
            UserError: no type, or an unknown one, and no fallback.
        """
        name = metadata.get("rm_type") or self._type
        if name:
            spec = self._find(str(name))
            if isinstance(spec, RewardSpec):
                return Route(spec, "explicit", self._compared(spec, label) if self._infer else None)
            return self._else(f"unknown_type:{name}", spec)
        if self._infer and (inferred := self._inferred(label)) is not None:
            return Route(inferred, "inferred")
        if self._fallback is None and self._unscored is not None:
            return Route(self._unscored, "distilled")
        return self._else("no_type", None if self._fallback else _untyped(sample_id, self._infer))

    def _find(self, name: str) -> RewardSpec | UserError:
        known = self._known.get(name)
        if known is None:
            try:
                known = self._configured(registry.get(name))
            except UserError as error:
                known = error
            self._known[name] = known
        return known

    def _else(self, reason: str, error: UserError | None) -> Route:
        if self._fallback is None:
            assert error is not None
            raise error
        problem = "A sample has no reward type." if error is None else error.problem
        self._count(reason, f"{problem} --rm-type-fallback {self._fallback.name} scores it.")
        return Route(self._fallback, "fallback", reason)

    def _inferred(self, label: Any) -> RewardSpec | None:
        """The only reward whose labels look like this one."""
        found = [spec for spec in self._matchers if _matches(spec, label)]
        return found[0] if len(found) == 1 else None

    def _compared(self, spec: RewardSpec, label: Any) -> str | None:
        """The reason to count where a label looks like that of another reward."""
        inferred = self._inferred(label)
        if inferred is None or inferred.name in (spec.name, spec.name.removeprefix(registry.BOXED)):
            return None
        reason = f"conflict:{spec.name}/{inferred.name}"
        text = f"The label {str(label)[:40]!r} looks like one of {inferred.name}; {spec.name} scores it, as said."
        self._count(reason, text)
        return reason

    def _count(self, reason: str, text: str) -> None:
        self.counts[reason] += 1
        if reason not in _warned:
            _warned.add(reason)
            log.warning("%s (told once; counted as reward_router/%s)", text, reason)


def _fallback(name: str, reward_key: str | None) -> RewardSpec:
    if name != ZERO:
        return registry.get(name)

    def zero(sample: RewardInput) -> Any:
        return 0.0 if reward_key is None else {reward_key: 0.0}

    return RewardSpec(ZERO, zero, False, "0 for each sample", "")


def _matches(spec: RewardSpec, label: Any) -> bool:
    try:
        return spec.matches is not None and spec.matches(label)
    except Exception:  # a label that a matcher cannot read is none of its own
        return False


def _untyped(sample_id: str, infer: bool) -> UserError:
    tried = ", and its label tells none" if infer else ""
    return UserError(
        f"Sample {sample_id} has no reward: neither its metadata.rm_type nor --rm-type is set{tried}.",
        f"Set --rm-type (one of {', '.join(registry.builtin_rewards())}), --rm-type-fallback or --custom-rm-path.",
    )
