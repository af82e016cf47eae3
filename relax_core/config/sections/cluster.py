"""Options of the cluster: which role gets which devices, and how data travel between roles.

Guarantee: none of those that are honoured changes a stage's output: they say where it is computed.
"""

from typing import Literal

from relax_core.config.declare import Section, option
from relax_core.config.ranges import COUNT, NOT_NEGATIVE


class ClusterSection(Section):
    """Cluster and resources"""

    title_zh = "集群与资源配置"

    resource: dict[str, tuple[int, int]] = option(
        {"actor": (1, 1), "rollout": (1, 1)},
        effect="relax_core/config/derived.py",
        zh='角色到 [副本数, 设备数] 的映射，例如 `{"actor":[1,2],"rollout":[1,1]}`。没有 GPU 时一个设备就是一个进程。',
    )
    """Role to [replicas, devices], e.g. `{"actor":[1,2],"rollout":[1,1]}`. Without a GPU a device is one process."""

    rollout_num_gpus_per_engine: int = option(
        1, COUNT, effect="relax_core/engines/spec.py", zh="一个 SGLang 引擎占用的设备数，即它的张量并行大小。"
    )
    """Devices of one SGLang engine: its tensor-parallel size."""

    num_gpus_per_node: int = option(8, COUNT, unwired="warn", zh="一个节点上的设备数。")
    """Devices of one node."""

    colocate: bool = option(
        False,
        effect="relax_core/config/devices.py",
        zh="训练器、critic、引擎与评判模型轮流使用 actor 的设备；隐含 --offload-train 和 --offload-rollout。"
        "没有 GPU 时它们照常同时运行。",
    )
    """Trainer, critic, engines and the judge take turns on the actor's devices; implies --offload-train and
    --offload-rollout. Without a GPU they run beside each other as ever."""

    offload: bool = option(
        False, effect="relax_core/config/resolve.py", zh="一次打开 --offload-train 与 --offload-rollout 两项。"
    )
    """Both --offload-train and --offload-rollout."""

    offload_train: bool | None = option(
        None,
        effect="relax_core/run/turns.py",
        zh="训练器空闲时把它的状态移到主机内存。默认：有 --colocate 或 --offload 时打开，否则关闭。"
        "没有 GPU 时不起作用。",
    )
    """Move the trainer's state to host memory while it is idle. Default: on with --colocate or --offload, else off.
    Without a GPU there is nothing to move."""

    offload_rollout: bool | None = option(
        None,
        effect="relax_core/engines/spec.py",
        zh="训练期间让引擎释放权重和 KV cache 占用的显存。默认：有 --colocate 或 --offload 时打开，否则关闭。"
        "没有 GPU 时不起作用。",
    )
    """Let the engines give up the memory of weights and KV cache while the trainer works. Default: on with --colocate
    or --offload, else off. Without a GPU there is nothing to give up."""

    distributed_backend: Literal["nccl", "gloo"] = option(
        "nccl", effect="relax_core/training/distributed.py", zh="torch.distributed 使用的后端。没有 GPU 时总是 gloo。"
    )
    """Backend of torch.distributed. Without a GPU it is always gloo."""

    distributed_timeout_minutes: int = option(
        10, COUNT, effect="relax_core/training/distributed.py", zh="集合通信多少分钟没有进展即报错。"
    )
    """Minutes until a collective that makes no progress is an error."""

    data_transport: Literal["ray", "transfer_queue"] = option(
        "ray",
        effect="relax_core/run/transport/select.py",
        zh="全异步时一个 step 仍在生成，它的各份样本以何种方式送到训练器：ray 通过 Ray 的共享内存；transfer_queue "
        "通过 TransferQueue 软件包的 actor，并按任务记录哪些行已被读取（pip install 'relax-rl[queue]'）。"
        "持久的数据总在运行目录里，恢复运行不依赖于它。",
    )
    """What carries slices of a step's samples to the trainer while the step still generates (--fully-async): ray is
    Ray's shared memory; transfer_queue are actors of the package TransferQueue, which keep account of what each task
    has read (`pip install 'relax-rl[queue]'`). What lasts is in the run directory either way; resuming needs
    neither."""

    num_data_storage_units: int = option(
        1,
        COUNT,
        effect="relax_core/run/transport/select.py",
        zh="--data-transport transfer_queue 中保存数据的 Ray actor 个数。"
        "使用 --per-rank-fetch 时宜不少于张量并行大小。",
    )
    """Ray actors that hold the data of --data-transport transfer_queue. With --per-rank-fetch better no fewer than the
    tensor-parallel size."""

    per_rank_fetch: bool = option(
        False,
        effect="relax_core/run/transport/select.py",
        zh="训练器的每个 rank 自己从 --data-transport transfer_queue 的队列读取，而不是由一个 rank 读取一次再交给其他 "
        "rank。用 --data-transport ray 时每个 rank 总是自己读取。有 --use-rollout-routing-replay 时自动关闭。",
    )
    """Every rank of the trainer reads from the queue of --data-transport transfer_queue itself, where otherwise one
    reads once and hands it to the others. With --data-transport ray each reads from shared memory anyway. Off with
    --use-rollout-routing-replay."""

    max_staleness: int = option(
        0,
        NOT_NEGATIVE,
        effect="relax_core/run/session.py",
        zh="生成最多可以领先训练多少个 rollout step；0 表示完全 on-policy。需要 --fully-async。",
    )
    """Rollout steps that generation may be ahead of training, at most; 0 is on-policy. Needs --fully-async."""

    polling_mode: bool = option(
        True,
        effect="relax_core/run/transport/select.py",
        zh="向 --data-transport transfer_queue 的队列询问尚未就绪的数据时立即得到空的回答并稍后再问；关闭则由队列"
        "等待，期间它不回答其他请求，等不到就报错。",
    )
    """Whoever asks the queue of --data-transport transfer_queue for data that are not ready gets an empty answer at
    once and asks again; off: the queue waits, answers nobody else meanwhile, and fails where they do not come."""

    num_iters_per_train_update: int = option(
        1,
        COUNT,
        effect="relax_core/batching/slices.py",
        zh="全异步时一个 global batch 分成几份依次交给消费者，每份都是完整的 group；份数越多流水越细，开销也越大。"
        "需要 --fully-async。",
    )
    """Parts in which a global batch is handed on while it is produced, each of whole groups: more parts overlap better
    and cost more. Needs --fully-async."""
