"""Decode attention of an engine on a CPU.

Guarantee: the outputs are those of SGLang's torch_native attention, up to rounding; a case that is not covered
(encoder, cross attention, sliding window, mixed types, a single sequence) goes to SGLang's own code.
"""

from types import ModuleType
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention


def batch_decode(backend: ModuleType) -> None:
    """SGLang's torch_native decode runs a Python loop over the sequences in every layer: do it in one call a layer."""
    cls = backend.TorchNativeAttnBackend
    loop = cls._run_sdpa_forward_decode

    def decode(
        self: Any,
        query: torch.Tensor,
        output: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        req_to_token: torch.Tensor,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        encoder_lens: torch.Tensor | None = None,
        **options: Any,
    ) -> torch.Tensor:
        covered = (
            encoder_lens is None
            and seq_lens.shape[0] > 1
            and options.get("sliding_window_size") is None
            and not options.get("is_cross_attn")
            and query.dtype == k_cache.dtype == v_cache.dtype
        )
        if not covered:
            return loop(
                self, query, output, k_cache, v_cache, req_to_token, req_pool_indices, seq_lens, encoder_lens, **options
            )
        attended = attend(
            query, k_cache, v_cache, req_to_token, req_pool_indices, seq_lens, scaling=options.get("scaling")
        )
        output.copy_(attended)
        return output

    cls._run_sdpa_forward_decode = decode


def attend(
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    scaling: float | None,
) -> torch.Tensor:
    """Attention of one new token a sequence over its cached keys and values.

    Args:
        query: [sequences, heads, head size].
        k_cache, v_cache: [slots, key-value heads, head size].
        req_to_token: [rows, context] cache slot of each token.
        req_pool_indices: [sequences] row of each sequence.
        seq_lens: [sequences] tokens in the cache, the new one included.
        scaling: factor of the scores; None: 1 / sqrt(head size).

    Returns:
        [sequences, heads, head size of the values].
    """
    longest = int(seq_lens.max())
    column = torch.arange(longest)
    valid = column.unsqueeze(0) < seq_lens.unsqueeze(1)  # [sequences, longest]
    slots = req_to_token[req_pool_indices, :longest]
    slots = torch.where(valid, slots, slots[:, :1])  # padding reads a slot of its own sequence: finite, then masked
    sequences, heads, size = query.shape
    kv_heads = k_cache.shape[1]
    # The heads that share a key head become the rows of one query matrix: keys and values are not repeated.
    grouped = query.view(sequences, kv_heads, heads // kv_heads, size)
    keys = k_cache[slots].transpose(1, 2)  # [sequences, kv heads, longest, size]
    values = v_cache[slots].transpose(1, 2)
    mask = valid[:, None, None, :]
    attended = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scaling)
    return attended.reshape(sequences, heads, -1)
