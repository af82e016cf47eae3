"""Hugging Face names and shapes <-> Megatron names and shapes, for the dense decoders of :class:`ModelShape`.

Guarantee: the mapping is a bijection on values (nothing is computed, only cut, joined and renamed), so that a round
trip is bit-exact, under any tensor- and pipeline-parallel split. Pure tensor code: no process group, no Megatron.

Megatron joins what belongs to one matrix product: gate above up, and queries, keys and values by key-value group
(the group's query heads, its key head, its value head, then the next group). Every Hugging Face tensor is cut over
tensor-parallel ranks along one dimension into equal parts, and a rank joins its own parts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from relax_core.training.shape import ModelShape

Kind = Literal["whole", "rows", "columns", "qkv", "gate_up"]

VALUE_HEAD = "value_head."
"""What the names of the parameters begin with that a critic has in place of the output layer."""


@dataclass(frozen=True)
class Entry:
    """One parameter of a pipeline stage.

    Attributes:
        megatron: its name in the stage, layers counted from the stage's first.
        hf: names of the Hugging Face tensors that it is made of.
        kind: how they are cut over tensor-parallel ranks and joined; ``whole`` is the same on every rank, ``columns``
            is cut along dimension 1, the others along dimension 0.
    """

    megatron: str
    hf: tuple[str, ...]
    kind: Kind

    @property
    def cut(self) -> int | None:
        """Dimension along which each Hugging Face tensor is cut over tensor-parallel ranks; None: it is not."""
        return {"whole": None, "columns": 1}.get(self.kind, 0)


def embedding_block() -> list[Entry]:
    """The entries of the embedding, on the first stage."""
    return [Entry("embedding.word_embeddings.weight", ("model.embed_tokens.weight",), "rows")]


def layer_block(shape: ModelShape, layer: int, local: int) -> list[Entry]:
    """The entries of one layer.

    Args:
        layer: its number in the model; local: its number in its stage.
    """
    ours, theirs = f"decoder.layers.{local}.", f"model.layers.{layer}."
    qkv = [f"{theirs}self_attn.{part}_proj" for part in "qkv"]
    entries = [
        Entry(f"{ours}input_layernorm.weight", (f"{theirs}input_layernorm.weight",), "whole"),
        Entry(f"{ours}self_attention.linear_qkv.weight", tuple(f"{name}.weight" for name in qkv), "qkv"),
    ]
    if shape.qkv_bias:
        entries.append(Entry(f"{ours}self_attention.linear_qkv.bias", tuple(f"{name}.bias" for name in qkv), "qkv"))
    if shape.qk_norm:
        entries += [
            Entry(f"{ours}self_attention.{part}_layernorm.weight", (f"{theirs}self_attn.{part}_norm.weight",), "whole")
            for part in "qk"
        ]
    return [
        *entries,
        Entry(f"{ours}self_attention.linear_proj.weight", (f"{theirs}self_attn.o_proj.weight",), "columns"),
        Entry(f"{ours}pre_mlp_layernorm.weight", (f"{theirs}post_attention_layernorm.weight",), "whole"),
        Entry(
            f"{ours}mlp.linear_fc1.weight",
            (f"{theirs}mlp.gate_proj.weight", f"{theirs}mlp.up_proj.weight"),
            "gate_up",
        ),
        Entry(f"{ours}mlp.linear_fc2.weight", (f"{theirs}mlp.down_proj.weight",), "columns"),
    ]


def head_block(shape: ModelShape) -> list[Entry]:
    """The entries of the last stage's end: the final norm, and the output layer where it has weights of its own; or the
    head of values, under the names that transformers' models for token classification have."""
    entries = [Entry("decoder.final_layernorm.weight", ("model.norm.weight",), "whole")]
    if shape.values:
        entries += [Entry(f"{VALUE_HEAD}{part}", (f"score.{part}",), "whole") for part in ("weight", "bias")]
    elif not shape.tie:
        entries.append(Entry("output_layer.weight", ("lm_head.weight",), "rows"))
    return entries


