"""What the ranks of the model's tests run: see test_model.py. Not a test module itself."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import join_ranks
from tiny import make_tiny
from torch import Tensor

from relax_core.config.sections import RelaxConfig
from relax_core.training import fused_layer
from relax_core.training.attention import Packing, attend
from relax_core.training.megatron import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
    get_forward_backward_func,
    mpu,
    tensor_parallel,
)
from relax_core.training.model import (
    ModelShape,
    build_policy,
    hidden_rows,
    lm_head_weight,
    transformer_config,
    unwrap,
)
from relax_core.weights.export import iter_hf, load_hf, save_hf

LENGTHS = [7, 1, 12, 5]  # 25 tokens: odd, so that sequence parallelism has to pad


def tokens_and_targets(vocab: int) -> tuple[Tensor, Tensor]:
    """The same random packed tokens and next tokens in every process."""
    generator = torch.Generator().manual_seed(5)
    return (
        torch.randint(0, vocab, (sum(LENGTHS),), generator=generator),
        torch.randint(0, vocab, (sum(LENGTHS),), generator=generator),
    )


def edit_config(folder: Path, **changes: Any) -> None:
    """Change keys of config.json."""
    import json

    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def reference(folder: Path) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """transformers' logits [T, vocab] of each sequence alone, gradients of the summed loss, and weights."""
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    tokens, targets = tokens_and_targets(model.config.vocab_size)
    logits = torch.cat([model(part[None]).logits[0] for part in tokens.split(LENGTHS)])
    torch.nn.functional.cross_entropy(logits, targets, reduction="sum").backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return logits.detach(), gradients, {name: p.detach() for name, p in model.named_parameters()}


def build(folder: Path, config: RelaxConfig) -> DistributedDataParallel:
    """The policy with the folder's weights in Megatron's data-parallel wrapper, for the current process groups."""
    shape = ModelShape.from_hf(folder)
    megatron = transformer_config(shape, config)
    first, last = mpu.is_pipeline_first_stage(), mpu.is_pipeline_last_stage()
    policy = build_policy(shape, megatron, first, last)
    load_hf(policy, folder)
    fused_layer.fuse(policy.decoder, megatron)  # does nothing in float32
    return DistributedDataParallel(megatron, DistributedDataParallelConfig(grad_reduce_in_fp32=True), policy)


def train_pass(model: DistributedDataParallel) -> Tensor | None:
    """Forward and backward of the summed cross entropy; the logits [T, vocab] on last stages, gathered."""
    policy = unwrap(model)
    tokens, targets = tokens_and_targets(policy.shape.vocab)
    kept: list[Tensor] = []

    def loss(hidden: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        logits = hidden_rows(model, hidden, torch.arange(len(tokens))) @ lm_head_weight(model).t()
        kept.append(tensor_parallel.gather_from_tensor_model_parallel_region(logits.detach()))
        value = tensor_parallel.vocab_parallel_cross_entropy(logits[:, None].clone(), targets[:, None]).sum()
        return value, torch.tensor(1, dtype=torch.int), {"loss": value.detach()}

    def forward(batches: Iterator[Tensor], stage: torch.nn.Module) -> tuple[Tensor, Any]:
        return stage(next(batches), LENGTHS), loss

    policy.config.finalize_model_grads_func = finalize_model_grads
    model.zero_grad_buffer()
    get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=iter([tokens]),
        model=model,
        num_microbatches=1,
        seq_length=len(tokens),
        micro_batch_size=1,
        forward_only=False,
    )
    return kept[0] if kept else None


def gradients(model: DistributedDataParallel) -> dict[str, Tensor]:
    """The finalised gradients under their Hugging Face names, on global rank 0."""
    for parameter in unwrap(model).parameters():
        parameter.data = parameter.main_grad.clone()  # exported like weights; the model is of no use afterwards
    return {name: tensor.clone() for name, tensor in iter_hf(model)}


