"""Options for debugging and profiling.

Guarantee: what only observes a run changes nothing in it; what replaces a part of it is refused while nothing honours
it. Importing this module needs pydantic only.
"""

from typing import Literal

from relax_core.config.declare import Section, option
from relax_core.config.ranges import COUNT, NOT_NEGATIVE, PROBABILITY, Range

PROFILE_TARGETS = ("train_overall", "train_actor", "train_log_probs")
"""The parts of training that the profiler can record."""

_TARGETS = Range(
    lambda names: bool(names) and set(names) <= set(PROFILE_TARGETS), f"one or more of {', '.join(PROFILE_TARGETS)}"
)


class DebugSection(Section):
    """Debugging and profiling"""

    title_zh = "调试与性能分析参数"

    debug_rollout_only: bool = option(
        False,
        stages="generate train",
        effect="relax_core/run/session.py",
        zh="只生成和打分，不训练：不启动训练器，每一步都用 --hf-checkpoint 的权重。不能与 --debug-train-only 同用。",
    )
    """Generate and score, and train nothing: no trainer is started, and every step has the weights of --hf-checkpoint.
    Excludes --debug-train-only."""
    debug_train_only: bool = option(
        False,
        effect="relax_core/run/session.py",
        zh="只训练，不启动引擎，也不评估。不能与 --debug-rollout-only 同用；数据来自 --load-debug-rollout-data。",
    )
    """Train, start no engine and evaluate nothing. Excludes --debug-rollout-only; the data is that of
    --load-debug-rollout-data."""
    load_debug_rollout_data: str | None = option(
        None,
        stages="generate reward",
        effect="relax_core/run/debug_data.py",
        zh="不生成，改读以前存下的 rollout：--save-debug-rollout-data（或 slime）写的文件，或某一步的 rollout.parquet；"
        "路径可含 `{rollout_id}`，可以是 fsspec URL。文件里有 reward 时直接采用，否则重新打分。"
        "给出即视为 --debug-train-only，指标不送往 TensorBoard 等处。默认：照常生成。",
    )
    """Saved rollouts to read in place of generating: files of --save-debug-rollout-data (or slime's), or a step's
    rollout.parquet; the path may contain `{rollout_id}` and be an fsspec URL. Rewards that they hold are taken, else
    they are computed. Implies --debug-train-only; trackers such as TensorBoard get no metrics. Default: generate."""
    load_debug_rollout_data_subsample: float | None = option(
        None,
        PROBABILITY,
        stages="generate",
        effect="relax_core/run/debug_data.py",
        zh="只取所读 rollout 的这一比例的 group，前后各取一半。需要 --load-debug-rollout-data。默认：全部。",
    )
    """Share of the groups of those rollouts to use, half of it from either end. Needs --load-debug-rollout-data.
    Default: all."""
    save_debug_rollout_data: str | None = option(
        None,
        effect="relax_core/run/debug_data.py",
        zh="每步的 rollout 连同 reward 另存一份到此路径（或 fsspec URL），格式为 Parquet，"
        "以 `.pt` 结尾则用 torch.load 读取；可含 `{rollout_id}`，评估的样本在编号前加 `eval_`。默认：不另存。",
    )
    """Path or fsspec URL of a further copy of each step's samples with their rewards: Parquet, or for torch.load where
    it ends in `.pt`; may contain `{rollout_id}`, before which `eval_` stands for the samples of an evaluation. Default:
    no copy."""
    save_debug_train_data: str | None = option(
        None,
        effect="relax_core/run/debug_data.py",
        zh="每步的训练数据另存一份到此路径（或 fsspec URL），格式同 --save-debug-rollout-data；"
        "可含 `{rollout_id}` 与 `{rank}`。只有一个文件，rank 为 0，含所有 rank 的样本。默认：不另存。",
    )
    """Path or fsspec URL of a copy of each step's training data, in a format as --save-debug-rollout-data; may contain
    `{rollout_id}` and `{rank}`. There is one file, of rank 0, with the samples of all ranks. Default: no copy."""
    dump_details: str | None = option(
        None,
        effect="relax_core/run/debug_data.py",
        zh="把每步的 rollout、训练数据（Parquet）和 tokenizer 都存入此目录（或 fsspec URL），供事后分析。默认：不存。",
    )
    """Folder or fsspec URL for all of it: rollouts and training data, as Parquet, and tokenizer, to look at afterwards.
    Default: none."""
    check_weight_update_equal: bool = option(
        False,
        effect="relax_core/training/push.py",
        zh="每次同步权重之后，比较引擎与训练端的权重，有差别就停止。",
    )
    """After each sync compare the engines' weights with the trainer's, and stop on a difference."""
    enable_cuda_memory_check: bool = option(
        False, unwired="warn", zh="每次 NCCL 通信之前记下空闲显存，通信失败时写进报错。"
    )
    """Note the free device memory before every NCCL call, and put it into the error of one that fails."""
    use_pytorch_profiler: bool = option(
        False, unwired="warn", zh="用 PyTorch 的 profiler 记录若干训练步：kernel、CPU 算子与通信。"
    )
    """Record some steps of training with PyTorch's profiler: kernels, operators and communication."""
    profile_step_start: int = option(
        10,
        NOT_NEGATIVE,
        unwired="warn",
        zh="记录的第一步，从训练进程启动时数起（恢复运行后重新数）。需要 --use-pytorch-profiler。",
    )
    """First step that is recorded, counted from the start of the process and so anew after a resume. Needs
    --use-pytorch-profiler."""
    profile_step_end: int = option(
        12, NOT_NEGATIVE, unwired="warn", zh="记录的最后一步，数法相同，这一步也记录。需要 --use-pytorch-profiler。"
    )
    """Last step that is recorded, itself included, counted in the same way. Needs --use-pytorch-profiler."""
    profile_target: list[str] = option(
        ["train_overall"],
        _TARGETS,
        unwired="warn",
        zh="记录训练的哪些部分：train_overall、train_actor、train_log_probs。需要 --use-pytorch-profiler。",
    )
    """What is recorded: train_overall, train_actor, train_log_probs. Needs --use-pytorch-profiler."""
    profile_with_stack: bool = option(False, unwired="warn", zh="连同调用栈一起记录。需要 --use-pytorch-profiler。")
    """Record call stacks too. Needs --use-pytorch-profiler."""
    profile_with_memory: bool = option(
        False, unwired="warn", zh="连同内存的分配一起记录。需要 --use-pytorch-profiler。"
    )
    """Record memory too. Needs --use-pytorch-profiler."""
    profile_with_flops: bool = option(
        False, unwired="warn", zh="连同估计的浮点运算量一起记录。需要 --use-pytorch-profiler。"
    )
    """Record estimated floating-point operations too. Needs --use-pytorch-profiler."""
    record_memory_history: bool = option(
        False, unwired="warn", zh="记录显存的每次分配与释放及其调用栈；显存耗尽时存成快照。"
    )
    """Record each allocation of device memory with its call stack; running out of memory leaves a snapshot."""
    memory_snapshot_path: str = option(
        "snapshot.pickle", unwired="warn", zh="快照的文件名。需要 --record-memory-history。"
    )
    """File name of the snapshot. Needs --record-memory-history."""
    memory_snapshot_dir: str | None = option(
        None,
        unwired="warn",
        zh="快照的目录。需要 --record-memory-history。默认：`traces/<tb_experiment_name>/memory_snapshot`。",
    )
    """Folder of the snapshot. Needs --record-memory-history. Default:
    `traces/<tb_experiment_name>/memory_snapshot`."""
    memory_snapshot_num_steps: int | None = option(
        None,
        COUNT,
        unwired="warn",
        zh="训练多少步之后存一次快照。需要 --record-memory-history。默认：只在显存耗尽时存。",
    )
    """Steps after which a snapshot is taken. Needs --record-memory-history. Default: only when memory runs out."""
    memory_recorder: Literal["torch", "memray"] = option(
        "torch",
        unwired="warn",
        zh="用什么记录内存：torch 是 PyTorch 自带的，memray 须另装同名的包。需要 --record-memory-history。",
    )
    """What records memory: torch has it built in, memray is a package of its own. Needs --record-memory-history."""
    http_proxy: str | None = option(
        None,
        effect="relax_core/engines/spec.py",
        zh="引擎和自定义函数对外发出 HTTP 请求时使用的代理（以环境变量的形式给出）；本机地址除外。默认：不用代理。",
    )
    """Proxy for the HTTP requests of engines and of your own functions to the outside, as environment variables; not
    for addresses of this machine. Default: none of its own."""
    use_distributed_post: bool = option(
        False, unwired="warn", zh="由各节点分担发送 HTTP 请求，而不是全由一个进程发送。"
    )
    """Send HTTP requests from every node in place of from one process."""
