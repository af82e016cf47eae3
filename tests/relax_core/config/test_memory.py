"""Bytes of a run from the model's shape: against sums by hand, transformers' models and the trainer's own layers."""

import itertools
import os
import subprocess
import sys
import tempfile
import weakref
from dataclasses import replace
from typing import Any

import pytest
from ranks import meeting_file, run_ranks

from relax_core.config import memory
from relax_core.config.memory import (
    GIB,
    Layout,
    Recompute,
    cache_bytes_per_token,
    device_logits_bytes,
    engine_memory,
    layer_activations,
    layer_parameters,
    logits_bytes,
    own_loss_bytes,
    stage_activations,
    stage_parameters,
    trainer_memory,
)
from relax_core.training.shape import ModelShape

QWEN3_06B = ModelShape(
    family="qwen3",
    layers=28,
    hidden=1024,
    ffn=3072,
    heads=16,
    kv_heads=8,
    head_dim=128,
    vocab=151936,
    tie=True,
    rope_theta=1e6,
    rope_scaling=None,
    norm_eps=1e-6,
    qkv_bias=False,
    qk_norm=True,
    max_positions=40960,
)
TABLE = 155_582_464  # 151936 x 1024
# queries 1024 x 2048, keys and values 2 x 1024 x 1024, output 2048 x 1024: 3 x 2097152;
# MLP 3 x 1024 x 3072 = 9437184; norms 2 x 1024 + 2 x 128 = 2304
LAYER = 6_291_456 + 9_437_184 + 2_304
WHOLE = 28 * LAYER + TABLE + 1024  # the last 1024: final norm

# small numbers for sums by hand: q = 4 x 8 = 32, k = 2 x 8 = 16
SMALL = replace(QWEN3_06B, layers=4, hidden=16, ffn=48, heads=4, kv_heads=2, head_dim=8, vocab=64)
PLAIN = replace(SMALL, family="llama", qk_norm=False, tie=False)


# parameters


def test_qwen3_06b_has_the_parameters_of_its_shape() -> None:
    assert LAYER == 15_730_944
    assert layer_parameters(QWEN3_06B) == LAYER
    assert WHOLE == 596_049_920
    assert stage_parameters(QWEN3_06B, Layout()) == WHOLE


def test_the_first_stage_holds_the_embedding_and_the_last_the_output_layer() -> None:
    halves = [stage_parameters(QWEN3_06B, Layout(pipeline=2), stage) for stage in (0, 1)]
    assert halves == [14 * LAYER + TABLE, 14 * LAYER + 1024 + TABLE]  # tied: both hold it
    untied = replace(QWEN3_06B, tie=False)
    assert stage_parameters(untied, Layout()) == WHOLE + TABLE
    quarters = [stage_parameters(untied, Layout(pipeline=4), stage) for stage in range(4)]
    assert quarters == [7 * LAYER + TABLE, 7 * LAYER, 7 * LAYER, 7 * LAYER + 1024 + TABLE]


def test_tensor_parallelism_divides_all_but_the_norms() -> None:
    layer = (6_291_456 + 9_437_184) // 4 + 2_304
    assert layer_parameters(QWEN3_06B, 4) == layer
    assert stage_parameters(QWEN3_06B, Layout(tensor=4)) == 28 * layer + TABLE // 4 + 1024


def test_ranks_beyond_the_key_value_heads_hold_copies() -> None:
    # 16 ranks: one query head and one of the 8 key-value heads each; an engine may be cut so, a trainer not
    attention = 1024 * 3 * 128 + 128 * 1024
    assert layer_parameters(QWEN3_06B, 16) == attention + 9_437_184 // 16 + 2_304


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_transformers_counts_the_same_parameters(family: str, tie: bool) -> None:
    import torch
    import transformers

    sizes: dict[str, Any] = {
        "vocab_size": 300,
        "hidden_size": 64,
        "intermediate_size": 136,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,  # 4 x 24 is not 64
        "tie_word_embeddings": tie,
    }
    if family == "qwen2":  # whose attention has no size of its own
        del sizes["head_dim"]
    names = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
    config = getattr(transformers, f"{names[family]}Config")(**sizes)
    with torch.device("meta"):
        model = getattr(transformers, f"{names[family]}ForCausalLM")(config)
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        shape = ModelShape.from_hf(folder)
    assert stage_parameters(shape, Layout()) == sum(parameter.numel() for parameter in model.parameters())


