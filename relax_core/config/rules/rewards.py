"""Rules of the reward, of the judge and of distillation.

Guarantee: a reward that could score nothing, for want of its service, its judge or its key, is told before anything is
generated.
"""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from data.errors import UserError
from data.nearest import nearest
from relax_core.config.rules.base import Rule
from relax_core.config.rules.distillation import RULES as DISTILLATION
from relax_core.config.rules.genrm import RULES as GENRM
from relax_core.config.rules.kinds import idle
from relax_core.config.rules.mix import RULES as MIX
from relax_core.config.rules.named import JUDGED, NAMING, OF_DICTS, REWARDS, has_key, keys_of, named, plain
from relax_core.config.values import Values

ZERO = "zero"
"""The fallback that scores 0."""


def _unknown_fallback(values: Values) -> Iterator[dict[str, Any]]:
    name = values.rm_type_fallback
    if name is not None and name != ZERO and plain(name) not in REWARDS:
        yield {"hint": nearest(name, (ZERO, *REWARDS)) or f"Names: {', '.join((ZERO, *REWARDS))}."}


def _unknown_rewards(values: Values) -> Iterator[dict[str, Any]]:
    """The names that no reward of this version has, where nothing stands in for it. Reads ``NAMING``."""
    from relax_core.rewards import registry  # here: rewards may need the configuration

    if values.rm_type_fallback is not None:
        return
    named = [("rm_type", values.rm_type)] if values.custom_rm_path is None and values.rm_type else []
    option = "eval_config" if values.eval_config else "eval_datasets"
    for one in values.eval_datasets or ():
        name = one.added_metadata.get("rm_type")
        if name and not one.custom_rm_path:
            named.append((option, str(name)))
    for option, name in dict.fromkeys(named):
        try:
            registry.get(name)
        except UserError as error:
            yield {"option": option, "value": name, "hint": error.fix}


def _without(values: Values, reward: str, needed: str) -> Iterator[dict[str, Any]]:
    if values[needed] is None:
        yield from ({"option": name, "value": reward} for name in named(values, reward))


def _missing_key(values: Values) -> Iterator[dict[str, Any]]:
    """The keys of scores that a built-in reward does not return."""
    sets = "eval_config" if values.eval_config else "eval_datasets"
    asked: dict[tuple[object, object], str] = {}
    if values.custom_rm_path is None:
        asked[values.reward_key, values.rm_type] = "reward_key"
    for one in values.eval_datasets or ():
        reward, key = one.added_metadata.get("rm_type") or one.default_rm_type, one.reward_key
        if not one.custom_rm_path:
            asked.setdefault((key, str(reward)), "eval_reward_key" if key == values.eval_reward_key else sets)
    for (key, reward), option in asked.items():
        keys = keys_of(values, str(reward)) if key else None
        if keys is not None and not has_key(keys, str(key)):
            hint = nearest(str(key), keys) or f"Its keys are {', '.join(keys)}."
            yield {"option": option, "value": key, "reward": reward, "hint": hint}


