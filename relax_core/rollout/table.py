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
from relax_core.rollout.generate import Generated


class Decoder(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    def batch_decode(self, sequences: list[list[int]], **options: Any) -> list[str]: ...


def rollout_table(
    generated: Sequence[Generated],
    *,
    step: int,
    version: int | None,
    tokenizer: Decoder,
    skip_special_tokens: bool = False,
) -> pa.Table:
    """The table of a rollout.

    Args:
        generated: N results.
        step: rollout step; -1 for the evaluation before training.
        version: weight version that must have made all of them; None accepts any.
        tokenizer: decodes the responses.
        skip_special_tokens: leave special tokens out of the response text.

    Returns:
        N rows of schema ``ROLLOUT``.

    Raises:
        UserError: an engine used weights of another version.
    """
    requests = [result.request for result in generated]
    versions = [_versions(result, version) for result in generated]
    outputs = [result.output_ids for result in generated]
    response_lengths = np.array([len(output) for output in outputs], np.int32)
    halves = [half for result in generated for half in (result.request.prompt.tokens, result.output_ids)]
    prompt_lengths = np.array([len(request.prompt.tokens) for request in requests], np.int32)
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
            "response": _decode(tokenizer, outputs, skip_special_tokens),
            "label": pa.array([request.prompt.label for request in requests], pa.string()),
            "metadata": [json.dumps(request.prompt.metadata, ensure_ascii=False) for request in requests],
            "loss_mask": Ragged.from_lengths(np.ones(response_lengths.sum(), np.uint8), response_lengths),
            "rollout_log_probs": Ragged.from_list([result.log_probs for result in generated], np.float32),
            "weight_versions": Ragged.from_list(versions, np.int32),
            "status": [result.status for result in generated],
            "finish_reason": [result.finish_reason for result in generated],
            "remove_sample": np.zeros(len(generated), bool),
            "prefix_cache_info": [_cache_info(result) for result in generated],
            "abort_count": np.array([result.status == "aborted" for result in generated], np.int32),
        },
    )


def _versions(result: Generated, expected: int | None) -> list[int]:
    """[V] versions that made the response; empty where no engine was asked."""
    made_by = list(result.weight_versions)
    if expected is not None and made_by not in ([], [expected]):
        raise UserError(
            f"Sample {result.request.sample_id} was made by weights of version {', '.join(map(str, made_by))}, "
            f"but this step needs version {expected}.",
            "Run the same command again: weights are synced before the generation starts.",
        )
    return made_by


def _decode(tokenizer: Decoder, outputs: Sequence[np.ndarray], skip_special_tokens: bool) -> list[str]:
    if not outputs:
        return []
    return tokenizer.batch_decode(
        [output.tolist() for output in outputs],
        skip_special_tokens=skip_special_tokens,
        # The text is what the tokens say, not a prettier one.
        clean_up_tokenization_spaces=False,
        spaces_between_special_tokens=False,
    )


def _cache_info(result: Generated) -> str | None:
    if not result.weight_versions:
        return None
    return json.dumps({"cached_tokens": result.cached_tokens, "prompt_tokens": len(result.request.prompt.tokens)})
