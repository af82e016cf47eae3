"""Options of parallelism and of activation recomputation.

Guarantee: none of them changes what is trained beyond the rounding of sums. Importing this module needs pydantic only.
"""

from typing import Literal

from relax_core.config.declare import Section, option
from relax_core.config.ranges import COUNT

_MODEL = "relax_core/training/model.py"


class ParallelSection(Section):
    """Parallelism"""

    title_zh = "并行配置"

    tensor_model_parallel_size: int = option(
        1, COUNT, effect=_MODEL, zh="Tensor parallel 的大小：每层的权重分给几个 rank。"
    )
    """Tensor-parallel size."""
    pipeline_model_parallel_size: int = option(
        1, COUNT, effect=_MODEL, zh="Pipeline parallel 的大小：模型的层分成几段。"
    )
    """Pipeline-parallel size."""
    sequence_parallel: bool = option(
        False,
        effect=_MODEL,
        zh="在 tensor parallel 之外再按 token 切分激活。需要 --tensor-model-parallel-size 大于 1。",
    )
    """Sequence parallelism beside tensor parallelism. Needs --tensor-model-parallel-size above 1."""
    context_parallel_size: int = option(
        1, COUNT, unwired="refuse", zh="Context parallel 的大小：一条序列分给几个 rank。"
    )
    """Context-parallel size: ranks that share one sequence."""
    expert_model_parallel_size: int = option(
        1, COUNT, unwired="refuse", zh="Expert parallel 的大小：MoE 模型的专家分给几个 rank。"
    )
    """Expert-parallel size: ranks over which a mixture's experts are spread."""
    expert_tensor_parallel_size: int = option(
        1, COUNT, unwired="refuse", zh="专家内部的 tensor parallel 大小（MoE 模型）。"
    )
    """Tensor-parallel size within the experts of a mixture."""
    recompute_granularity: Literal["full", "selective"] | None = option(
        None,
        effect=_MODEL,
        zh="反向时重新计算激活以节省显存：full 为整层，selective 只算 attention 内部。默认：不重算。",
    )
    """Activation recomputation: of whole layers, or of attention alone. Default: none."""
    recompute_method: Literal["uniform", "block"] | None = option(
        None,
        effect=_MODEL,
        zh="重算哪些层：uniform 按段均分所有层，block 只重算每个 pipeline 段的前几层。"
        "需要 --recompute-granularity full。默认：不设。",
    )
    """Which layers are recomputed: all, in equal groups (uniform), or the first of each pipeline stage (block). Needs
    --recompute-granularity full. Default: not set."""
    recompute_num_layers: int | None = option(
        None,
        COUNT,
        effect=_MODEL,
        zh="uniform：每组的层数；block：每个 pipeline 段重算的层数。需要 --recompute-granularity full。默认：不设。",
    )
    """Layers of a group (uniform), or layers of a stage that are recomputed (block). Needs
    --recompute-granularity full. Default: not set."""
