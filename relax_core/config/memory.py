"""How many bytes of a GPU a run needs, from the model's shape and sizes alone.

Guarantee: parameters, weights, gradients, optimiser state and KV cache are exact; activations count the tensors that
the trainer's layers keep for the backward pass within a percent, and logits what the loss needs within five. Left out
is what the allocator wastes, and what CUDA and NCCL take. For a GPU, and for sizes that divide the model.
"""

from dataclasses import dataclass
from typing import Literal

from relax_core.training.shape import ModelShape

GIB = 1 << 30
KEEP_BYTES, CHUNK_BYTES = 1 << 30, 1 << 28
DEVICE_KEEP_BYTES, DEVICE_CHUNK_BYTES = 5 << 30, 5 << 28
"""As in ``relax_core.algorithms.logprobs``, and the latter in ``logprobs_chunks``, which cannot be imported without
torch (a test compares them)."""


@dataclass(frozen=True)
class Layout:
    """How the trainer's model is cut (as counts of ranks) and stored."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    sequence_parallel: bool = False
    bf16: bool = False

    @property
    def element(self) -> int:
        """Bytes of a weight and of an activation."""
        return 2 if self.bf16 else 4

    def own_tokens(self, tokens: int) -> int:
        """Tokens whose hidden states a rank holds between attention and MLP."""
        return _shard(tokens, self.tensor) if self.sequence_parallel else tokens


@dataclass(frozen=True)
class Recompute:
    """What the backward pass computes again instead of keeping it: Megatron's three options."""

    granularity: Literal["full", "selective"] | None = None
    method: Literal["uniform", "block"] | None = None
    layers: int | None = None


@dataclass(frozen=True)
class TrainerMemory:
    """Bytes of one rank of the trainer.

    Attributes:
        stage: its pipeline stage, from 0.
        parameters: how many it holds.
        weights, gradients: what the passes compute with, and their sum over micro-batches.
        main_weights: float32 copy that Adam updates; 0 in float32, where the weights are that.
        adam: its two averages.
        activations: what the backward passes of all micro-batches in flight need.
        recomputed: layers that are computed again at one time.
        logits: what the loss needs beside that, at its peak.
        scoring: of a pass without gradient (a layer at its widest, or logits), with the reference's weights.
        reference: the reference's weights; they are in host memory and visit the GPU for their pass.
    """

    stage: int
    parameters: int
    weights: int
    gradients: int
    main_weights: int
    adam: int
    activations: int
    recomputed: int
    logits: int
    scoring: int
    reference: int

    @property
    def resident(self) -> int:
        """What is there between two passes."""
        return self.weights + self.gradients + self.main_weights + self.adam

    @property
    def total(self) -> int:
        """The peak: logits are gone before a layer is computed again, and no pass runs beside another."""
        return self.resident + max(self.activations + max(self.recomputed, self.logits), self.scoring)


@dataclass(frozen=True)
class EngineMemory:
    """Bytes of one rank of an engine.

    Attributes:
        cache_per_token: keys and values of a token; cache: of all tokens asked for.
        held_tokens: tokens that there is room for; None where the size of the GPU or its share is not known.
    """

    weights: int
    cache_per_token: int
    cache: int
    held_tokens: int | None = None


def layer_parameters(shape: ModelShape, tensor: int = 1) -> int:
    """Parameters of a layer on one of ``tensor`` ranks. Key-value heads that are fewer than the ranks are copied."""
    heads, kv_heads = shape.heads // tensor, max(shape.kv_heads // tensor, 1)
    qkv = (heads + 2 * kv_heads) * shape.head_dim
    attention = shape.hidden * qkv + heads * shape.head_dim * shape.hidden + (qkv if shape.qkv_bias else 0)
    norms = 2 * shape.hidden + (2 * shape.head_dim if shape.qk_norm else 0)  # on every rank, whole
    return attention + 3 * shape.hidden * shape.ffn // tensor + norms