def _is_web(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False


RULES: tuple[Rule, ...] = (
    Rule(
        name="fallback-is-known",
        option="rm_type_fallback",
        reads=("rm_type_fallback",),
        each=_unknown_fallback,
        message="is no reward.",
        fix="{hint}",
    ),
    Rule(
        name="reward-is-there",
        option="rm_type",
        reads=NAMING,
        each=_unknown_rewards,
        message="is no reward of this version.",
        fix="{hint}",
    ),
    Rule(
        name="remote-reward-has-a-service",
        option="rm_type",
        reads=("rm_url", *NAMING),
        each=lambda v: _without(v, "remote_rm", "rm_url"),
        message="needs --rm-url, the address of its service.",
    ),
    Rule(
        name="service-is-on-the-web",
        option="rm_url",
        reads=("rm_url",),
        broken=lambda v: v.rm_url is not None and not _is_web(v.rm_url),
        message="is no address of a service.",
        fix="Write http://host:port/path.",
    ),
    Rule(
        name="judged-reward-has-a-judge",
        option="rm_type",
        reads=("genrm_model_path", *NAMING),
        each=lambda v: (found for name in JUDGED for found in _without(v, name, "genrm_model_path")),
        message="needs --genrm-model-path, the model that judges.",
    ),
    Rule(
        name="own-reward-wins",
        option="rm_type",
        reads=("rm_type", "custom_rm_path"),
        broken=lambda v: v.rm_type is not None and v.custom_rm_path is not None,
        message="is not used: --custom-rm-path scores every sample.",
        fix="Leave one out.",
        severity="warning",
    ),
    idle(
        "own-reward-needs-no-routing",
        ("rm_type_fallback", "rm_type_infer", "code_sandbox", "genrm_template"),
        ("custom_rm_path",),
        lambda v: v.custom_rm_path is not None,
        "has no effect: --custom-rm-path scores every sample.",
        "Leave one out.",
    ),
    Rule(
        name="score-of-dapo",
        option="rm_type",
        reads=("rm_type", "reward_key", "custom_rm_path"),
        broken=lambda v: v.custom_rm_path is None and plain(v.rm_type) == "dapo" and v.reward_key is None,
        message="returns several values, and no --reward-key says which is the score.",
        fix="Add --reward-key score.",
        severity="warning",
    ),
    Rule(
        name="key-is-of-the-reward",
        option="reward_key",
        reads=("reward_key", "eval_reward_key", "reward_mix", *NAMING),
        each=_missing_key,
        message="is no key of what the reward {reward} returns.",
        fix="{hint}",
    ),
    Rule(
        name="categories-of-a-reward",
        option="log_reward_category",
        reads=("log_reward_category", "rm_type", "custom_rm_path"),
        broken=lambda v: (
            v.log_reward_category is not None
            and v.custom_rm_path is None
            and v.rm_type is not None
            and plain(v.rm_type) not in OF_DICTS
        ),
        message="finds nothing to count: the reward {rm_type} returns a number, not several values.",
        severity="warning",
    ),
    Rule(
        name="group-of-several",
        option="group_rm",
        reads=("group_rm", "n_samples_per_prompt"),
        broken=lambda v: v.group_rm and v.n_samples_per_prompt == 1,
        message="scores groups of one response.",
        fix="Raise --n-samples-per-prompt, or leave this out.",
        severity="warning",
    ),
    Rule(
        name="group-has-a-function",
        option="group_rm",
        reads=("group_rm", "custom_rm_path"),
        broken=lambda v: v.group_rm and v.custom_rm_path is None,
        message="has no effect on built-in rewards, which score one response at a time.",
        fix="Give --custom-rm-path, or leave this out.",
        severity="warning",
    ),
    Rule(
        name="own-scores-win",
        option="disable_rewards_normalization",
        reads=("disable_rewards_normalization", "custom_reward_post_process_path"),
        broken=lambda v: v.disable_rewards_normalization and v.custom_reward_post_process_path is not None,
        message="has no effect: --custom-reward-post-process-path makes the scores.",
        fix="Leave one out.",
        severity="warning",
    ),
    Rule(
        name="mix-has-parts",
        option="rm_type",
        reads=("reward_mix", *NAMING),
        each=lambda v: _without(v, "mix", "reward_mix"),
        message="is the sum of what each row's metadata.reward_mix says: no --reward-mix is there for rows without it.",
        fix="Give --reward-mix if there are such rows.",
        severity="warning",
    ),
    Rule(
        name="mix-is-asked-for",
        option="reward_mix",
        reads=("reward_mix", *NAMING),
        broken=lambda v: v.reward_mix is not None and not list(named(v, "mix")),
        message="counts for rows with a metadata.rm_type of mix alone.",
        fix="Give --rm-type mix if all rows are to have it.",
        severity="warning",
    ),
    *MIX,
    idle(
        "own-scores-follow-no-policy",
        ("no_score_policy", "truncated_reward_policy"),
        ("custom_reward_post_process_path",),
        lambda v: v.custom_reward_post_process_path is not None,
        "has no effect: --custom-reward-post-process-path makes the scores.",
        "Leave one out.",
    ),
    idle(
        "signature-is-of-a-function",
        ("custom_rm_signature",),
        ("custom_rm_path", "eval_datasets", "eval_config"),
        lambda v: v.custom_rm_path is None and not any(one.custom_rm_path for one in v.eval_datasets or ()),
        "has no effect without --custom-rm-path.",
        "Give that, or leave this out.",
    ),
    Rule(
        name="functions-of-trl-return-numbers",
        option="reward_key",
        reads=("reward_key", "custom_rm_path", "custom_rm_signature"),
        broken=lambda v: v.reward_key is not None and v.custom_rm_path is not None and v.custom_rm_signature == "trl",
        message="finds no key: functions of TRL's convention return numbers.",
        fix="Leave it out.",
    ),
    *GENRM,
    *DISTILLATION,
)