# optimiser


def test_bfloat16_has_18_bytes_a_parameter_and_float32_16() -> None:
    (narrow,) = trainer_memory(QWEN3_06B, Layout(bf16=True), tokens=1)
    assert (narrow.weights, narrow.gradients, narrow.main_weights, narrow.adam) == (
        2 * WHOLE,
        4 * WHOLE,
        4 * WHOLE,
        8 * WHOLE,
    )
    assert narrow.resident == 18 * WHOLE
    (wide,) = trainer_memory(QWEN3_06B, Layout(), tokens=1)
    assert (wide.weights, wide.gradients, wide.main_weights, wide.adam) == (4 * WHOLE, 4 * WHOLE, 0, 8 * WHOLE)


def test_the_distributed_optimiser_divides_its_state_over_data_parallel_ranks() -> None:
    layout = Layout(bf16=True, data=4)
    (shared,) = trainer_memory(QWEN3_06B, layout, tokens=1, distributed_optimizer=True)
    assert shared.resident == 6 * WHOLE + 12 * WHOLE // 4
    (whole,) = trainer_memory(QWEN3_06B, layout, tokens=1)
    assert whole.resident == 18 * WHOLE


# activations


def test_a_layer_keeps_what_the_formula_says() -> None:
    # Elements a token: 4 h = 64, q + 2 k = 64, rotated q + k = 48, output q = 32, 3 ffn = 144, norm of queries q = 32.
    # Numbers of 4 bytes: 2 of the norms, 4 heads (softmax), 4 + 2 (norms of queries and keys).
    assert layer_activations(SMALL, Layout(bf16=True), 10) == 10 * (
        2 * (64 + 64 + 48 + 32 + 144 + 32) + 4 * (2 + 4 + 6)
    )
    # float32: the output twice
    assert layer_activations(SMALL, Layout(), 10) == 10 * 4 * (64 + 64 + 48 + 2 * 32 + 144 + 32 + 2 + 4 + 6)
    # without norms of queries and keys their reordered copy is rotated and dropped
    assert layer_activations(PLAIN, Layout(bf16=True), 10) == 10 * (2 * (64 + 64 + 48 + 32 + 144) + 4 * (2 + 4))


def test_tensor_parallelism_alone_leaves_the_hidden_states_whole() -> None:
    halves = 2 * (32 + 24 + 16 + 72) + 4 * (2 + 3)  # all but 4 h and the norms' numbers; one group of heads a rank
    assert layer_activations(SMALL, Layout(tensor=2, bf16=True), 10) == 10 * (2 * 64 + 4 * 2 + halves)
    both = Layout(tensor=2, sequence_parallel=True, bf16=True)
    assert layer_activations(SMALL, both, 10) == 5 * (2 * 64 + 4 * 2) + 10 * halves
    assert layer_activations(SMALL, both, 9) == 5 * (2 * 64 + 4 * 2) + 9 * halves  # padded to 10


def test_recomputation_keeps_the_inputs_of_groups_of_layers() -> None:
    layout, layer, row = Layout(bf16=True), layer_activations(SMALL, Layout(bf16=True), 10), 10 * 16 * 2
    end = 2 * row  # the final norm's input and what is multiplied with the output layer

    def kept(recompute: Recompute) -> tuple[int, int]:
        return stage_activations(SMALL, layout, 10, recompute)

    assert kept(Recompute()) == (4 * layer + end, 0)
    assert kept(Recompute("full", "uniform", 1)) == (4 * row + end, layer)
    assert kept(Recompute("full", "uniform", 2)) == (2 * row + end, 2 * layer)
    assert kept(Recompute("full", "uniform", 3)) == (2 * row + end, 3 * layer)
    assert kept(Recompute("full", "block", 3)) == (3 * row + layer + end, layer)
    saved, again = kept(Recompute("selective"))
    assert saved < 4 * layer + end
    assert again == 0


