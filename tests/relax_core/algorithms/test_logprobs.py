"""Log-probs of the vocabulary-parallel head against torch.log_softmax in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import run_ranks

from relax_core.algorithms import logprobs
from relax_core.algorithms.logprobs import token_log_probs


@pytest.fixture(params=["on a CPU", "as on a GPU, kept", "as on a GPU"], autouse=True)
def way(request, monkeypatch):
    if "GPU" in request.param:
        monkeypatch.setattr(logprobs, "in_chunks", lambda hidden: True)
        monkeypatch.setattr(logprobs, "device_keep_bytes", lambda device: (1 << 20) * ("kept" in request.param))
    return request.param


def reference(hidden, weight, targets, temperature=1.0):
    log_p = torch.log_softmax(hidden.double() @ weight.double().t() / temperature, dim=-1)
    return log_p.gather(1, targets[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(1)


def problem(rows=13, size=8, vocab=37, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, size, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(vocab, size, generator=generator).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(0, vocab, (rows,), generator=generator)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 2.5])
@pytest.mark.parametrize("chunk_size", [-1, 1, 4, 13, 100])
@pytest.mark.parametrize("entropy_grad", [False, True])
def test_values_and_gradients_equal_log_softmax(temperature, chunk_size, entropy_grad):
    hidden, weight, targets = problem(dtype=torch.float64)
    upstream, upstream_entropy = torch.randn(13, dtype=torch.float64), torch.randn(13, dtype=torch.float64)
    want, want_entropy = reference(hidden, weight, targets, temperature)
    want_loss = (want * upstream).sum() + ((want_entropy * upstream_entropy).sum() if entropy_grad else 0)
    want_grads = torch.autograd.grad(want_loss, (hidden, weight))

    got, entropy = token_log_probs(
        hidden, weight, targets, temperature=temperature, chunk_size=chunk_size, with_entropy=True,
        entropy_grad=entropy_grad,
    )  # fmt: skip
    assert entropy.requires_grad == entropy_grad
    loss = (got * upstream).sum() + ((entropy * upstream_entropy).sum() if entropy_grad else 0)
    grads = torch.autograd.grad(loss, (hidden, weight))
    for a, b in zip((got, entropy, *grads), (want, want_entropy, *want_grads), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def plain_loops(hidden, weight, targets, temperature, upstream, upstream_entropy):
    """Softmax, entropy and their derivatives by every hidden state and weight, in Python floats.

    d log p_y / dz_k = [k = y] - p_k; d entropy / dz_k = -p_k (log p_k + entropy).
    """
    log_probs, entropies = [], []
    by_hidden = [[0.0] * len(hidden[0]) for _ in hidden]
    by_weight = [[0.0] * len(hidden[0]) for _ in weight]
    for r, row in enumerate(hidden):
        z = [sum(h * w for h, w in zip(row, column, strict=True)) / temperature for column in weight]
        log_sum = max(z) + math.log(sum(math.exp(x - max(z)) for x in z))
        log_p = [x - log_sum for x in z]
        entropy = -sum(math.exp(x) * x for x in log_p)
        log_probs.append(log_p[targets[r]])
        entropies.append(entropy)
        for k, column in enumerate(weight):
            p = math.exp(log_p[k])
            by_logit = upstream[r] * ((k == targets[r]) - p) - upstream_entropy[r] * p * (log_p[k] + entropy)
            for j in range(len(row)):
                by_hidden[r][j] += by_logit / temperature * column[j]
                by_weight[k][j] += by_logit / temperature * row[j]
    return log_probs, entropies, by_hidden, by_weight


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), scale=st.sampled_from([1.0, 30.0]), chunk_size=st.sampled_from([-1, 2]))
def test_values_and_gradients_equal_the_plain_loops(seed, scale, chunk_size):
    hidden, weight, targets = problem(rows=4, size=3, vocab=7, dtype=torch.float64, seed=seed)
    with torch.no_grad():
        hidden.mul_(scale)
    generator = torch.Generator().manual_seed(seed)
    upstream, upstream_entropy = torch.randn(2, 4, generator=generator, dtype=torch.float64)
    got, entropy = token_log_probs(
        hidden, weight, targets, temperature=0.7, chunk_size=chunk_size, with_entropy=True, entropy_grad=True
    )
    (got @ upstream + entropy @ upstream_entropy).backward()
    lists = (x.tolist() for x in (hidden, weight, targets))
    want = plain_loops(*lists, 0.7, upstream.tolist(), upstream_entropy.tolist())
    for a, b in zip((got, entropy, hidden.grad, weight.grad), want, strict=True):
        torch.testing.assert_close(a.detach(), torch.tensor(b, dtype=torch.float64), rtol=1e-9, atol=1e-9 * scale)


@pytest.mark.parametrize("chunk_size", [-1, 2])
def test_gradcheck(chunk_size):
    hidden, weight, targets = problem(rows=5, size=3, vocab=7, dtype=torch.float64)

    def both(h, w):
        return token_log_probs(
            h, w, targets, temperature=0.7, chunk_size=chunk_size, with_entropy=True, entropy_grad=True, vocab_size=7
        )

    assert torch.autograd.gradcheck(both, (hidden, weight))


def test_float32_is_within_rounding_and_results_are_float32():
    hidden, weight, targets = problem()
    want, want_entropy = reference(hidden, weight, targets)
    got, entropy = token_log_probs(hidden, weight, targets, with_entropy=True)
    assert got.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(entropy.double(), want_entropy, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chunk_size", [-1, 5])
def test_bfloat16_uses_a_float32_softmax_of_bfloat16_logits(chunk_size):
    hidden, weight, targets = problem(dtype=torch.bfloat16)
    logits = hidden.detach() @ weight.detach().t()
    want = torch.log_softmax(logits.double(), -1).gather(1, targets[:, None]).squeeze(1)
    got, _ = token_log_probs(hidden, weight, targets, chunk_size=chunk_size)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
    got.sum().backward()
    reference_grads = torch.autograd.grad(reference(hidden, weight, targets)[0].sum(), (hidden, weight))
    for leaf, expected in zip((hidden, weight), reference_grads, strict=True):
        assert leaf.grad.dtype == torch.bfloat16
        torch.testing.assert_close(leaf.grad.float(), expected.float(), rtol=0.05, atol=0.05)


def test_padding_ids_take_no_probability_and_no_gradient():
    hidden, weight, targets = problem(dtype=torch.float64)
    targets = targets % 30
    got, _ = token_log_probs(hidden, weight, targets, vocab_size=30)
    torch.testing.assert_close(got, reference(hidden, weight[:30], targets)[0])
    got.sum().backward()
    assert (weight.grad[30:] == 0).all()
    assert (weight.grad[:30] != 0).any()


def test_extreme_logits_stay_finite():
    hidden, weight, targets = problem()
    with torch.no_grad():
        hidden.mul_(1e4)
    got, entropy = token_log_probs(hidden, weight, targets, with_entropy=True, entropy_grad=True)
    (got.sum() + entropy.sum()).backward()
    assert all(torch.isfinite(x).all() for x in (got, entropy, hidden.grad, weight.grad))


@pytest.mark.parametrize("chunk_size", [-1, 3])
def test_rows_without_gradient_add_nothing(chunk_size):
    hidden, weight, targets = problem(dtype=torch.float64)
    upstream = torch.tensor([0.0, 1.0, 0.0] * 4 + [0.0], dtype=torch.float64)
    got, _ = token_log_probs(hidden, weight, targets, chunk_size=chunk_size)
    grads = torch.autograd.grad(got, (hidden, weight), upstream)
    want = torch.autograd.grad(reference(hidden, weight, targets)[0], (hidden, weight), upstream)
    for a, b in zip(grads, want, strict=True):
        torch.testing.assert_close(a, b)
    got, _ = token_log_probs(hidden, weight, targets, chunk_size=chunk_size)
    for gradient in torch.autograd.grad(got, (hidden, weight), upstream * 0):
        assert (gradient == 0).all()


def test_backward_twice_gives_the_same_gradient():
    hidden, weight, targets = problem()
    got, _ = token_log_probs(hidden, weight, targets)
    first = torch.autograd.grad(got.sum(), (hidden, weight), retain_graph=True)
    second = torch.autograd.grad(got.sum(), (hidden, weight))
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_no_rows_give_empty_results_and_zero_gradients():
    hidden, weight, _ = problem(rows=0)
    got, entropy = token_log_probs(hidden, weight, torch.zeros(0, dtype=torch.long), with_entropy=True)
    assert got.shape == entropy.shape == (0,)
    got.sum().backward()
    assert (weight.grad == 0).all()


def test_frozen_weight_or_hidden_get_no_gradient():
    hidden, weight, targets = problem()
    got, _ = token_log_probs(hidden.detach(), weight, targets)
    got.sum().backward()
    assert hidden.grad is None
    assert weight.grad is not None
    got, _ = token_log_probs(hidden, weight.detach(), targets)
    got.sum().backward()
    assert hidden.grad is not None


def test_large_batches_are_chunked_without_being_asked(monkeypatch):
    hidden, weight, targets = problem()
    want, _ = token_log_probs(hidden, weight, targets)
    want_grads = torch.autograd.grad(want.sum(), (hidden, weight))
    monkeypatch.setattr(logprobs, "KEEP_BYTES", 0)
    monkeypatch.setattr(logprobs, "CHUNK_BYTES", 2 * 37 * 4)
    monkeypatch.setattr(logprobs, "DEVICE_CHUNK_BYTES", 2 * 37 * 4)
    monkeypatch.setattr(logprobs, "CPU_BLOCK_BYTES", 37 * 4)
    got, _ = token_log_probs(hidden, weight, targets)
    grads = torch.autograd.grad(got.sum(), (hidden, weight))
    for a, b in zip((got, *grads), (want, *want_grads), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_two_ranks_equal_one():
    assert run_ranks(2, "relax_core.algorithms.logprobs_ranks:parity") == ["equal", "equal"]
