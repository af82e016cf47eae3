"""Rules of the training data: its columns, the chat template, streaming, pictures, videos and sound.

Guarantee: an option that changes no prompt under the others is told; a range that holds nothing is refused.
"""

import re
from collections.abc import Iterator
from typing import Any

from data.nearest import nearest
from relax_core.config.rules.base import Rule
from relax_core.config.rules.kinds import idle, is_changed, is_rl
from relax_core.config.values import Values

MEDIA = ("image", "video", "audio")
"""Kinds of media that a prompt may hold."""

_SLICE = re.compile(r"@\[(-?\d*):(-?\d*)\]$")
_TAKEN = ("tokenize", "tools", "conversation")

_OF_MEDIUM = {
    "image_max_token_num": ("image",),
    "image_min_token_num": ("image",),
    "image_resize_scale_factor": ("image", "video"),
    "video_min_token_num": ("video",),
    "video_max_token_num": ("video",),
    "video_fps": ("video",),
    "video_fps_min_frames": ("video",),
    "video_fps_max_frames": ("video",),
    "frame_factor": ("video",),
    "use_audio_in_video": ("video",),
    "audio_sample_rate": ("audio", "video"),
}
_PAIRS = {
    "image_min_token_num": ("image_max_token_num", 4, 16384),
    "video_min_token_num": ("video_max_token_num", 128, 768),
    "video_fps_min_frames": ("video_fps_max_frames", 4, 768),
}
"""Lower option -> upper option, and what each is when it is not set."""

_PREFETCH = ("prefetch_chunk_size", "prefetch_max_cached", "prefetch_num_workers")


def bad_slice(source: str) -> str:
    """The end of a source that looks like a row slice and is none; empty when there is nothing wrong."""
    found = _SLICE.search(source)
    if found and "-" not in found.groups():
        return ""
    return source[source.rindex("@[") :] if "@[" in source and source.endswith("]") else ""


def _bad_slices(values: Values) -> Iterator[dict[str, Any]]:
    if values.prompt_data and (end := bad_slice(values.prompt_data)):
        yield {"end": end}


def _kinds_of_media(values: Values) -> dict[str, Any]:
    return dict(values.multimodal_keys or {})


def _unknown_media(values: Values) -> Iterator[dict[str, Any]]:
    for kind in _kinds_of_media(values):
        if kind not in MEDIA:
            yield {"value": kind, "hint": nearest(str(kind), MEDIA) or f"Kinds: {', '.join(MEDIA)}."}


def _options_without_medium(values: Values) -> Iterator[dict[str, Any]]:
    present = _kinds_of_media(values)
    for name, kinds in _OF_MEDIUM.items():
        if not any(kind in present for kind in kinds) and is_changed(values, name):
            yield {"option": name, "kinds": " or ".join(kinds)}


def _empty_ranges(values: Values) -> Iterator[dict[str, Any]]:
    for low, (high, default_low, default_high) in _PAIRS.items():
        least = default_low if values[low] is None else values[low]
        most = default_high if values[high] is None else values[high]
        if least > most:
            told, other = (low, high) if values[low] is not None else (high, low)
            where = "above" if told == low else "below"
            limit = most if told == low else least
            yield {"option": told, "where": where, "other": f"--{other.replace('_', '-')}", "limit": limit}


def _no_frames(values: Values) -> Iterator[dict[str, Any]]:
    given = values.video_fps_max_frames is not None or values.frame_factor is not None
    most = 768 if values.video_fps_max_frames is None else values.video_fps_max_frames
    factor = 2 if values.frame_factor is None else values.frame_factor
    if given and most < factor:
        yield {"value": most, "factor": factor}


def _bad_renames(values: Values) -> Iterator[dict[str, Any]]:
    for old, new in (values.conversation_key_map or {}).items():
        if not old or not isinstance(new, str) or not new:
            yield {"value": f"{old}: {new}"}


def _taken_arguments(values: Values) -> Iterator[dict[str, Any]]:
    for name in _TAKEN:
        if name in values.apply_chat_template_kwargs:
            yield {"value": name}


