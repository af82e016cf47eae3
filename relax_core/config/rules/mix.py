"""Rules of ``--reward-mix``, the parts of a weighted sum of rewards.

Guarantee: a part that no reward and no shaping term has, a weight that is no number and a setting that a part lacks or
cannot have is told before anything is generated.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from relax_core.config.rules.base import Rule
from relax_core.config.rules.named import JUDGED, is_part
from relax_core.config.values import Values


def _wrong(values: Values) -> Iterator[dict[str, Any]]:
    from relax_core.rewards.parts import read_parts  # here: rewards may need the configuration

    if values.reward_mix is None:
        return
    try:
        read_parts(values.reward_mix)
    except ValueError as error:
        yield {"problem": str(error)}


def _out_of_reach(values: Values) -> Iterator[dict[str, Any]]:
    """A penalty of long responses that begins beyond the longest, or ends there."""
    longest, part = values.rollout_max_response_len, (values.reward_mix or {}).get("overlong")
    if not isinstance(part, Mapping) or longest is None:
        return
    last, buffer = part.get("max"), part.get("buffer")
    if not isinstance(last, int) or not isinstance(buffer, int) or last <= longest or not 0 < buffer <= last:
        return
    least = max(0.0, (longest - (last - buffer)) / buffer)
    yield {"least": f"{-least:.3g}" if least else "0"}


RULES: tuple[Rule, ...] = (
    Rule(
        name="mix-is-right",
        option="reward_mix",
        reads=("reward_mix",),
        each=_wrong,
        message="{problem}.",
    ),
    Rule(
        name="judged-part-has-a-judge",
        option="reward_mix",
        reads=("genrm_model_path", "reward_mix"),
        broken=lambda v: v.genrm_model_path is None and is_part(v, *JUDGED),
        message="has a part that needs --genrm-model-path, the model that judges.",
    ),
    Rule(
        name="remote-part-has-a-service",
        option="reward_mix",
        reads=("rm_url", "reward_mix"),
        broken=lambda v: v.rm_url is None and is_part(v, "remote_rm"),
        message="has the part remote_rm, which needs --rm-url, the address of its service.",
    ),
    Rule(
        name="overlong-is-reached",
        option="reward_mix",
        reads=("reward_mix", "rollout_max_response_len"),
        each=_out_of_reach,
        message="has a part overlong that never goes below {least}: no response is longer than "
        "--rollout-max-response-len {rollout_max_response_len}.",
        fix="Set its max to that, or less.",
        severity="warning",
    ),
)