def stage_parameters(shape: ModelShape, layout: Layout, stage: int = 0) -> int:
    """Parameters of one rank of a pipeline stage: the first holds the embedding, the last final norm and output layer.

    With tied weights the last stage has a copy of the embedding, unless it is the first one too. A model of values has
    a vector and a number in place of the output layer.
    """
    first, last = stage == 0, stage == layout.pipeline - 1
    tables = first + (last and not shape.values and not (first and shape.tie))
    table = _shard(shape.vocab, layout.tensor) * shape.hidden
    layers = shape.layers // layout.pipeline * layer_parameters(shape, layout.tensor)
    end = shape.hidden + (shape.hidden + 1 if shape.values else 0)
    return layers + tables * table + (end if last else 0)


def layer_activations(shape: ModelShape, layout: Layout, tokens: int, *, selective: bool = False) -> int:
    """Bytes that one layer keeps for the backward pass of a micro-batch.

    After Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022), section 4, with
    what differs here. Flash attention keeps no scores (the paper's 5 a s / h, with or without recomputation) but one
    number a head and token, the logarithm of the softmax's sum. There is no dropout. Keys and values have fewer heads.
    The gated MLP keeps its two inputs and their product: 3 x ffn instead of GeLU's 2 x 4 h. Per token, in elements:

    * 4 h: inputs of both norms and of the two products behind them. Sequence parallelism divides these by the
      tensor-parallel size; tensor parallelism alone does not. All that follows it divides.
    * q + 2 k: the product that queries, keys and values are views of (q = heads x head_dim, k = kv_heads x head_dim).
    * q + k: rotated queries and keys. Selective recomputation (of the attention) rotates again.
    * q: output of attention; twice in float32, where the sequences of a micro-batch are attended one by one.
    * q: queries in an order of their own where a rank has several groups of heads that share keys and values; kept by
      the norm of queries (Qwen3) or, with selective recomputation, as the input of the attention.
    * 3 ffn.
    """
    tensor = layout.tensor
    q, k = shape.heads * shape.head_dim // tensor, shape.kv_heads * shape.head_dim // tensor
    reordered = q if shape.heads > shape.kv_heads > tensor else 0
    split = (q + 2 * k) + q + 3 * shape.ffn // tensor
    statistics = 0  # float32, one a head
    if not selective:
        split += (q + k) + (0 if layout.bf16 else q)
        statistics += shape.heads // tensor
    elif not shape.qk_norm:
        split += reordered
    if shape.qk_norm:
        split += reordered + (q + k if selective else 0)  # the normed ones are tensors of their own
        statistics += (shape.heads + shape.kv_heads) // tensor
    whole = layout.own_tokens(tokens) * (4 * shape.hidden * layout.element + 2 * 4)
    return whole + tokens * (split * layout.element + statistics * 4)


