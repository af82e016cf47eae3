"""Options that choose which parameters are trained.

Guarantee: both see the names that parameters have in the whole model, whatever the parallel sizes. Importing this
module needs pydantic only.
"""

from relax_core.config.declare import Section, option

_FREEZE = "relax_core/training/freeze.py"


class FreezeSection(Section):
    """Frozen parameters"""

    title_zh = "参数冻结与选择性训练"

    only_train_params_name_list: list[str] | None = option(
        None,
        stages="train",
        effect=_FREEZE,
        zh="正则表达式列表；名称（Megatron 的，如 `decoder.layers.0.mlp.linear_fc1.weight`）中能找到其中之一的参数"
        "才训练，其余不变。不能与 --freeze-params-name-list 同用。默认：全部训练。",
    )
    """Regular expressions: only parameters in whose name (Megatron's, such as
    `decoder.layers.0.mlp.linear_fc1.weight`) one of them is found are trained. Excludes --freeze-params-name-list.
    Default: all are trained."""
    freeze_params_name_list: list[str] | None = option(
        None,
        stages="train",
        effect=_FREEZE,
        zh="正则表达式列表；名称中能找到其中之一的参数不训练。不能与 --only-train-params-name-list 同用。"
        "默认：全部训练。",
    )
    """Regular expressions: parameters in whose name one of them is found are not trained. Excludes
    --only-train-params-name-list. Default: none is frozen."""
