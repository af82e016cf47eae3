"""Options of the reward.

Guarantee: an option here either decides a score or is refused while nothing honours it; those that only say how
many calls run at once change no score. Importing this module needs pydantic only.
"""

from typing import Any, Literal

from relax_core.config.declare import Section, option
from relax_core.config.ranges import COUNT, above

_CHOICE = "relax_core/rewards/choice.py"
_BATCH = "relax_core/algorithms/batch.py"


class RewardSection(Section):
    """Reward"""

    title_zh = "Reward 配置"

    rm_type: str | None = option(
        None,
        stages="reward",
        effect=_CHOICE,
        zh="内置 reward 的名称；样本 metadata 里的 rm_type 优先。名称有 deepscaler、dapo、math、f1、gpqa、ifbench、"
        "multiple_choice、openr1mm、geo3k、mopd、random、dummy、remote_rm、dapo-genrm、judge，以及 exact_number、"
        "gsm8k、gsm8k_flexible、mix；当前版本没有的名称会报错并列出已有的。"
        "必填，除非给出 --custom-rm-path、--rm-type-infer、--rm-type-fallback 或 --use-opd。",
    )
    """Built-in reward; a sample's metadata.rm_type wins. The names are deepscaler, dapo, math, f1, gpqa, ifbench,
    multiple_choice, openr1mm, geo3k, mopd, random, dummy, remote_rm, dapo-genrm and judge, and exact_number, gsm8k,
    gsm8k_flexible and mix; one that this version lacks is an error that lists those it has (required without
    --custom-rm-path, --rm-type-infer, --rm-type-fallback and --use-opd)."""
    rm_type_fallback: str | None = option(
        None,
        stages="reward",
        effect=_CHOICE,
        zh="样本没有 reward 类型、或类型无人认识时怎么办：zero 计 0 分并给出警告，内置名称则改用那个。默认：报错。",
    )
    """What scores a sample whose reward is missing or unknown: zero (0 and a warning) or the name of a built-in reward.
    Default: it is an error."""
    rm_type_infer: bool = option(
        False,
        stages="reward",
        effect=_CHOICE,
        zh="没有指定类型的样本，从 label 的样式判断用哪个 reward；已指定类型而判断不同的，只警告，不改变。",
    )
    """Tell a sample's reward from the look of its label where no type is given; where one is given and differs, only
    warn."""
    custom_rm_path: str | None = option(
        None,
        stages="reward",
        effect=_CHOICE,
        zh="自定义 reward 函数 `reward(sample) -> float | dict`，同步或异步均可：`包.模块.函数` 或 `文件.py:函数`。"
        "给出后，所有样本都由它打分，不再看 rm_type。默认：使用内置 reward。",
    )
    """Your function `reward(sample) -> float | dict`, sync or async: `package.module.function` or `file.py:function`.
    It scores every sample, whatever its rm_type. Default: the built-in rewards."""
    custom_rm_signature: Literal["auto", "relax", "slime", "verl", "trl", "verifiers"] = option(
        "auto",
        stages="reward evaluate",
        effect=_CHOICE,
        zh="--custom-rm-path 的函数按哪个系统的约定调用：relax 为 `reward(sample)`，slime 为 `(args, sample)`，verl 为 "
        "`(data_source, solution_str, ground_truth, extra_info)`，trl 为 `(completions, **columns)`，"
        "verifiers 按参数名给出；auto 从参数名判断。",
    )
    """By whose convention the function of --custom-rm-path is called: relax `reward(sample)`, slime `(args, sample)`,
    verl `(data_source, solution_str, ground_truth, extra_info)`, trl `(completions, **columns)`, verifiers by the names
    of its arguments; auto tells from those names."""
    reward_max_concurrency: int = option(
        64,
        COUNT,
        effect=_CHOICE,
        zh="一个进程里同时进行的 reward 调用最多多少个；整组打分算一个调用。用 --opd-type sglang 时，发给 teacher "
        "服务的请求也以此为限。",
    )
    """Most reward calls in flight in one process; the call for a whole group is one. With --opd-type sglang it bounds
    the requests to the teacher's server too."""
    reward_num_workers: int = option(
        16,
        COUNT,
        effect="relax_core/rewards/pools.py",
        zh="所有机器合计最多多少个进程同时执行你的同步 reward 函数和可能卡住的内置 reward；需要时才启动，卡住的不计入。"
        "你的异步函数共用一个进程（生成还在进行时可为几个），一共同时进行 --reward-max-concurrency 个调用。",
    )
    """Most processes that run plain functions of yours, and built-in rewards that may hang, at once, on all machines
    together; they start when they are needed, and one that hangs does not count. Coroutines of yours share one process,
    a few while others are still generated, with --reward-max-concurrency calls at once in all."""
    reward_timeout: float = option(
        60.0,
        above(0),
        stages="reward evaluate",
        effect=_CHOICE,
        zh="一次 reward 调用最多多少秒；超时的样本没有分数（outcome 为 failed），进程被结束，其余样本照常打分。"
        "内置的数学比较另有更短的限制，超时记 0 分。",
    )
    """Seconds that a reward call may take; a sample whose call takes longer has no score (outcome failed), its process
    is ended, and the others go on. Built-in comparisons of mathematics have a shorter limit of their own, and score
    0."""
    reward_error_policy: Literal["fail", "zero", "no_score"] = option(
        "fail",
        stages="reward evaluate",
        effect=_CHOICE,
        zh="reward 函数抛出异常、返回了不合要求的值时：fail 停止这一步并指出函数与样本，zero 记 0 分，"
        "no_score 没有分数。超时与崩溃从不停止：zero 时记 0 分，否则没有分数。",
    )
    """What happens where a reward function raises or returns what is no reward: fail stops the step with function and
    sample, zero scores 0, no_score gives none. A call that hangs or crashes never stops: 0 with zero, else no score."""
    no_score_policy: Literal["exclude", "zero"] = option(
        "exclude",
        stages="advantage",
        effect=_BATCH,
        zh="没有分数的样本怎样训练：exclude 不训练、也不计入其 group 的统计，zero 当作 0 分。",
    )
    """How a sample without a score is trained on: exclude leaves it out, also of its group's statistics; zero takes it
    for a score of 0."""
    truncated_reward_policy: Literal["score", "zero", "exclude"] = option(
        "score",
        stages="advantage",
        effect=_BATCH,
        zh="因长度上限而截断的样本怎样训练：score 用其分数，zero 当作 0 分，exclude 同没有分数的样本。",
    )
    """How a response that was cut off at the length limit is trained on: score takes its score, zero a score of 0,
    exclude treats it as one without a score."""
    code_sandbox: Literal["full", "limits"] = option(
        "full",
        stages="reward evaluate",
        effect=_CHOICE,
        zh="--rm-type code 怎样运行回答里的程序：full 用独立的网络、进程、文件命名空间，系统不允许时报错；"
        "limits 只限制时间、内存、进程数等，程序能够访问网络和文件，只用于可信的环境。",
    )
    """How --rm-type code runs the program of a response: full in namespaces of its own, without network, other
    processes and files, and an error where the kernel gives none; limits bounds only time, memory, processes and the
    like, and leaves it network and files: for a machine that is a sandbox already."""
    reward_key: str | None = option(
        None,
        stages="reward",
        effect=_CHOICE,
        zh="reward 函数返回 dict 时，分数所在的 key。默认：函数直接返回分数。",
    )
    """Key of the score where the reward function returns a dict. Default: the function returns the score itself."""
    reward_mix: dict[str, Any] | None = option(
        None,
        stages="reward evaluate",
        effect=_CHOICE,
        zh="--rm-type mix 是哪些分数的加权和，JSON：名称对应权重，或 weight 与该项的参数。名称为内置 reward，或调整项 "
        "format、overlong（max、buffer）、length（target、width）、repetition（n、max）、language（language），"
        '例如 `{"math": 1, "format": 0.1, "overlong": {"max": 20480, "buffer": 4096}}`。'
        "样本 metadata 里的 reward_mix 优先。各项的值也保存为列；某项没有分数时，整个和也没有分数。",
    )
    """What --rm-type mix is the weighted sum of, as JSON: a name and its weight, or a dict of weight and the part's
    settings. Names are built-in rewards and the shaping terms format, overlong (max, buffer), length (target, width),
    repetition (n, max) and language (language), as in
    `{"math": 1, "format": 0.1, "overlong": {"max": 20480, "buffer": 4096}}`. A row's metadata.reward_mix wins. Each
    part's value is stored too; a part without a score makes the sum no score."""
    eval_reward_key: str | None = option(
        None, effect="relax_core/config/eval_sets.py", zh="同 --reward-key，但用于评估。默认：--reward-key。"
    )
    """The same for evaluation. Default: --reward-key."""
    group_rm: bool = option(
        False,
        stages="reward evaluate",
        effect=_CHOICE,
        zh="整组打分：--custom-rm-path 的函数一次收到一个 group 的样本列表，按顺序返回同样多的结果；评估也一样。"
        "中断或失败的样本不在其中。内置 reward 仍逐个样本打分。",
    )
    """Score groups as a whole: the function of --custom-rm-path gets the list of a group's samples, without those that
    were aborted or failed, and returns one result for each; in evaluation too. Built-in rewards still score sample by
    sample."""
    rm_url: str | None = option(
        None,
        stages="reward forward evaluate",
        effect="relax_core/run/forward.py",
        zh="打分服务的地址，--rm-type remote_rm 把 prompt、回答和 label 发到那里，最多试 10 次，"
        "不受 --reward-timeout 限制；"
        "用 --opd-type sglang 时是 teacher 的 SGLang 服务的地址，末尾可带 /generate。默认：没有服务。",
    )
    """Address of the service that --rm-type remote_rm sends prompt, response and label to, ten times at most, whatever
    --reward-timeout is; or with --opd-type sglang of the teacher's SGLang server, with or without /generate at its end.
    Default: no service."""
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
