"""Options of supervised fine-tuning; they have an effect with `--loss-type sft` only.

Guarantee: what decides the samples is refused while nothing honours it; what only feeds them faster is no error.
Importing this module needs pydantic only.
"""

from typing import Literal

from relax_core.config.declare import Section, option
from relax_core.config.ranges import ANY, COUNT, NOT_NEGATIVE, above


class SftSection(Section):
    """Supervised fine-tuning"""

    title_zh = "SFT 配置"

    eval_size: float | None = option(
        None,
        above(0),
        unwired="refuse",
        zh="从 --prompt-data 中随机（按 --seed）留出一部分做评估，不再用于训练：小于 1 为占比，1 或以上为样本数。"
        "不能与 --eval-prompt-data 同用。默认：不留出。",
    )
    """Part of --prompt-data to hold out for evaluation, drawn by --seed and never trained on: a share below 1, else a
    number of samples. Excludes --eval-prompt-data. Default: nothing is held out."""
    sft_predict_interval: int | None = option(
        None,
        COUNT,
        unwired="refuse",
        zh="每隔多少个 step 为评估集生成一次回答，写入 `<save>/predict/`。需要 --save、评估数据和 SGLang 引擎。"
        "默认：不生成。",
    )
    """Steps between two generations for the evaluation set, written to `<save>/predict/`. Needs --save, evaluation data
    and SGLang engines. Default: none."""
    sft_prefetch_buffer_size: int = option(
        256, NOT_NEGATIVE, unwired="warn", zh="最多预先准备好多少个样本；0 为不预取，改为整批并行处理。"
    )
    """Most samples prepared in advance; 0: none, and each batch is prepared at once."""
    sft_prefetch_chunk_size: int = option(32, COUNT, unwired="warn", zh="预取线程池每次领取多少个样本。")
    """Samples that the prefetching threads are given at a time."""
    sft_prefetch_num_workers: int = option(4, COUNT, unwired="warn", zh="预取时解码图像与视频的线程数。")
    """Threads that decode images and videos in advance."""
    sft_async_prepack: bool = option(
        False,
        unwired="warn",
        zh="训练的同时打包后面 step 的样本。需要 --per-rank-fetch、thd 布局、两个以上同时在途的 step，"
        "且 pipeline、virtual pipeline、context parallel 均为 1。",
    )
    """Pack the samples of later steps while a step trains. Needs --per-rank-fetch, the layout thd, two or more steps in
    flight, and no pipeline, virtual-pipeline or context parallelism."""
    sft_max_in_flight_steps: int | None = option(
        None, COUNT, unwired="warn", zh="最多有几个 step 的样本在准备或等待训练。默认：--max-staleness + 1。"
    )
    """Most steps whose samples are being prepared or wait to be trained on. Default: --max-staleness + 1."""
    sft_tq_shards: int = option(
        1,
        ANY,
        unwired="warn",
        zh="每个 step 的样本分成几份、由几个进程各自准备；0 或更小等于 1。须整除 --global-batch-size 及每个 "
        "data-parallel rank 的样本数。需要 --sft-async-prepack。",
    )
    """Parts into which a step's samples are divided, each prepared by a process of its own; 0 and less count as 1. Must
    divide --global-batch-size and each data-parallel rank's part of it. Needs --sft-async-prepack."""
    sft_oversize_strategy: Literal["skip", "keep", "truncate_left", "truncate_right", "custom"] = option(
        "keep",
        unwired="refuse",
        zh="样本长于 --max-tokens-per-gpu x --context-parallel-size 时：skip 丢弃，keep 不变，truncate_left 留下末尾，"
        "truncate_right 留下开头，custom 由 --sft-oversize-custom-function-path 处理。"
        "截断可能使图像等与其 token 错位。",
    )
    """What is done with a sample longer than --max-tokens-per-gpu x --context-parallel-size: drop it, keep it whole,
    keep its end (truncate_left), keep its beginning (truncate_right), or call --sft-oversize-custom-function-path.
    Truncation can put images and their tokens out of step."""
    sft_oversize_custom_function_path: str | None = option(
        None,
        unwired="refuse",
        zh="处理过长样本的函数 `truncate(tokens, loss_mask, capacity, idx)`，返回 `(tokens, loss_mask)`；None 即丢弃。"
        "--sft-oversize-strategy custom 必须有它。默认：没有。",
    )
    """Your function `truncate(tokens, loss_mask, capacity, idx)` for samples that are too long: it returns
    `(tokens, loss_mask)`, or None to drop the sample. Needed by --sft-oversize-strategy custom. Default: none."""
    sft_invalid_multimodal_strategy: Literal["error", "skip"] = option(
        "error", unwired="refuse", zh="图像、视频或音频读不出来的样本：error 报错停止，skip 丢弃。"
    )
    """What is done with a sample whose image, video or audio cannot be read: stop with an error, or drop it."""
    task_type: Literal["causal_lm", "seq_cls"] = option(
        "causal_lm", unwired="refuse", zh="学什么：causal_lm 预测下一个 token，seq_cls 给整条序列分类。"
    )
    """What is learned: the next token (causal_lm), or a class for the whole sequence (seq_cls)."""
    custom_dataset_class: str | None = option(
        None, unwired="refuse", zh="代替内置 SFT 数据集的类的点分路径。默认：使用内置的数据集。"
    )
    """Dotted path of the class that replaces the built-in data set. Default: the built-in one."""
    custom_dataset_class_path: str | None = option(
        None, unwired="refuse", zh="与 --custom-dataset-class 含义相同，给出其中一个即可。默认：没有。"
    )
    """The same as --custom-dataset-class, of which one is enough. Default: none."""