def stage_activations(
    shape: ModelShape, layout: Layout, tokens: int, recompute: Recompute | None = None, stage: int = 0
) -> tuple[int, int]:
    """Bytes kept for the backward passes of a pipeline stage, and bytes of what is computed again at one time.

    Forward and backward passes take turns: stage i of p has up to p - i micro-batches in flight. Full recomputation
    keeps the input of each group of layers (``uniform``: groups of n layers; ``block``: n groups of one layer, the
    others keep everything) and has all of one group again when its turn comes.
    """
    recompute = recompute or Recompute()
    layers = shape.layers // layout.pipeline
    row = layout.own_tokens(tokens) * shape.hidden * layout.element
    layer = layer_activations(shape, layout, tokens, selective=recompute.granularity == "selective")
    kept, again = layers * layer, 0
    if recompute.granularity == "full":
        count = min(recompute.layers or 1, layers)
        if recompute.method == "block":
            kept, again = count * row + (layers - count) * layer, layer
        else:
            kept, again = -(-layers // count) * row, count * layer
    if stage == layout.pipeline - 1:
        kept += row + tokens * shape.hidden * layout.element  # the final norm's input, and the rows with a target
    return kept * (layout.pipeline - stage), again


def logits_bytes(
    shape: ModelShape, layout: Layout, rows: int, *, chunk: int = -1, gradient: bool = True, entropy_loss: bool = False
) -> int:
    """Most bytes that log-probs and entropies, or values, of ``rows`` tokens need at one time on the last stage.

    Forward, a logit is there in the model's type, in float32, once more for the entropy and, if all rows are kept for
    the backward pass, once more for that (in float32 the first two and the last are one). A part of one chunk is still
    there when the next begins. Backward there are logits and their gradient beside the output layer's gradient: its
    product, its sum over chunks in float32, and the copy that autograd makes of it.

    Args:
        chunk: ``--log-probs-chunk-size``; -1: all rows while their logits are below ``KEEP_BYTES``, else chunks.
        gradient: a backward pass follows.
        entropy_loss: the entropy is part of the loss.
    """
    if shape.values:  # hidden states in float32, and backward their gradient
        return rows * shape.hidden * 4 * (2 if gradient else 1)
    vocab, bf16 = _shard(shape.vocab, layout.tensor), layout.bf16
    keep = gradient and chunk <= 0 and rows * vocab * 4 <= KEEP_BYTES
    if chunk <= 0:
        chunk = rows if keep else max(CHUNK_BYTES // (vocab * 4), 1)
    several = chunk < rows
    logits, weight, hidden = min(chunk, rows) * vocab, vocab * shape.hidden, rows * shape.hidden * layout.element
    forward = (6 if bf16 else 4) + (4 if several else 0)
    if not gradient:
        return forward * logits
    forward += 4 + (4 if bf16 and keep else 0)
    backward = (8 if several else 6 if bf16 else 4) + (4 if entropy_loss else 0)
    slope = backward * logits + (4 * weight if several else 0)
    product = (2 if bf16 and several else 6 if bf16 else 4) * logits + (
        6 if bf16 and several else layout.element
    ) * weight
    return max(forward * logits, hidden + max(slope, product, 2 * layout.element * weight))


def device_logits_bytes(
    shape: ModelShape, layout: Layout, rows: int, device_gib: float, *, chunk: int = -1, gradient: bool = True
) -> int:
    """As ``logits_bytes``, on a GPU, where a logit is there in the model's type only.

    Forward there is a chunk, and the one before it, or those of all rows if they are kept. Backward there are those and
    the gradient of a chunk, beside the output layer's gradient: its product, and its sum over chunks in float32.

    Args:
        device_gib: memory of the device.
    """
    if shape.values:
        return logits_bytes(shape, layout, rows, chunk=chunk, gradient=gradient)
    vocab = _shard(shape.vocab, layout.tensor)
    row, weight = vocab * layout.element, vocab * shape.hidden
    limit = min(DEVICE_KEEP_BYTES, int(device_gib * GIB) // 20)
    keep = gradient and chunk <= 0 and rows * row <= limit
    chunk = min(chunk if chunk > 0 else max(DEVICE_CHUNK_BYTES // row, 1), rows)
    several = chunk < rows
    forward = rows * row if keep else (2 if several else 1) * chunk * row
    if not gradient:
        return forward
    gradients = (4 if several else 0) * weight + layout.element * weight + rows * shape.hidden * layout.element
    return max(forward, (rows if keep else chunk) * row + chunk * row + gradients)


def own_loss_bytes(shape: ModelShape, rows: int) -> int:
    """Bytes at the peak of a loss of the user that takes one log-softmax of ``rows`` logits, on every rank of the last
    stage: the logits of the whole vocabulary, their log-softmax and its gradient, all of them float32."""
    return 3 * 4 * rows * shape.vocab


def trainer_memory(
    shape: ModelShape,
    layout: Layout,
    *,
    tokens: int,
    distributed_optimizer: bool = False,
    recompute: Recompute | None = None,
    score_tokens: int | None = None,
    chunk: int = -1,
    entropy_loss: bool = False,
    own_loss: bool = False,
    reference: bool = False,
    device_gib: float | None = None,
) -> list[TrainerMemory]:
    """What a rank of each pipeline stage needs.

    As Megatron lays it out: gradients are summed in float32. In bfloat16 a parameter has 2 bytes of weight, 4 of
    gradient, 4 of main weight and 8 of Adam's averages; in float32 4 + 4 + 8. The distributed optimiser shares main
    weights and averages out over the data-parallel ranks.

    Args:
        tokens: of a micro-batch.
        score_tokens: of a micro-batch in passes without gradient; None: as many.
        own_loss: the loss is a function of the user's, see ``own_loss_bytes``.
        reference: other weights take the actor's place for a pass: a reference's or a teacher's, one at a time.
        device_gib: memory of a GPU; None: of a CPU, or not known.
    """
    score_tokens = score_tokens or tokens
    widest = 2 * layout.own_tokens(score_tokens) * shape.hidden + 3 * score_tokens * shape.ffn // layout.tensor
    stages = []
    for stage in range(layout.pipeline):
        parameters = stage_parameters(shape, layout, stage)
        state = _shard(parameters, layout.data) if distributed_optimizer else parameters
        kept, again = stage_activations(shape, layout, tokens, recompute, stage)
        logits = scored = 0
        if stage == layout.pipeline - 1:
            if device_gib is None:
                logits = logits_bytes(shape, layout, tokens, chunk=chunk, entropy_loss=entropy_loss)
                scored = logits_bytes(shape, layout, score_tokens, chunk=chunk, gradient=False)
            else:
                logits = device_logits_bytes(shape, layout, tokens, device_gib, chunk=chunk)
                scored = device_logits_bytes(shape, layout, score_tokens, device_gib, chunk=chunk, gradient=False)
            logits = own_loss_bytes(shape, tokens) if own_loss else logits
        copy = parameters * layout.element if reference else 0
        stages.append(
            TrainerMemory(
                stage=stage,
                parameters=parameters,
                weights=parameters * layout.element,
                gradients=parameters * 4,
                main_weights=state * 4 if layout.bf16 else 0,
                adam=state * 8,
                activations=kept,
                recomputed=again,
                logits=logits,
                scoring=max(widest * layout.element, scored) + copy,
                reference=copy,
            )
        )
    return stages


def cache_bytes_per_token(shape: ModelShape, tensor: int = 1, element: int = 2) -> int:
    """Bytes of a token's keys and values on one of ``tensor`` ranks; ranks beyond the key-value heads have copies."""
    return 2 * shape.layers * max(shape.kv_heads // tensor, 1) * shape.head_dim * element


def engine_memory(
    shape: ModelShape,
    *,
    tensor: int,
    tokens: int,
    element: int,
    cache_element: int | None = None,
    device_gib: float | None = None,
    fraction: float | None = None,
) -> EngineMemory:
    """What a rank of an engine needs whose cache holds ``tokens`` tokens.

    Args:
        element: bytes of a weight; cache_element: of a key or value, None: as many.
        device_gib: free memory of the GPU, without what CUDA takes for itself.
        fraction: ``--sglang-mem-fraction-static``: the share of it for weights and cache.
    """
    weights = stage_parameters(shape, Layout(tensor=tensor)) * element
    per_token = cache_bytes_per_token(shape, tensor, cache_element or element)
    held = None
    if device_gib is not None and fraction is not None:
        held = max(int(device_gib * GIB * fraction - weights) // per_token, 0)
    return EngineMemory(weights, per_token, tokens * per_token, held)


def _shard(count: int, ranks: int) -> int:
    return -(-count // ranks)