RULES: tuple[Rule, ...] = (
    Rule(
        name="row-slice",
        option="prompt_data",
        reads=("prompt_data",),
        each=_bad_slices,
        message="{end} is no row slice.",
        fix="Write @[a:b] with whole numbers, such as @[0:100].",
    ),
    idle(
        "steps-win-over-epochs",
        ("num_epoch",),
        ("num_rollout",),
        lambda v: v.num_rollout is not None,
        "is not used: --num-rollout {num_rollout} says how many steps there are.",
        "Leave one out.",
    ),
    # Conversations
    idle(
        "renames-need-conversations",
        ("conversation_key_map",),
        ("label_key",),
        lambda v: v.label_key is not None,
        "has no effect with --label-key: the prompt is then one text, not a whole conversation.",
        "Leave one out.",
    ),
    Rule(
        name="renames-are-texts",
        option="conversation_key_map",
        reads=("conversation_key_map",),
        each=_bad_renames,
        message="is no pair of two names.",
        fix='Write {{"from": "role", "value": "content"}}.',
    ),
    Rule(
        name="system-prompt-needs-template",
        option="system_prompt",
        reads=("system_prompt", "apply_chat_template", "loss_type"),
        broken=lambda v: v.system_prompt is not None and not v.apply_chat_template and is_rl(v),
        message="has no effect on plain text.",
        fix="Add --apply-chat-template.",
    ),
    idle(
        "template-arguments-need-template",
        ("apply_chat_template_kwargs", "tool_key"),
        ("apply_chat_template", "loss_type"),
        lambda v: is_rl(v) and not v.apply_chat_template,
        "has no effect without --apply-chat-template.",
    ),
    Rule(
        name="template-arguments-of-relax",
        option="apply_chat_template_kwargs",
        reads=("apply_chat_template_kwargs",),
        each=_taken_arguments,
        message="is set by Relax itself.",
        fix="Leave it out.",
    ),
    # Streaming
    idle(
        "buffer-needs-streaming",
        ("streaming_buffer_size",),
        ("use_streaming_dataset",),
        lambda v: not v.use_streaming_dataset,
        "has no effect without --use-streaming-dataset.",
    ),
    idle(
        "prefetch-needs-media",
        _PREFETCH,
        ("use_streaming_dataset", "multimodal_keys"),
        lambda v: not v.use_streaming_dataset or not v.multimodal_keys,
        "has an effect only with both --use-streaming-dataset and --multimodal-keys.",
        "Leave it out.",
    ),
    idle(
        "prefetch-is-on",
        ("prefetch_chunk_size", "prefetch_num_workers"),
        ("prefetch_max_cached", "use_streaming_dataset", "multimodal_keys"),
        lambda v: v.prefetch_max_cached == 0 and v.use_streaming_dataset and v.multimodal_keys,
        "has no effect with --prefetch-max-cached 0, which switches prefetching off.",
        "Leave one out.",
    ),
    Rule(
        name="prefetch-chunk-fits",
        option="prefetch_chunk_size",
        reads=("prefetch_chunk_size", "prefetch_max_cached", "use_streaming_dataset", "multimodal_keys"),
        broken=lambda v: (
            v.use_streaming_dataset and v.multimodal_keys and 0 < v.prefetch_max_cached < v.prefetch_chunk_size
        ),
        message="is more than --prefetch-max-cached {prefetch_max_cached} holds.",
        fix="Make it {prefetch_max_cached} or less.",
        severity="warning",
    ),
    # Media
    Rule(
        name="media-are-known",
        option="multimodal_keys",
        reads=("multimodal_keys",),
        each=_unknown_media,
        message="is no kind of medium.",
        fix="{hint}",
    ),
    Rule(
        name="media-options-need-media",
        option="multimodal_keys",
        reads=("multimodal_keys", *_OF_MEDIUM),
        each=_options_without_medium,
        message="has no effect: --multimodal-keys names no column of the kind {kinds}.",
        fix="Add one, or leave this out.",
        severity="warning",
    ),
    idle(
        "media-workers-need-media",
        ("mm_processor_pool_size",),
        ("multimodal_keys",),
        lambda v: not v.multimodal_keys,
        "has no effect without --multimodal-keys.",
    ),
    Rule(
        name="media-ranges",
        option="image_min_token_num",
        reads=tuple(name for low, (high, *_) in _PAIRS.items() for name in (low, high)),
        each=_empty_ranges,
        message="is {where} {other}, which is {limit}.",
    ),
    Rule(
        name="frames-come-in-multiples",
        option="video_fps_max_frames",
        reads=("video_fps_max_frames", "frame_factor"),
        each=_no_frames,
        message="leaves no frame: their number is a multiple of --frame-factor, which is {factor}.",
        fix="Raise it, or lower --frame-factor.",
    ),
)
