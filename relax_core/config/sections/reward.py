"""Options of the reward.

Guarantee: an option here either decides a score or is refused while nothing honours it; those that only say how
many calls run at once change no score. Importing this module needs pydantic only.
"""

from relax_core.config.declare import Section, option
from relax_core.config.ranges import COUNT

_SCORE = "relax_core/rewards/score.py"


class RewardSection(Section):
    """Reward"""

    title_zh = "Reward 配置"

    rm_type: str | None = option(
        None,
        stages="reward",
        effect=_SCORE,
        zh="内置 reward 的名称；样本 metadata 里的 rm_type 优先。名称有 deepscaler、dapo、math、f1、gpqa、ifbench、"
        "multiple_choice、openr1mm、geo3k、mopd、random、dummy、remote_rm、dapo-genrm，以及 exact_number、gsm8k、"
        "gsm8k_flexible；当前版本没有的名称会报错并列出已有的。"
        "必填，除非给出 --custom-rm-path、--rm-type-infer、--rm-type-fallback 或 --use-opd。",
    )
    """Built-in reward; a sample's metadata.rm_type wins. The names are deepscaler, dapo, math, f1, gpqa, ifbench,
    multiple_choice, openr1mm, geo3k, mopd, random, dummy, remote_rm and dapo-genrm, and exact_number, gsm8k and
    gsm8k_flexible; one that this version lacks is an error that lists those it has (required without
    --custom-rm-path, --rm-type-infer, --rm-type-fallback and --use-opd)."""
    rm_type_fallback: str | None = option(
        None,
        unwired="refuse",
        zh="样本没有 reward 类型、或类型无人认识时怎么办：zero 计 0 分并给出警告，内置名称则改用那个。默认：报错。",
    )
    """What scores a sample whose reward is missing or unknown: zero (0 and a warning) or the name of a built-in reward.
    Default: it is an error."""
    rm_type_infer: bool = option(
        False,
        unwired="refuse",
        zh="没有指定类型的样本，从 label 的样式判断用哪个 reward；已指定类型而判断不同的，只警告，不改变。",
    )
    """Tell a sample's reward from the look of its label where no type is given; where one is given and differs, only
    warn."""
    custom_rm_path: str | None = option(
        None,
        stages="reward",
        effect=_SCORE,
        zh="自定义 reward 函数 `reward(sample) -> float | dict`，同步或异步均可：`包.模块.函数` 或 `文件.py:函数`。"
        "给出后，所有样本都由它打分，不再看 rm_type。默认：使用内置 reward。",
    )
    """Your function `reward(sample) -> float | dict`, sync or async: `package.module.function` or `file.py:function`.
    It scores every sample, whatever its rm_type. Default: the built-in rewards."""
    reward_max_concurrency: int = option(
        64, COUNT, effect=_SCORE, zh="一个进程里同时进行的 reward 调用最多多少个；整组打分算一个调用。"
    )
    """Most reward calls in flight in one process; the call for a whole group is one."""
    reward_num_workers: int = option(
        16, COUNT, unwired="warn", zh="执行同步 reward 函数的工作进程数；异步函数用不到它们。"
    )
    """Worker processes for plain reward functions; coroutines do without."""
    reward_key: str | None = option(
        None,
        stages="reward",
        effect=_SCORE,
        zh="reward 函数返回 dict 时，分数所在的 key。默认：函数直接返回分数。",
    )
    """Key of the score where the reward function returns a dict. Default: the function returns the score itself."""
    eval_reward_key: str | None = option(
        None, effect="relax_core/config/eval_sets.py", zh="同 --reward-key，但用于评估。默认：--reward-key。"
    )
    """The same for evaluation. Default: --reward-key."""
    group_rm: bool = option(
        False,
        stages="reward evaluate",
        effect=_SCORE,
        zh="整组打分：--custom-rm-path 的函数一次收到一个 group 的样本列表，按顺序返回同样多的结果；评估也一样。"
        "中断或失败的样本不在其中。内置 reward 仍逐个样本打分。",
    )
    """Score groups as a whole: the function of --custom-rm-path gets the list of a group's samples, without those that
    were aborted or failed, and returns one result for each; in evaluation too. Built-in rewards still score sample by
    sample."""
    rm_url: str | None = option(
        None,
        unwired="refuse",
        zh="打分服务的地址，--rm-type remote_rm 把 prompt、回答和 label 发到那里；"
        "用 --opd-type sglang 时是 teacher 服务的地址。默认：没有服务。",
    )
    """Address of the service that --rm-type remote_rm sends prompt, response and label to, or with --opd-type sglang
    of the teacher's server. Default: no service."""
    custom_reward_post_process_path: str | None = option(
        None,
        stages="advantage",
        effect="relax_core/rollout/hooks.py",
        zh="自定义函数 `process(args, samples) -> (raw, processed)`：指标用的分数与训练用的分数，每个样本各一个，"
        "None 表示不训练该样本。默认：按 group 归一化（见 --disable-rewards-normalization）。",
    )
    """Your function `process(args, samples) -> (raw, processed)`: the scores for metrics and those to train on, one for
    each sample; None: it is not trained on. Default: normalisation over each group (see
    --disable-rewards-normalization)."""
    custom_convert_samples_to_train_data_path: str | None = option(
        None,
        unwired="refuse",
        zh="自定义函数 `(args, samples) -> dict`，把样本变成训练数据的各列。默认：内置的转换。",
    )
    """Your function `(args, samples) -> dict` that turns samples into the columns to train on. Default: the built-in
    conversion."""
