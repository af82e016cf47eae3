"""Options of evaluation.

Guarantee: what is evaluated is in ``eval_datasets`` alone; the options that it follows from only fill it, so that two
ways to ask for the same evaluation have the same identity.
"""

from relax_core.config.declare import Section, option
from relax_core.config.eval_sets import EvalSet
from relax_core.config.ranges import COUNT, NOT_NEGATIVE, OFF_OR_COUNT, PROBABILITY, at_least

_SETS = "relax_core/config/eval_sets.py"


class EvalSection(Section):
    """Evaluation"""

    title_zh = "评估配置"

    eval_interval: int | None = option(
        None, COUNT, effect="relax_core/run/session.py", zh="两次评估之间相隔的 rollout step 数。默认：不评估。"
    )
    """Rollout steps between two evaluations. Default: no evaluation."""
    eval_datasets: list[EvalSet] | None = option(
        None,
        effect="relax_core/run/prompts.py",
        stages="evaluate",
        zh="完整写出的评估集：每个有名称、路径以及自己的采样与 reward 选项，写在运行文件里或用 JSON 给出。"
        "默认：由 --eval-config 得出，否则由 --eval-prompt-data 得出。",
    )
    """The evaluation sets in full, in the run file or as JSON: each with its name, its path and its own options of
    sampling and reward. Default: what --eval-config says, else what --eval-prompt-data says."""
    eval_prompt_data: list[str] | None = option(
        None,
        effect="relax_core/config/resolve.py",
        zh="评估集，成对给出：先名称，后路径（JSONL 或 Parquet）。只给一个路径时名称为 aime。默认：没有评估集。",
    )
    """Evaluation sets as pairs of name and path (JSONL or Parquet). One path alone gets the name aime. Default: no
    sets."""
    eval_config: str | None = option(
        None,
        effect="relax_core/config/resolve.py",
        zh="描述评估集的 YAML 或 JSON 文件：`datasets` 逐个列出，`defaults` 为它们共用的值。"
        "给出后 --eval-prompt-data 不再起作用。默认：不使用文件。",
    )
    """YAML or JSON file that describes the evaluation sets: `datasets` lists them, `defaults` holds what they share. It
    wins over --eval-prompt-data. Default: no file."""
    eval_function_path: str | None = option(
        None,
        unwired="refuse",
        zh="自定义函数，由它生成评估集的回答：`包.模块.函数` 或 `文件.py:函数`。默认：--rollout-function-path。",
    )
    """Function of yours that generates the responses of evaluation: `package.module.function` or `file.py:function`.
    Default: --rollout-function-path."""
    skip_eval_before_train: bool = option(
        False, effect="relax_core/run/session.py", zh="第一步之前不评估。只与 --eval-interval 一起有意义。"
    )
    """No evaluation before the first step. Matters with --eval-interval only."""
    eval_input_key: str | None = option(None, effect=_SETS, zh="评估集中 prompt 所在的列。默认：--input-key。")
    """Column of the prompt in evaluation sets. Default: --input-key."""
    eval_label_key: str | None = option(None, effect=_SETS, zh="评估集中 label 所在的列。默认：--label-key。")
    """Column of the label in evaluation sets. Default: --label-key."""
    eval_tool_key: str | None = option(None, effect=_SETS, zh="评估集中工具列表所在的列。默认：--tool-key。")
    """Column of the tools in evaluation sets. Default: --tool-key."""
    n_samples_per_eval_prompt: int = option(1, COUNT, effect=_SETS, zh="每条评估 prompt 生成几个回答。")
    """Responses an evaluation prompt."""
    eval_temperature: float | None = option(
        None, NOT_NEGATIVE, effect=_SETS, zh="评估的采样温度；0 为贪心解码。默认：--rollout-temperature。"
    )
    """Sampling temperature of evaluation; 0 is greedy. Default: --rollout-temperature."""
    eval_top_p: float | None = option(
        None, PROBABILITY, effect=_SETS, zh="评估的 nucleus 采样（top-p）。默认：--rollout-top-p。"
    )
    """Nucleus sampling of evaluation. Default: --rollout-top-p."""
    eval_top_k: int | None = option(
        None, OFF_OR_COUNT, effect=_SETS, zh="评估的 top-k 采样；-1 为关闭。默认：--rollout-top-k。"
    )
    """Top-k sampling of evaluation; -1 is off. Default: --rollout-top-k."""
    eval_max_response_len: int | None = option(
        None, COUNT, effect=_SETS, zh="评估时一个回答最多多少 token。默认：--rollout-max-response-len。"
    )
    """Most tokens of a response in evaluation. Default: --rollout-max-response-len."""
    eval_max_prompt_len: int | None = option(
        None, COUNT, effect=_SETS, zh="评估 prompt 的 token 上限，更长的被略去并计数。默认：--rollout-max-prompt-len。"
    )
    """Evaluation prompts with more tokens are left out, and counted. Default: --rollout-max-prompt-len."""
    eval_min_new_tokens: int | None = option(
        None, NOT_NEGATIVE, effect=_SETS, zh="评估时回答至少要有这么多 token 才能结束。默认：0。"
    )
    """Fewest tokens of a response in evaluation: it cannot end before. Default: 0."""
    eval_max_context_len: int | None = option(
        None, at_least(2), effect=_SETS, zh="评估时 prompt 与回答合计最多多少 token。默认：--rollout-max-context-len。"
    )
    """Most tokens of prompt and response together in evaluation. Default: --rollout-max-context-len."""
