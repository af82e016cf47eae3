from pathlib import Path
from typing import Any

import pytest
from rule_cases import Case, check_case, check_names

from relax_core.config.rules.prompts import RULES, bad_slice

IMAGES: dict[str, Any] = {"multimodal_keys": {"image": "images"}}
VIDEOS: dict[str, Any] = {"multimodal_keys": {"video": "videos"}}
STREAM: dict[str, Any] = {**IMAGES, "use_streaming_dataset": True}

CASES: list[tuple[str, Case]] = [
    (
        "row-slice",
        Case(
            {"prompt_data": "memory://set/a.jsonl@[1-5]"},
            "--prompt-data memory://set/a.jsonl@[1-5]: @[1-5] is no row slice. Write @[a:b]",
            {"prompt_data": "memory://set/a.jsonl@[-5:]"},
        ),
    ),
    (
        "steps-win-over-epochs",
        Case(
            {"num_epoch": 2, "num_rollout": 3},
            "--num-epoch 2: is not used: --num-rollout 3 says how many steps there are.",
            {"num_epoch": 2, "num_rollout": None},
        ),
    ),
    (
        "renames-need-conversations",
        Case(
            {"conversation_key_map": {"from": "role"}, "label_key": "answer"},
            '--conversation-key-map {"from": "role"}: has no effect with --label-key',
            {"conversation_key_map": {"from": "role"}},
        ),
    ),
    (
        "renames-are-texts",
        Case(
            {"conversation_key_map": {"from": ""}},
            "--conversation-key-map from: : is no pair of two names. Write",
            {"conversation_key_map": {"from": "role"}},
        ),
    ),
    (
        "system-prompt-needs-template",
        Case(
            {"system_prompt": "Be brief."},
            "--system-prompt Be brief.: has no effect on plain text. Add --apply-chat-template.",
            {"system_prompt": "Be brief.", "apply_chat_template": True},
        ),
    ),
    (
        "template-arguments-need-template",
        Case(
            {"tool_key": "functions"},
            "--tool-key functions: has no effect without --apply-chat-template. Add it, or leave this out.",
            {"tool_key": "functions", "loss_type": "sft"},
        ),
    ),
    (
        "template-arguments-need-template",
        Case(
            {"apply_chat_template_kwargs": {"enable_thinking": False}},
            '--apply-chat-template-kwargs {"enable_thinking": false}: has no effect without --apply-chat-template.',
            {"apply_chat_template_kwargs": {"enable_thinking": False}, "apply_chat_template": True},
        ),
    ),
    (
        "template-arguments-of-relax",
        Case(
            {"apply_chat_template_kwargs": {"tools": []}, "apply_chat_template": True},
            "--apply-chat-template-kwargs tools: is set by Relax itself. Leave it out.",
            {"apply_chat_template_kwargs": {"enable_thinking": False}, "apply_chat_template": True},
        ),
    ),
    (
        "buffer-needs-streaming",
        Case(
            {"streaming_buffer_size": 5},
            "--streaming-buffer-size 5: has no effect without --use-streaming-dataset.",
            {"streaming_buffer_size": 5, "use_streaming_dataset": True},
        ),
    ),
    (
        "prefetch-needs-media",
        Case(
            {"prefetch_chunk_size": 5, "use_streaming_dataset": True},
            "--prefetch-chunk-size 5: has an effect only with both --use-streaming-dataset and --multimodal-keys.",
            {**STREAM, "prefetch_chunk_size": 5},
        ),
    ),
    (
        "prefetch-is-on",
        Case(
            {**STREAM, "prefetch_max_cached": 0, "prefetch_num_workers": 2},
            "--prefetch-num-workers 2: has no effect with --prefetch-max-cached 0",
            {**STREAM, "prefetch_max_cached": 0},
        ),
    ),
    (
        "prefetch-chunk-fits",
        Case(
            {**STREAM, "prefetch_max_cached": 10},
            "--prefetch-chunk-size 32: is more than --prefetch-max-cached 10 holds. Make it 10 or less.",
            {**STREAM, "prefetch_max_cached": 32},
        ),
    ),
    (
        "media-are-known",
        Case(
            {"multimodal_keys": {"images": "images"}},
            "--multimodal-keys images: is no kind of medium. Did you mean image?",
            IMAGES,
        ),
    ),
    (
        "media-options-need-media",
        Case(
            {**IMAGES, "video_fps": 1.0},
            "--video-fps 1.0: has no effect: --multimodal-keys names no column of the kind video.",
            {**VIDEOS, "video_fps": 1.0},
        ),
    ),
    (
        "media-workers-need-media",
        Case(
            {"mm_processor_pool_size": 2},
            "--mm-processor-pool-size 2: has no effect without --multimodal-keys.",
            {**IMAGES, "mm_processor_pool_size": 2},
        ),
    ),
    (
        "media-ranges",
        Case(
            {**VIDEOS, "video_min_token_num": 900},  # the most is 768 where nothing is given
            "--video-min-token-num 900: is above --video-max-token-num, which is 768.",
            {**VIDEOS, "video_min_token_num": 900, "video_max_token_num": 900},
        ),
    ),
    (
        "media-ranges",
        Case(
            {**VIDEOS, "video_fps_max_frames": 2},  # the fewest are 4
            "--video-fps-max-frames 2: is below --video-fps-min-frames, which is 4.",
            {**VIDEOS, "video_fps_max_frames": 4},
        ),
    ),
    (
        "frames-come-in-multiples",
        Case(
            {**VIDEOS, "video_fps_min_frames": 4, "video_fps_max_frames": 5, "frame_factor": 6},
            "--video-fps-max-frames 5: leaves no frame: their number is a multiple of --frame-factor, which is 6.",
            {**VIDEOS, "video_fps_max_frames": 6, "frame_factor": 6},
        ),
    ),
    (
        "frames-come-in-multiples",
        Case(
            {**VIDEOS, "frame_factor": 1000},
            "--video-fps-max-frames 768: leaves no frame",
            {**VIDEOS, "frame_factor": 768},
        ),
    ),
]


def test_every_rule_has_a_case() -> None:
    check_names(RULES, CASES)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_a_rule_tells_what_breaks_it_and_nothing_else(tmp_path: Path, name: str, case: Case) -> None:
    check_case(tmp_path, RULES, name, case)


@pytest.mark.parametrize(
    ("source", "bad"),
    [
        ("a.jsonl", ""),
        ("a.jsonl@[0:3]", ""),
        ("a.jsonl@[:]", ""),
        ("a.jsonl@[-3:]", ""),
        ("a[1].jsonl", ""),
        ("a.jsonl@[3]", "@[3]"),
        ("a.jsonl@[-:3]", "@[-:3]"),
        ("a.jsonl@[a:b]", "@[a:b]"),
    ],
)
def test_row_slices(source: str, bad: str) -> None:
    assert bad_slice(source) == bad
