"""Generated responses as the rollout table.

Guarantee: one row per result in the order given, columns straight from arrays; the table holds no time and nothing else
that differs between two equal generations, except how many prompt tokens the engine's prefix cache held.
"""

import json
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from data.errors import UserError
from data.ragged import Ragged
from data.schema import ROLLOUT
from data.schema import table as schema_table
from relax_core.rollout.generated import Generated

_TEACHER = ROLLOUT.field("teacher_log_probs").type


class Decoder(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    def batch_decode(self, sequences: list[list[int]], **options: Any) -> list[str]: ...


def rollout_table(
    generated: Sequence[Generated],
    *,
    step: int,
    version: int | None,
    oldest: int | None = None,
    tokenizer: Decoder,
    skip_special_tokens: bool = False,
) -> pa.Table:
    """The table of a rollout.

    Args:
        generated: N results.
        step: rollout step; -1 for the evaluation before training.
        version: weight version that must have made all of them; None accepts any.
        oldest: oldest weight version that a token may have; None accepts any.
        tokenizer: decodes the responses.
        skip_special_tokens: leave special tokens out of the response text.

    Returns:
        N rows of schema ``ROLLOUT``.

    Raises:
        UserError: an engine used weights of another version, or too old ones.
    """
    requests = [result.request for result in generated]
    versions = [_versions(result, version, oldest) for result in generated]
    outputs = [result.output_ids for result in generated]
    response_lengths = np.array([len(output) for output in outputs], np.int32)
    prompts = [result.request.prompt.tokens if result.own is None else result.own.prompt_ids for result in generated]
    halves = [half for pair in zip(prompts, outputs, strict=True) for half in pair]
    prompt_lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    tokens = np.concatenate(halves).astype(np.int32, copy=False) if halves else np.empty(0, np.int32)
    return schema_table(
        ROLLOUT,
        {
            "sample_id": [request.sample_id for request in requests],
            "group_id": [request.group_id for request in requests],
            "prompt_id": [request.prompt.prompt_id for request in requests],
            "group_index": np.array([request.group_index for request in requests], np.int64),
            "index": np.array([request.index for request in requests], np.int64),
            "step": np.full(len(generated), step, np.int32),
            "seed": np.array([request.seed for request in requests], np.int64),
            "prompt": [request.prompt.text for request in requests],
            "tokens": Ragged.from_lengths(tokens, prompt_lengths + response_lengths),
            "prompt_length": prompt_lengths,
            "response_length": response_lengths,
            "response": _responses(tokenizer, generated, skip_special_tokens),
            "label": pa.array([_label(result) for result in generated], pa.string()),
            "metadata": [_metadata(result) for result in generated],
            "loss_mask": Ragged.from_list([result.loss_mask for result in generated], np.uint8),
            "rollout_log_probs": Ragged.from_list([result.log_probs for result in generated], np.float32),
            "weight_versions": Ragged.from_list(versions, np.int32),
            "token_versions": Ragged.from_list([result.token_versions for result in generated], np.int32),
            "status": [result.status for result in generated],
            "finish_reason": [result.finish_reason for result in generated],
            "remove_sample": [result.own is not None and result.own.remove_sample for result in generated],
            "teacher_log_probs": pa.array([_teacher(result) for result in generated], _TEACHER),
            "prefix_cache_info": [_cache_info(result) for result in generated],
            "abort_count": np.array([result.abort_count for result in generated], np.int32),
        },
    )


def _versions(result: Generated, expected: int | None, oldest: int | None) -> list[int]:
    """[V] versions that made the response; empty where no engine was asked."""
    made_by, before = list(result.weight_versions), result.request.progress
    made = result.token_versions[0 if before is None else len(before.output_ids) :]  # by this step
    made = made[made >= 0]
    now = made_by if before is None else list(dict.fromkeys(made.tolist()))
    if expected is not None and now not in ([], [expected]):
        raise UserError(
            f"Sample {result.request.sample_id} was made by weights of version {', '.join(map(str, now))}, "
            f"but this step needs version {expected}.",
            "Run the same command again: weights are synced before the generation starts.",
        )
    if oldest is not None and len(made) and made.min() < oldest:
        raise UserError(
            f"Sample {result.request.sample_id} has tokens of weights of version {made.min()}, but this step may use "
            f"none older than version {oldest}.",
            "Run the same command again: weights are synced before the generation starts.",
        )
    return made_by


def _responses(tokenizer: Decoder, generated: Sequence[Generated], skip_special_tokens: bool) -> list[str]:
    if not generated:
        return []
    decoded = tokenizer.batch_decode(
        [result.output_ids.tolist() for result in generated],
        skip_special_tokens=skip_special_tokens,
        # The text is what the tokens say, not a prettier one.
        clean_up_tokenization_spaces=False,
        spaces_between_special_tokens=False,
    )
    own = [result.own.response if result.own else None for result in generated]
    return [text if said is None else said for text, said in zip(decoded, own, strict=True)]


def _label(result: Generated) -> str | None:
    return result.request.prompt.label if result.own is None else result.own.label


def _metadata(result: Generated) -> str:
    if result.own is not None:
        return result.own.metadata
    return json.dumps(result.request.prompt.metadata, ensure_ascii=False)


def _teacher(result: Generated) -> np.ndarray | None:
    return None if result.own is None else result.own.teacher_log_probs


def _cache_info(result: Generated) -> str | None:
    if not result.weight_versions:
        return None
    asked = result.asked_tokens if result.asked_tokens is not None else len(result.request.prompt.tokens)
    return json.dumps({"cached_tokens": result.cached_tokens, "prompt_tokens": asked})
