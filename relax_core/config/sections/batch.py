"""Options of batching: how samples become optimiser steps and micro-batches.

Guarantee: only the number of samples of an optimiser step changes what is trained; the rest says how the same sums are
computed. Importing this module needs pydantic only.
"""

from relax_core.config.declare import Section, option
from relax_core.config.ranges import COUNT

_WORK = "relax_core/training/work.py"


class BatchSection(Section):
    """Batching"""

    title_zh = "批处理配置"

    global_batch_size: int | None = option(
        None,
        COUNT,
        stages="train_critic train",
        effect=_WORK,
        zh="一次 optimizer step 用多少个样本。默认：一个 rollout step 的样本数 / --num-steps-per-rollout。",
    )
    """Samples of one optimiser step. Default: all samples of a step / --num-steps-per-rollout."""
    micro_batch_size: int = option(
        1, COUNT, effect=_WORK, zh="一个 micro-batch 有多少个样本；开启 --use-dynamic-batch-size 时不起作用。"
    )
    """Samples of a micro-batch; ignored with --use-dynamic-batch-size."""
    num_steps_per_rollout: int | None = option(
        None,
        COUNT,
        stages="train_critic train",
        effect=_WORK,
        zh="一个 rollout step 做几次 optimizer step。默认：1，或由 --global-batch-size 得出。",
    )
    """Optimiser steps a rollout step. Default: 1, or what --global-batch-size gives."""
    use_dynamic_batch_size: bool = option(
        False, effect=_WORK, zh="按长度把样本装进 micro-batch，每个最多 --max-tokens-per-gpu 个 token。"
    )
    """Pack samples into micro-batches of at most --max-tokens-per-gpu tokens."""
    max_tokens_per_gpu: int | None = option(
        None,
        COUNT,
        effect=_WORK,
        zh="一个 micro-batch 最多多少个 token。需要 --use-dynamic-batch-size，两者须同时给出。默认：不设。",
    )
    """Most tokens of a micro-batch. Needs --use-dynamic-batch-size, which needs it too. Default: not set."""
    log_probs_max_tokens_per_gpu: int | None = option(
        None, COUNT, effect=_WORK, zh="不求梯度时一个 micro-batch 最多多少个 token。默认：--max-tokens-per-gpu。"
    )
    """Tokens of a micro-batch in passes without gradient. Default: --max-tokens-per-gpu."""
    balance_data: bool = option(
        False, effect=_WORK, zh="让各 data-parallel rank 的 token 数尽量相等（Karmarkar–Karp）。"
    )
    """Balance tokens over the data-parallel ranks (Karmarkar-Karp)."""
