"""Options of on-policy distillation.

Guarantee: ``use_opd`` alone turns it on; the other options only say how. Importing this module needs pydantic only.
"""

from typing import Literal

from relax_core.config.declare import Section, option
from relax_core.config.ranges import NOT_NEGATIVE

_FORWARD = "relax_core/config/forward.py"
_ORIGIN = "relax_core/training/origin.py"


class OpdSection(Section):
    """On-policy distillation (OPD)"""

    title_zh = "On-Policy Distillation（OPD）"

    use_opd: bool = option(
        False,
        stages="reward forward",
        effect=_FORWARD,
        zh="蒸馏：从每个 token 的 advantage 中减去 student 与 teacher 的 log-prob 之差。需要 --opd-type；"
        "没有 reward 时，每个样本计 0 分。",
    )
    """Distil: each token's advantage is lowered by how much likelier the student finds it than the teacher. Needs
    --opd-type. Without a reward every sample scores 0."""
    opd_type: Literal["sglang", "megatron"] | None = option(
        None,
        stages="forward",
        effect=_FORWARD,
        zh="teacher 的 log-prob 从哪里来：sglang 向另行启动的 SGLang 服务（--rm-url）索取，megatron 由训练进程用 "
        "--opd-teacher-load 的权重计算。默认：未定，--use-opd 要求给出。",
    )
    """Where the teacher's log-probs come from: sglang asks a running SGLang server (--rm-url), megatron computes them
    in the trainer with the weights of --opd-teacher-load. Default: none; --use-opd needs it."""
    opd_kl_coef: float = option(
        1.0,
        NOT_NEGATIVE,
        stages="advantage",
        effect="relax_core/algorithms/batch.py",
        zh="advantage 中这项差值的权重。需要 --use-opd。",
    )
    """Weight of that difference in the advantage. Needs --use-opd."""
    opd_teacher_load: str | None = option(
        None,
        stages="forward",
        effect=_ORIGIN,
        zh="teacher 的权重：Hugging Face 文件夹，或 Megatron checkpoint 文件夹，模型结构与 --hf-checkpoint 相同；"
        "--opd-type megatron 必须给出，sglang 不得给出。默认：没有。",
    )
    """Weights of the teacher: a Hugging Face folder, or a folder of Megatron checkpoints, of the shape of
    --hf-checkpoint; --opd-type megatron needs it, sglang cannot have it. Default: none."""
    opd_teacher_ckpt_step: int | None = option(
        None,
        NOT_NEGATIVE,
        stages="forward",
        effect=_ORIGIN,
        zh="使用 --opd-teacher-load 中哪一步的 checkpoint，当它是 Megatron checkpoint 文件夹时。默认：最新的一步。",
    )
    """Step of the checkpoint in --opd-teacher-load, where it is a folder of Megatron checkpoints. Default: the
    newest."""
