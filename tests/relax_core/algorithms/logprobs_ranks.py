"""What each of two tensor-parallel ranks checks for test_logprobs."""

import torch
import torch.distributed as dist
from ranks import join_ranks

from relax_core.algorithms.logprobs import token_log_probs

ROWS, SIZE, VOCAB = 9, 6, 32


def parity() -> str:
    """Values and gradients of two vocabulary shards against one process with the whole vocabulary."""
    join_ranks()
    rank, shard = dist.get_rank(), VOCAB // 2
    rows = slice(rank * shard, (rank + 1) * shard)
    torch.manual_seed(0)
    hidden, weight = torch.randn(ROWS, SIZE).double(), torch.randn(VOCAB, SIZE).double()
    ids, upstream = torch.randint(0, VOCAB, (ROWS,)), torch.randn(ROWS).double()

    def run(weight, group, chunk_size, vocab_size):
        leaves = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        log_probs, entropy = token_log_probs(
            *leaves, ids % (vocab_size or VOCAB), temperature=0.8, group=group, chunk_size=chunk_size,
            with_entropy=True, entropy_grad=True, vocab_size=vocab_size,
        )  # fmt: skip
        (log_probs * upstream + entropy * 0.3).sum().backward()
        return log_probs, entropy, *(torch.zeros_like(x) if x.grad is None else x.grad for x in leaves)

    for vocab_size in (None, 21, 15):  # 15: the second rank holds nothing but padding
        for chunk_size in (-1, 4):
            want = run(weight, None, chunk_size, vocab_size)
            got = run(weight[rows], dist.group.WORLD, chunk_size, vocab_size)
            dist.all_reduce(got[2])  # each rank gives its shard's part
            for a, b in zip(got, (*want[:3], want[3][rows]), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)
    return "equal"
