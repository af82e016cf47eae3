"""Why a stage that is repeated may give something else than it did.

Guarantee: told only where the identity that the run recorded (options, inputs, sources of functions) is not the one
that the stage has now; the identity is made as a run makes it.
"""

from typing import Any

from relax_core.config import RelaxConfig, options_hash, stage_options
from relax_core.replay.recorded import TABLE_OF, RecordedStep
from relax_core.rewards.sources import reward_source_hash
from relax_core.rollout.hooks import advantage_sources
from relax_core.run.records import fingerprint


def why_other(step: RecordedStep, stage: str, config: RelaxConfig) -> str:
    """The reason, where the identity of reward or advantage has changed since; else an empty text.

    Args:
        config: the run's options, as they are now.
    """
    record = step.record(stage)
    if record is None or stage not in ("reward", "advantage") or config.debug.load_debug_rollout_data:
        return ""
    named = step.named
    tables = ("rollout",) if stage == "reward" else ("rollout", "reward", "forward")
    content: dict[str, Any] = {name: named[TABLE_OF[name]]["sha256"] for name in tables if TABLE_OF[name] in named}
    if stage == "reward":
        content["source"] = reward_source_hash(config)
    elif sources := advantage_sources(config):
        content["sources"] = sources
    options = options_hash(stage_options(config, "reward" if stage == "reward" else "advantage"))
    key = fingerprint({"stage": stage, "step": step.step, "options": options, "inputs": content})
    if "rollout" not in content or key == record.key:
        return ""
    return "it was recorded with other options, or with another source of a function, than the run has now"
