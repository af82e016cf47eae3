"""Seeded sampling of an engine on a CPU.

Guarantee: with a ``sampling_seed`` the token drawn depends on the distribution, the seed and the token's position only,
and is distributed as the distribution says; the other requests of the batch play no part in the draw.

SGLang honours seeds in its deterministic mode alone, and that mode wants kernels written for CUDA: a hash for the draw
and matrix products that do not depend on the batch. Here the mode is allowed with the torch_native attention, the draw
is made from one hashed uniform number a row, and the products are torch's own. So seeds always work on a CPU; results
that do not depend on the batch at all take one request at a time (see ``relax_core.engines.spec``).
"""

import sys
from types import ModuleType

import numpy as np
import torch

ATTENTION = "torch_native"


def replace(module: ModuleType, name: str, value: object) -> None:
    """Set an attribute that must exist: a name that has moved in another version is an AttributeError, not a no-op."""
    getattr(module, name)
    setattr(module, name, value)


def allow_seeds(choices: ModuleType) -> None:
    """Let SGLang's deterministic mode run with the torch_native attention and keep the prefix cache if it is wanted.

    Args:
        choices: where the lists of backends are; 0.5.17 has them in its ``server_args``, later ones import them there.
    """
    for backends in (
        choices.DETERMINISTIC_ATTENTION_BACKEND_CHOICES,
        choices.RADIX_SUPPORTED_DETERMINISTIC_ATTENTION_BACKEND,
    ):
        if ATTENTION not in backends:
            backends.append(ATTENTION)


def allow_seeds_here(server_args: ModuleType) -> None:
    """``allow_seeds`` where SGLang has no module of choices, which ``server_args`` would have imported by now."""
    if "sglang.srt.arg_groups.choices" not in sys.modules:
        allow_seeds(server_args)


def no_batch_invariant_kernels(module: ModuleType) -> None:
    """The batch-invariant matrix products are Triton kernels for CUDA: leave torch's own in place."""
    replace(module, "enable_batch_invariant_mode", lambda *args, **kwargs: None)


def replace_seeded_sampling(sampler: ModuleType) -> None:
    """Draw without SGLang's CUDA hash and without torch.compile, whose first call stalls an engine for seconds."""
    unseeded = sampler.sampling_from_probs_torch

    def sampling_from_probs_torch(
        probs: torch.Tensor, sampling_seed: torch.Tensor | None = None, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        if sampling_seed is None or positions is None:
            return unseeded(probs)
        return draw(probs, sampling_seed, positions).view(-1).to(torch.int32)

    def multinomial_with_seed(logprobs: torch.Tensor, seed: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return draw(logprobs.exp(), seed, positions)

    replace(sampler, "sampling_from_probs_torch", sampling_from_probs_torch)  # temperature alone
    replace(sampler, "multinomial_with_seed", multinomial_with_seed)  # after top-k and top-p


def draw(weights: torch.Tensor, seed: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Draw one index a row by inverting the cumulative distribution at a uniform number made from seed and position.

    Args:
        weights: [rows, vocabulary] probabilities; they need not sum to 1, and what has weight 0 is never drawn.
        seed: [rows] int64.
        positions: [rows] integer position of the token in its sequence.

    Returns:
        [rows, 1] int64 index.
    """
    cumulative = weights.cumsum(dim=-1, dtype=torch.float64)
    uniform = torch.from_numpy(_uniform(seed.numpy(), positions.numpy())).unsqueeze(1)
    drawn = torch.searchsorted(cumulative, uniform * cumulative[:, -1:], right=True)
    return drawn.clamp_(max=weights.shape[-1] - 1)


def _uniform(seed: np.ndarray, position: np.ndarray) -> np.ndarray:
    """[rows] float64 in [0, 1 - 2**-32]: high half of two rounds of splitmix64's mix (Steele, Lea and Flood 2014)."""
    gamma = np.uint64(0x9E3779B97F4A7C15)
    state = _mix(seed.astype(np.int64).view(np.uint64) + gamma)
    state = _mix(state ^ (position.astype(np.int64).view(np.uint64) + np.uint64(1)) * gamma)
    return (state >> np.uint64(32)).astype(np.float64) * 2.0**-32


def _mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