def largest(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest difference, relative to the largest element of each expected tensor."""
    assert sorted(found) == sorted(expected)
    return max(
        float((found[name] - expected[name]).abs().max() / expected[name].abs().max().clamp(min=1e-6))
        for name in expected
    )


def start(tensor: int = 1, pipeline: int = 1) -> None:
    """Process groups of this size over the launched processes."""
    join_ranks()
    mpu.destroy_model_parallel()
    mpu.initialize_model_parallel(tensor, pipeline)
    tensor_parallel.model_parallel_cuda_manual_seed(1)


def compare(folder: Path, config: RelaxConfig) -> dict[str, float | bool]:
    """Logits, gradients and exported weights against transformers; the last two on global rank 0 only."""
    logits, expected_gradients, weights = reference(folder)
    model = build(folder, config)
    exported = {name: tensor.clone() for name, tensor in iter_hf(model)}
    found = train_pass(model)
    found_gradients = gradients(model)
    result: dict[str, float | bool] = {}
    if found is not None:
        result["logits"] = float((found - logits).abs().max())
    if dist.get_rank() == 0:
        result["gradients"] = largest(found_gradients, expected_gradients)
        result["weights"] = sorted(exported) == sorted(weights) and all(
            torch.equal(exported[name], weights[name]) for name in weights
        )
    else:
        assert not exported
        assert not found_gradients
    return result


def families() -> dict[str, Any]:
    """One process: every family, tied and not, and rotary scaling; recomputation; export."""
    start()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as root:
        for family in ("llama", "qwen2", "qwen3"):
            for tie in (False, True):
                folder = make_tiny(Path(root, f"{family}-{tie}"), family, tie=tie, seed=3)
                results[f"{family}, tied {tie}"] = compare(folder, RelaxConfig())
        scaled = make_tiny(Path(root, "scaled"), "llama", seed=4)
        scaling = {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
        edit_config(scaled, rope_parameters=scaling)
        results["llama3 scaling"] = compare(scaled, RelaxConfig())
        wide = make_tiny(Path(root, "wide"), "qwen3", heads=2, seed=4)
        results["recompute full"] = compare(wide, with_options(recompute="full"))
        results["recompute selective"] = compare(wide, with_options(recompute="selective"))
        with as_on_a_gpu():
            for family in ("llama", "qwen2", "qwen3"):
                results[f"{family}, as on a GPU"] = compare(Path(root, f"{family}-True"), RelaxConfig())
            results["recompute full, as on a GPU"] = compare(wide, with_options(recompute="full"))
        results["export"] = export(scaled, Path(root, "out"))
    return results


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Layers are one function each, which attends in torch's way, and log-probabilities are in float32."""
    called = 0

    def attended(
        query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, longest: int, scale: float | None
    ) -> Tensor:
        nonlocal called
        called += 1
        lengths = tuple(bounds.diff().tolist())
        return attend(query, key, value, Packing(lengths, bounds, query, query, query), scale)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_layer, "fits", lambda config: True)
        patch.setattr(fused_layer, "takes", lambda hidden: True)
        patch.setattr(fused_layer, "flash", attended)
        yield
    assert called


def export(folder: Path, out: Path) -> dict[str, Any]:
    """Save in small shards over an older folder, and load with transformers."""
    import transformers

    out.mkdir()
    (out / "left-over").write_text("")
    model = build(folder, RelaxConfig())
    save_hf(model, folder, out, shard_bytes=200_000)
    again = transformers.AutoModelForCausalLM.from_pretrained(out, dtype="auto")
    weights = dict(transformers.AutoModelForCausalLM.from_pretrained(folder).named_parameters())
    names = sorted(file.name for file in out.iterdir())
    return {
        "equal": all(torch.equal(p, weights[name]) for name, p in again.named_parameters()),
        "shards": sum(name.endswith(".safetensors") for name in names),
        "tokenizer": transformers.AutoTokenizer.from_pretrained(out).vocab_size > 0,
        "left over": "left-over" in names,
        "siblings": sorted(file.name for file in out.parent.iterdir() if file.name.startswith(".")),
        "reloads": bool(build(out, RelaxConfig())),
        "scaling": again.config.rope_parameters["factor"],
    }


def with_options(
    tensor: int = 1,
    pipeline: int = 1,
    sequence: bool = False,
    bf16: bool = False,
    recompute: Any = None,
) -> RelaxConfig:
    """The default options with these changed."""
    config = RelaxConfig()
    config.backend.bf16 = bf16
    config.parallel.tensor_model_parallel_size = tensor
    config.parallel.pipeline_model_parallel_size = pipeline
    config.parallel.sequence_parallel = sequence
    config.parallel.recompute_granularity = recompute
    if recompute == "full":
        config.parallel.recompute_method, config.parallel.recompute_num_layers = "uniform", 1
    return config


def parallel() -> dict[str, Any]:
    """Two processes: tensor, sequence, pipeline and data parallelism."""
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as root:
        qwen3 = make_tiny(Path(root, "qwen3"), "qwen3", seed=6)
        qwen2 = make_tiny(Path(root, "qwen2"), "qwen2", seed=7, tie=True)
        run = partial(with_options)
        for name, folder, options in (
            ("tp", qwen3, {"tensor": 2}),
            ("tp, tied", qwen2, {"tensor": 2}),
            ("sp", qwen3, {"tensor": 2, "sequence": True}),
            ("sp, recompute", qwen2, {"tensor": 2, "sequence": True, "recompute": "full"}),
            ("pp", qwen3, {"pipeline": 2}),
            ("pp, tied", qwen2, {"pipeline": 2}),
        ):
            start(options.get("tensor", 1), options.get("pipeline", 1))
            results[name] = compare(folder, run(**options))
        start()
        results["dp"] = compare_replicas(qwen3)
        start(tensor=2)
        results["bf16 export"] = bf16_round_trip(qwen3)
    return results


def compare_replicas(folder: Path) -> dict[str, float | bool]:
    """Two replicas with the same data: both have the model's logits, the first exports the doubled gradient."""
    logits, expected, _ = reference(folder)
    model = build(folder, RelaxConfig())
    found = train_pass(model)
    assert found is not None
    result: dict[str, float | bool] = {"logits": float((found - logits).abs().max())}
    found_gradients = gradients(model)
    if dist.get_rank() == 0:
        # finalize_model_grads divides the sum over replicas by the sum of their token counts, here 1 + 1
        result["gradients"] = largest(found_gradients, expected)
    return result


def bf16_round_trip(folder: Path) -> bool:
    """Loading float32 weights rounds once, and the export has exactly those."""
    _, _, weights = reference(folder)
    exported = {name: tensor.clone() for name, tensor in iter_hf(build(folder, with_options(tensor=2, bf16=True)))}
    return all(torch.equal(tensor, weights[name].bfloat16()) for name, tensor in exported.items())
