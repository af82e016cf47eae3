"""Options of the generative reward model.

Guarantee: ``genrm_model_path`` alone turns it on; the other options only say how it runs. Importing this module needs
pydantic only.
"""

from typing import Any

from relax_core.config.declare import Section, option
from relax_core.config.ranges import COUNT

_ENGINE = "relax_core/engines/judge.py"
_CHOICE = "relax_core/rewards/choice.py"


class GenrmSection(Section):
    """Generative reward model (GenRM)"""

    title_zh = "GenRM（生成式奖励模型）"

    genrm_model_path: str | None = option(
        None,
        stages="reward evaluate",
        effect=_ENGINE,
        zh="评判回答的模型所在的目录；给出即启用 GenRM：--rm-type judge 与 dapo-genrm 由它打分，"
        "自定义 reward 也可以用它。默认：不用评判模型。",
    )
    """Folder of the model that judges responses; setting it turns GenRM on: it scores for --rm-type judge and
    dapo-genrm, and rewards of your own may ask it. Default: no judge."""
    genrm_num_gpus: int = option(1, COUNT, effect=_ENGINE, zh="评判模型一共占用多少设备。需要 --genrm-model-path。")
    """Devices of the judge, all engines together. Needs --genrm-model-path."""
    genrm_num_gpus_per_engine: int = option(
        1,
        COUNT,
        effect=_ENGINE,
        zh="评判模型的一个引擎占用多少设备，即其张量、流水线、数据并行大小之积。需要 --genrm-model-path。",
    )
    """Devices of one of its engines: tensor-parallel times pipeline-parallel times data-parallel size. Needs
    --genrm-model-path."""
    genrm_engine_config: dict[str, Any] | None = option(
        None,
        stages="reward evaluate",
        effect=_ENGINE,
        zh="其引擎的启动选项（JSON）：dp_size、pp_size、ep_size、max_total_tokens、max_context_len、mem_fraction_static，"
        "以及 SGLang 服务的其他参数。需要 --genrm-model-path。默认：全部取引擎自己的值，其中 max_context_len 为 8192。",
    )
    """Options of its engines (JSON): dp_size, pp_size, ep_size, max_total_tokens, max_context_len,
    mem_fraction_static, and other arguments of SGLang's server. Needs --genrm-model-path. Default: the engine's own,
    and 8192 for max_context_len."""
    genrm_sampling_config: dict[str, Any] | None = option(
        None,
        stages="reward evaluate",
        effect=_CHOICE,
        zh="评判时的采样选项（JSON）：temperature、top_p、top_k、max_response_len。需要 --genrm-model-path。"
        "默认：依次为 0.1、1.0、-1、4096。",
    )
    """How it samples (JSON): temperature, top_p, top_k, max_response_len. Needs --genrm-model-path. Default: 0.1, 1.0,
    -1 and 4096."""
    genrm_template: str | None = option(
        None,
        stages="reward evaluate",
        effect=_CHOICE,
        zh="向评判模型提问的模板：pointwise（打分）、correctness（与 label 是否一致）、pairwise（与参考回答比较）、"
        "rubric（逐条标准），或自己的 Jinja 文件。样本 metadata 里的 judge_template 优先。需要 --genrm-model-path。"
        "默认：--rm-type judge 用 pointwise，dapo-genrm 用 correctness。",
    )
    """How the judge is asked: pointwise (a grade), correctness (is the answer the label's), pairwise (against a
    reference answer), rubric (criteria one by one), or a Jinja file of yours. A row's metadata.judge_template, one of
    these names, wins. Needs --genrm-model-path. Default: pointwise for --rm-type judge, correctness for dapo-genrm."""