def blocks(shape: ModelShape, stages: int = 1) -> list[tuple[int, list[Entry]]]:
    """The whole model as (pipeline stage, entries of one block), in the order of a forward pass.

    A block is the embedding, one layer, or the end. The copy of a tied embedding that Megatron keeps on another last
    stage is not among them: see :func:`tied_copy`.
    """
    per_stage = shape.layers // stages
    layers = [(i // per_stage, layer_block(shape, i, i % per_stage)) for i in range(shape.layers)]
    return [(0, embedding_block()), *layers, (stages - 1, head_block(shape))]


def tied_copy() -> Entry:
    """The output layer's copy of a tied embedding, on a last stage that is not the first."""
    return Entry("output_layer.weight", ("model.embed_tokens.weight",), "rows")


def hf_shapes(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """Name and shape of every Hugging Face tensor of the model, in the order of :func:`blocks`."""
    inner, kv_inner = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    by_ending = {
        "embed_tokens.weight": (shape.vocab, shape.hidden),
        "lm_head.weight": (shape.vocab, shape.hidden),
        "score.weight": (1, shape.hidden),
        "score.bias": (1,),
        "q_proj.weight": (inner, shape.hidden),
        "k_proj.weight": (kv_inner, shape.hidden),
        "v_proj.weight": (kv_inner, shape.hidden),
        "q_proj.bias": (inner,),
        "k_proj.bias": (kv_inner,),
        "v_proj.bias": (kv_inner,),
        "q_norm.weight": (shape.head_dim,),
        "k_norm.weight": (shape.head_dim,),
        "o_proj.weight": (shape.hidden, inner),
        "gate_proj.weight": (shape.ffn, shape.hidden),
        "up_proj.weight": (shape.ffn, shape.hidden),
        "down_proj.weight": (shape.hidden, shape.ffn),
    }
    names = [name for _, block in blocks(shape) for entry in block for name in entry.hf]
    return {name: by_ending.get(".".join(name.split(".")[-2:]), (shape.hidden,)) for name in names}


def join(entry: Entry, parts: Sequence[Tensor], shape: ModelShape) -> Tensor:
    """A rank's parameter from its parts of the entry's Hugging Face tensors."""
    if entry.kind != "qkv":
        return torch.cat(list(parts)) if len(parts) > 1 else parts[0]
    groups = parts[1].shape[0] // shape.head_dim
    return torch.cat([part.unflatten(0, (groups, -1)) for part in parts], 1).flatten(0, 1)


def split(entry: Entry, parameter: Tensor, shape: ModelShape) -> list[Tensor]:
    """A rank's parts of the entry's Hugging Face tensors from its parameter: what :func:`join` undoes.

    Parts may be views of the parameter.
    """
    views = split_views(entry, parameter, shape)
    return [view.flatten(0, 1) for view in views] if entry.kind == "qkv" else views


def split_views(entry: Entry, parameter: Tensor, shape: ModelShape) -> list[Tensor]:
    """As :func:`split`, with nothing copied: queries, keys and values as [groups, rows of a group, ...]."""
    if entry.kind == "gate_up":
        return list(parameter.chunk(2))
    if entry.kind != "qkv":
        return [parameter]
    queries = shape.heads // shape.kv_heads
    grouped = parameter.unflatten(0, (-1, (queries + 2) * shape.head_dim))
    return list(grouped.split([queries * shape.head_dim, shape.head_dim, shape.head_dim], 1))


def merge(entry: Entry, ranks: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """The entry's whole Hugging Face tensors from every tensor-parallel rank's parts, in the order of ranks."""
    if entry.cut is None or len(ranks) == 1:
        return list(ranks[0])
    return [torch.cat(parts, entry.cut) for parts in zip(*ranks, strict=True)]
