"""Options of checkpoints: the weights that a run starts from, and what it saves.

Guarantee: which weights a run starts from is decided by options of this section alone.
"""

from relax_core.config.declare import Section, option
from relax_core.config.ranges import COUNT, NOT_NEGATIVE

_ORIGIN = "relax_core/training/origin.py"


class CheckpointSection(Section):
    """Checkpoints"""

    title_zh = "检查点配置"

    hf_checkpoint: str | None = option(
        None,
        stages="generate train_critic train evaluate",
        effect="relax_core/training/trainer.py",
        zh="Hugging Face 模型文件夹：tokenizer、模型结构、SGLang 启动时的权重；没有 --load 和 --ref-load 时，"
        "也是训练器的初始权重。必填。",
    )
    """Hugging Face folder: tokenizer, model shape, the weights that SGLang starts with and, without --load and
    --ref-load, the first ones of the trainer (required)."""

    ref_load: str | None = option(
        None,
        stages="forward train",
        effect=_ORIGIN,
        zh="参考模型的权重：Hugging Face 文件夹，或 Megatron checkpoint 文件夹；没有 --load 时 actor 也从它开始。"
        "默认：actor 起始时的权重。",
    )
    """Weights of the reference model: a Hugging Face folder, or a folder of Megatron checkpoints; without --load the
    actor starts from it too. Default: the weights that the actor starts from."""

    ref_ckpt_step: int | None = option(
        None,
        NOT_NEGATIVE,
        stages="forward train",
        effect=_ORIGIN,
        zh="从 --ref-load 的哪一步读取参考权重，当它是 Megatron checkpoint 文件夹时。默认：最新一步。",
    )
    """Step whose weights --ref-load gives, where it is a folder of Megatron checkpoints. Default: its newest."""

    load: str | None = option(
        None,
        stages="generate train evaluate",
        effect=_ORIGIN,
        zh="actor 的起点：Megatron checkpoint 文件夹或 Hugging Face 文件夹（只取权重）。默认：--ref-load，"
        "再为 --hf-checkpoint。",
    )
    """Megatron checkpoint folder, or Hugging Face folder, that the actor starts from (weights only). Default:
    --ref-load, else --hf-checkpoint."""

    save: str | None = option(
        None, effect="relax_core/run/session.py", zh="checkpoint 写到哪里。默认：`<运行目录>/checkpoints`。"
    )
    """Where checkpoints are written. Default: `<run>/checkpoints`."""

    save_interval: int | None = option(
        None,
        COUNT,
        effect="relax_core/run/session.py",
        zh="相邻两个 checkpoint 之间的 step 数；最后一步总会保存，用 --num-epoch 时每个 epoch 的最后一步也保存。"
        "默认：只保存最后一步。",
    )
    """Steps between two checkpoints; the last step is always saved, and with --num-epoch the last of each epoch.
    Default: only the last."""

    save_hf: str | None = option(
        None,
        effect="tasks/checkpoint.py",
        zh="每次保存 checkpoint 时再按 Hugging Face 格式导出一份权重到此处；路径里可以写 `{rollout_id}`。"
        "--rotate-ckpt 多保存的那些 step 不导出；导出的文件夹不会被自动删除。默认：不导出。",
    )
    """Also export the weights in Hugging Face format here when a checkpoint is saved; may contain `{rollout_id}`. The
    further checkpoints of --rotate-ckpt are not exported, and no export is deleted. Default: no export."""

    async_save: bool = option(
        False,
        effect="relax_core/training/trainer.py",
        zh="在后台写 checkpoint，训练不等待；下一次保存会等上一次写完，运行结束时最后一个必已写完。多占一份主机内存。",
    )
    """Write checkpoints in the background while training goes on; the next one waits for the one before it, and the
    last one is complete when the run ends. Takes host memory for a copy of what is written."""

    no_save_optim: bool = option(
        False,
        effect="relax_core/training/trainer.py",
        zh="checkpoint 里不含优化器状态：体积更小，但运行无法从它接着训练。",
    )
    """Leave the optimiser's state out: smaller, but a run cannot resume from such a checkpoint."""

    rotate_ckpt: bool = option(
        False,
        effect="relax_core/run/retention.py",
        zh="每步都保存，只留最新的和编号是 --save-interval 倍数的；其余的在更新的一个写完、该步提交之后才删除。"
        "需要 --save-interval 和 --async-save。",
    )
    """Save every step and keep only the newest checkpoint and those whose step is a multiple of --save-interval;
    another one is deleted once a newer one is complete and its step is committed. Needs --save-interval and
    --async-save."""

    max_actor_ckpt_to_keep: int | None = option(
        None,
        COUNT,
        effect="relax_core/run/retention.py",
        zh="actor 和 critic 的 checkpoint 各自最多留几个，超出时删最旧的"
        "（--rotate-ckpt 时除最新的之外只算编号是倍数的）；不完整的和其他运行的既不计入也不删除。默认：全部保留。",
    )
    """Checkpoints of the actor that are kept, and as many of the critic; older ones are deleted (with --rotate-ckpt
    those at multiples count, and the newest is kept anyway). Incomplete ones and those of other runs neither count nor
    are deleted. Default: all."""

    checkpoint_engine_backend: str = option(
        "nccl",
        effect="relax_core/training/push.py",
        choices=("nccl", "gloo"),
        zh="引擎与 trainer 使用不同 GPU 时，用哪个通信后端广播权重：nccl，或经主机内存、慢得多的 gloo。使用 --colocate "
        "时改走双方都映射的显存。在 CPU 上，nccl 表示共享内存，gloo 表示广播。",
    )
    """What broadcasts weights to engines that have other GPUs than the trainer: nccl, or gloo, which goes through host
    memory and is much slower. With --colocate they go through device memory that both map instead. On a CPU nccl stands
    for shared memory, and gloo broadcasts."""

    critic_load: str | None = option(
        None,
        stages="forward train_critic",
        effect=_ORIGIN,
        zh="critic 的起点：critic 自己的 checkpoint；或 Hugging Face 文件夹、actor 的 checkpoint，此时只取主干，"
        "value head 重新初始化。默认：--load，再为 --ref-load、--hf-checkpoint。需要有 critic 的估计器（ppo）。",
    )
    """Where the critic starts: a checkpoint of a critic; or a Hugging Face folder or a checkpoint of an actor, of which
    it takes the body and begins with a fresh value head. Default: --load, else --ref-load, else --hf-checkpoint. Needs
    an estimator with a critic (ppo)."""

    critic_save: str | None = option(
        None,
        effect="relax_core/run/session.py",
        zh="critic 的 checkpoint 写到哪里；与 actor 的同时保存，保留规则相同。默认：`<运行目录>/critic-checkpoints`。"
        "需要有 critic 的估计器（ppo）。",
    )
    """Where the critic's checkpoints are written, with those of the actor and kept by the same rules. Default:
    `<run>/critic-checkpoints`. Needs an estimator with a critic (ppo)."""