def test_earlier_stages_have_more_micro_batches_in_flight() -> None:
    layout = Layout(pipeline=2, bf16=True)
    layer, row = layer_activations(SMALL, layout, 10), 10 * 16 * 2
    assert stage_activations(SMALL, layout, 10, stage=0) == (2 * (2 * layer), 0)
    assert stage_activations(SMALL, layout, 10, stage=1) == (2 * layer + 2 * row, 0)


FAMILIES = ("llama", "qwen2", "qwen3")
GRANULARITIES = (None, "selective", "full")


def kept_by_megatron() -> dict[str, list[float]]:
    """Bytes a layer that the trainer's model keeps, and what the formula says; run on the ranks of a trainer."""
    import torch
    from tiny import make_tiny

    from relax_core.config.sections import RelaxConfig
    from relax_core.training.distributed import join, seed_all
    from relax_core.training.model import build_policy, transformer_config

    size, rank, tokens = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]), 64

    def options(granularity: str | None, sequence: bool) -> RelaxConfig:
        config = RelaxConfig()
        parallel = config.parallel
        parallel.tensor_model_parallel_size, parallel.sequence_parallel = size, sequence
        parallel.recompute_granularity = granularity  # type: ignore[assignment]
        if granularity == "full":
            parallel.recompute_method, parallel.recompute_num_layers = "uniform", 1
        return config

    def kept(shape: ModelShape, config: RelaxConfig) -> int:
        policy = build_policy(shape, transformer_config(shape, config), True, True)
        for parameter in policy.parameters():
            parameter.data.normal_(0, 0.02)
        storages = {parameter.untyped_storage().data_ptr(): 0 for parameter in policy.parameters()}
        alive = []  # or an address would be used again

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            alive.append(tensor)
            storages.setdefault(storage.data_ptr(), storage.nbytes() if tensor.is_floating_point() else 0)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            policy(torch.zeros(tokens, dtype=torch.long), [tokens // 2, tokens // 2])
        return sum(storages.values())

    def shape_of(family: Any, layers: int) -> ModelShape:
        with tempfile.TemporaryDirectory() as folder:
            make_tiny(folder, family, layers=layers, hidden=128, heads=8, kv_heads=2, ffn=384)
            return ModelShape.from_hf(folder)

    join(options(None, False), rank, size, torch.device("cpu"), meeting_file())
    seed_all(1)
    found = {}
    for family in FAMILIES if size == 1 else ("qwen3",):
        few, many = (shape_of(family, layers) for layers in (2, 4))
        for granularity, sequence in itertools.product(GRANULARITIES, (False,) if size == 1 else (False, True)):
            config = options(granularity, sequence)
            layout = Layout(tensor=size, sequence_parallel=sequence)
            recompute = Recompute(granularity, "uniform", 1)  # type: ignore[arg-type]
            said = [stage_activations(shape, layout, tokens, recompute)[0] for shape in (few, many)]
            found[f"{family}, recompute {granularity}, sequence parallel {sequence}"] = [
                (kept(many, config) - kept(few, config)) / 2,
                (said[1] - said[0]) / 2,
            ]
    return found


@pytest.mark.megatron
@pytest.mark.parametrize("ranks", [1, 2])
def test_megatron_keeps_as_many_bytes_a_layer(ranks: int) -> None:
    for found in run_ranks(ranks, "relax_core.config.test_memory:kept_by_megatron"):
        assert len(found) == (9 if ranks == 1 else 6)
        for case, (measured, said) in found.items():
            assert said == pytest.approx(measured, rel=0.01), case


# logits


def test_limits_are_those_of_the_log_probs() -> None:
    from relax_core.algorithms import logprobs, logprobs_chunks

    assert (memory.KEEP_BYTES, memory.CHUNK_BYTES) == (logprobs.KEEP_BYTES, logprobs.CHUNK_BYTES)
    device = (logprobs_chunks.DEVICE_KEEP_BYTES, logprobs_chunks.DEVICE_CHUNK_BYTES)
    assert device == (memory.DEVICE_KEEP_BYTES, memory.DEVICE_CHUNK_BYTES)


def test_on_a_gpu_logits_are_in_the_models_type_and_kept_up_to_a_bound() -> None:
    # 151936 x 2 bytes a row: 4416 rows are just below 1.25 GiB, and 16384 rows are 4.64 GiB, a twentieth of 93 GiB
    narrow, row, rows, chunk = Layout(bf16=True), 2 * 151936, 16384, 4416
    gradients = rows * 1024 * 2 + 6 * TABLE  # of the hidden states, and of the output layer in two types
    assert device_logits_bytes(QWEN3_06B, narrow, rows, 139.0) == (rows + chunk) * row + gradients
    assert device_logits_bytes(QWEN3_06B, narrow, rows, 80.0) == 2 * chunk * row + gradients
    assert device_logits_bytes(QWEN3_06B, narrow, rows, 139.0, gradient=False) == 2 * chunk * row
    assert device_logits_bytes(QWEN3_06B, narrow, 100, 139.0) == 200 * row + 100 * 1024 * 2 + 2 * TABLE
    assert device_logits_bytes(QWEN3_06B, narrow, 100, 139.0, chunk=10) == 20 * row + 100 * 1024 * 2 + 6 * TABLE


def test_small_logits_are_kept_whole() -> None:
    # 10 rows x 64 entries: forward 2 + 4 + 4 + 4 bytes in bfloat16, and in float32 4 + 4, which is less than two
    # gradients of the output layer, of 64 x 16, with that of the rows
    assert logits_bytes(SMALL, Layout(bf16=True), 10) == 14 * 640
    assert logits_bytes(SMALL, Layout(), 10) == 2 * 4 * 64 * 16 + 10 * 16 * 4
    assert logits_bytes(SMALL, Layout(tensor=2, bf16=True), 10) == 14 * 320


def test_large_logits_exist_for_a_chunk() -> None:
    # 151936 x 4 bytes a row: 441 rows are just below 256 MiB
    narrow, logits, rows = Layout(bf16=True), 441 * 151936, 16384
    gradients = rows * 1024 * 2 + 4 * TABLE
    assert logits_bytes(QWEN3_06B, narrow, rows) == gradients + 8 * logits
    assert logits_bytes(QWEN3_06B, narrow, rows, entropy_loss=True) == gradients + 12 * logits
    assert logits_bytes(QWEN3_06B, narrow, rows, gradient=False) == 10 * logits
    few = logits_bytes(QWEN3_06B, narrow, rows, chunk=64)  # a chunk's part of the output layer's gradient is larger
    assert few == gradients + 2 * 64 * 151936 + 2 * TABLE


class Peak:
    """Most bytes of tensors that are there at one time, without those given and those inside an operator."""

    def __init__(self, *given: Any) -> None:
        self.now = self.most = 0
        self._known: set[int] = {tensor.untyped_storage()._cdata for tensor in given}

    def see(self, tensor: Any) -> None:
        """A tensor that an operator returned."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known:
            self._known.add(storage._cdata)
            weakref.finalize(storage, self._forget, storage._cdata, storage.nbytes())
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)

    def _forget(self, address: int, size: int) -> None:
        self._known.discard(address)
        self.now -= size


def watching(peak: Peak) -> Any:
    """A context in which ``peak`` sees what operators return."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map_only

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            tree_map_only(torch.Tensor, peak.see, result)
            return result

    return Watch()


@pytest.mark.parametrize("entropy_loss", [False, True])
@pytest.mark.parametrize("chunk", [-1, 64])
@pytest.mark.parametrize("hidden", [32, 1024])
@pytest.mark.parametrize("bf16", [False, True])
def test_log_probs_need_as_many_bytes(
    bf16: bool, hidden: int, chunk: int, entropy_loss: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from relax_core.algorithms import logprobs

    monkeypatch.setattr(logprobs, "_block_rows", lambda logits, dtype: logits.shape[0])  # as on a GPU
    rows, shape, dtype = 256, replace(SMALL, hidden=hidden, vocab=2048), torch.bfloat16 if bf16 else torch.float32
    inputs = torch.randn(rows, hidden, dtype=dtype, requires_grad=True)
    weight = torch.randn(shape.vocab, hidden, dtype=dtype, requires_grad=True)
    targets = torch.randint(0, shape.vocab, (rows,))

    def measure(gradient: bool) -> int:
        peak = Peak(inputs, weight)
        with watching(peak), torch.set_grad_enabled(gradient):
            log_probs, entropy = logprobs.token_log_probs(
                inputs, weight, targets, chunk_size=chunk, with_entropy=gradient, entropy_grad=entropy_loss
            )
            if gradient:
                assert entropy is not None
                (log_probs + entropy if entropy_loss else log_probs).sum().backward()
        return peak.most

    for gradient in (True, False):
        said = logits_bytes(
            shape, Layout(bf16=bf16), rows, chunk=chunk, gradient=gradient, entropy_loss=gradient and entropy_loss
        )
        assert said == pytest.approx(measure(gradient), rel=0.05), gradient


@pytest.mark.parametrize("bf16", [False, True])
def test_a_loss_of_the_user_needs_as_many_bytes(bf16: bool) -> None:
    import torch

    rows, shape, dtype = 256, replace(SMALL, hidden=8, vocab=2048), torch.bfloat16 if bf16 else torch.float32
    inputs = torch.randn(rows, shape.hidden, dtype=dtype, requires_grad=True)
    weight = torch.randn(shape.vocab, shape.hidden, dtype=dtype, requires_grad=True)
    targets = torch.randint(0, shape.vocab, (rows, 1))
    peak = Peak(inputs, weight)

    def loss() -> Any:
        logits = (inputs @ weight.t()).float()
        return -logits.log_softmax(-1).gather(1, targets).sum()

    with watching(peak):
        loss().backward()
    assert own_loss_bytes(shape, rows) == pytest.approx(peak.most, rel=0.05)


# a whole rank


def test_the_reference_visits_the_gpu_for_its_pass() -> None:
    (without,) = trainer_memory(QWEN3_06B, Layout(bf16=True), tokens=1024)
    (with_it,) = trainer_memory(QWEN3_06B, Layout(bf16=True), tokens=1024, reference=True)
    assert without.reference == 0
    assert with_it.reference == 2 * WHOLE
    assert with_it.scoring == without.scoring + 2 * WHOLE
    assert with_it.resident == without.resident  # it is in host memory between its passes


def test_the_peak_is_the_larger_of_training_and_scoring() -> None:
    (rank,) = trainer_memory(SMALL, Layout(bf16=True), tokens=10, score_tokens=10)
    assert rank.total == rank.resident + rank.activations + rank.logits
    (rank,) = trainer_memory(SMALL, Layout(bf16=True), tokens=10, score_tokens=100_000)
    assert rank.total == rank.resident + rank.scoring


def test_only_the_last_stage_has_logits() -> None:
    first, last = trainer_memory(QWEN3_06B, Layout(pipeline=2, bf16=True), tokens=1024)
    assert (first.stage, last.stage) == (0, 1)
    assert first.logits == 0
    assert last.logits > 0


# engines


def test_cache_of_a_token() -> None:
    # keys and values x 28 layers x 8 heads x 128 x 2 bytes
    assert cache_bytes_per_token(QWEN3_06B) == 2 * 28 * 8 * 128 * 2 == 114_688
    assert cache_bytes_per_token(QWEN3_06B, element=4) == 229_376
    assert cache_bytes_per_token(QWEN3_06B, tensor=2) == 57_344
    assert cache_bytes_per_token(QWEN3_06B, tensor=16) == 114_688 // 8  # one head on each rank, twice


def test_an_engine_holds_what_its_share_of_the_gpu_leaves() -> None:
    engine = engine_memory(QWEN3_06B, tensor=1, tokens=256 * 4096, element=2, device_gib=80, fraction=0.5)
    assert engine.weights == 2 * WHOLE
    assert engine.cache == 256 * 4096 * 114_688
    assert engine.held_tokens == (40 * GIB - 2 * WHOLE) // 114_688
    assert engine_memory(QWEN3_06B, tensor=1, tokens=1, element=2).held_tokens is None
    tiny = engine_memory(QWEN3_06B, tensor=1, tokens=1, element=2, device_gib=1, fraction=0.5)
    assert tiny.held_tokens == 0  # the weights alone do not fit
    assert engine_memory(QWEN3_06B, tensor=1, tokens=1, element=2, cache_element=1).cache == 57_344


def test_nothing_heavy_is_imported() -> None:
    code = "import sys, relax_core.config.memory; print(sorted({'torch', 'ray', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
