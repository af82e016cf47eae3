"""Options of the rollout: how many steps and samples, how they are sampled, and how weights get to the engines.

Guarantee: an option that would give other samples or weights and is not honoured is refused, except where it means
nothing without another refused option.
"""

from relax_core.config.declare import Section, option
from relax_core.config.ranges import COUNT, NOT_NEGATIVE, OFF_OR_COUNT, PROBABILITY, TOKEN_IDS, above, at_least
from relax_core.config.sizes import ByteSize

_SAMPLING = "relax_core/rollout/sampling.py"
_HOOKS = "relax_core/rollout/hooks.py"
_SELECTION = "relax_core/run/selection.py"


class RolloutSection(Section):
    """Rollout"""

    title_zh = "Rollout 配置"

    num_rollout: int | None = option(
        None,
        COUNT,
        stages="train_critic train",
        effect="relax_core/run/session.py",
        zh="rollout step 的总数；与 --num-epoch 同时给出时以它为准。默认：由 --num-epoch 得出。",
    )
    """Number of rollout steps. Wins over --num-epoch. Default: what --num-epoch gives."""

    num_epoch: int | None = option(
        None,
        COUNT,
        stages="train_critic train",
        effect="relax_core/run/session.py",
        zh="把 prompt 过几遍；没有 --num-rollout 时由它得出 step 数："
        "每遍取 prompt 数除以 --rollout-batch-size 的整数部分。默认：不设，由 --num-rollout 决定。",
    )
    """Number of passes over the prompts; gives the number of steps when --num-rollout is not set: for each pass the
    whole steps of --rollout-batch-size that the prompts fill. Default: not set, --num-rollout decides."""

    rollout_batch_size: int | None = option(
        None,
        COUNT,
        stages="generate",
        effect="relax_core/rollout/requests.py",
        zh="每个 rollout step 用多少个 prompt（必填）。",
    )
    """Prompts a step (required)."""

    n_samples_per_prompt: int = option(
        1,
        COUNT,
        stages="generate",
        effect="relax_core/rollout/requests.py",
        zh="一个 prompt 生成几个回答，即一个 group 的大小。",
    )
    """Responses a prompt: the size of a group."""

    # the trainer divides its logits by it, so that 0 (greedy) is for evaluation only
    rollout_temperature: float = option(
        1.0,
        above(0),
        stages="generate forward train",
        effect=_SAMPLING,
        zh="采样温度；训练端的 log-prob 同样除以它。",
    )
    """Sampling temperature; the trainer's log-probs are scaled by it too."""

    rollout_top_p: float = option(
        1.0, PROBABILITY, stages="generate", effect=_SAMPLING, zh="nucleus 采样的累积概率；1 表示关闭。"
    )
    """Nucleus sampling: the probability mass that tokens are drawn from; 1 is off."""

    rollout_top_k: int = option(
        -1, OFF_OR_COUNT, stages="generate", effect=_SAMPLING, zh="只在概率最高的 k 个 token 中采样；-1 表示关闭。"
    )
    """Top-k sampling; -1 is off."""

    rollout_max_response_len: int | None = option(
        None,
        COUNT,
        stages="generate",
        effect=_SAMPLING,
        zh="一个回答最多多少 token（必填，除非 --rollout-max-context-len 已经限制了它）。",
    )
    """Most tokens of a response (required unless --rollout-max-context-len bounds it)."""

    rollout_max_prompt_len: int | None = option(
        None,
        COUNT,
        stages="generate",
        effect="relax_core/run/prompts.py",
        zh="token 数更多的 prompt 会被略去并计数。默认：上下文长度减一。",
    )
    """Prompts with more tokens are left out, and counted. Default: the context less one."""

    rollout_max_context_len: int | None = option(
        None,
        at_least(2),
        stages="generate",
        effect="tasks/generate.py",
        zh="prompt 与回答合计最多多少 token。默认：模型 config.json 给出的长度。",
    )
    """Most tokens of prompt and response together. Default: what the model's config.json says."""

    rollout_stop: list[str] | None = option(
        None, stages="generate", effect=_SAMPLING, zh="遇到其中任一字符串就停止生成。默认：没有。"
    )
    """Texts that end a response. Default: none."""

    rollout_stop_token_ids: list[int] | None = option(
        None,
        TOKEN_IDS,
        stages="generate",
        effect=_SAMPLING,
        zh="遇到其中任一 token id 就停止生成。默认：没有。",
    )
    """Token ids that end a response. Default: none."""

    rollout_skip_special_tokens: bool = option(
        False, stages="generate evaluate", effect=_SAMPLING, zh="回答的文本里不含特殊 token。"
    )
    """Leave special tokens out of the response text."""

    over_sampling_batch_size: int | None = option(
        None,
        COUNT,
        stages="generate",
        effect=_SELECTION,
        zh="一次提交多少个 prompt；最先完成并通过过滤的组成一个 step，其余留给下一个 step。"
        "至少为 --rollout-batch-size，也以它为默认。",
    )
    """Prompts submitted at a time; the first that finish and pass the filter make the step, and the others are kept for
    the next one. At least --rollout-batch-size. Default: --rollout-batch-size."""

    dynamic_sampling_filter_path: str | None = option(
        None,
        stages="generate",
        effect="relax_core/rollout/filters.py",
        zh="函数 `filter(args, group)` 的路径，由一个 group 的样本及其分数决定它是否参与训练；"
        "返回真假，或（真假, 原因）；不用的由新的 prompt 补上（如 DAPO）。"
        "自带 `relax_core.rollout.filters.check_reward_nonzero_std`。默认：都用。",
    )
    """Your function `filter(args, group)`: it says of the samples of a prompt, which have their scores, whether they
    are trained on, as a boolean or (boolean, reason); others are replaced by further prompts (as in DAPO). Built in:
    `relax_core.rollout.filters.check_reward_nonzero_std`. Default: all are."""

    buffer_filter_path: str | None = option(
        None,
        stages="generate",
        effect="relax_core/rollout/filters.py",
        zh="函数 `choose(args, rollout_id, buffer, num_samples)` 的路径，从留下的 group 里挑选接下来使用的。"
        "默认：先进先出。",
    )
    """Your function `choose(args, rollout_id, buffer, num_samples)`: it returns which of the groups that were kept go
    on next. Default: the oldest."""

    partial_rollout: bool = option(
        False,
        stages="generate",
        effect=_SELECTION,
        zh="一个 step 凑够之后中断其余未完成的回答，并在之后的 step 里接着生成；不开则丢弃其 token，prompt 重新生成。",
    )
    """Responses that are unfinished when a step has enough are stopped, and continued in a later step. Without it their
    tokens are given up, and their prompts come again."""

    partial_rollout_max_aborted_count: int | None = option(
        None,
        NOT_NEGATIVE,
        stages="generate",
        effect=_SELECTION,
        zh="一个回答最多被中断几次，之后必定让它生成完。默认：不限。需要 --partial-rollout。",
    )
    """How often a response may be stopped; after that it is left to finish. Default: any number of times. Needs
    --partial-rollout."""

    mask_offpolicy_in_partial_rollout: bool = option(
        False,
        stages="generate",
        effect=_SELECTION,
        zh="从之前的 step 留下来的回答里，只有当前 step 产生的 token 计入 loss。需要 --partial-rollout。",
    )
    """Of a response that an earlier step began, only the tokens of the current step count in the loss. Needs
    --partial-rollout."""

    update_weight_buffer_size: ByteSize = option(
        512 * 1024 * 1024,
        COUNT,
        effect="relax_core/training/push.py",
        zh="权重分批送往引擎时一批的字节数；在 GPU 上同时有两批。",
    )
    """Bytes of a bucket in which weights go to the engines; on a GPU there are two at a time."""

    update_weights_interval: int = option(
        1, COUNT, effect="relax_core/run/session.py", zh="每隔多少个 step 把权重送往引擎；1 表示每步。"
    )
    """Steps between two updates of the engines' weights; 1: after every step."""

    keep_old_actor: bool = option(False, unwired="warn", zh="保留生成这批数据的那份权重，旧策略的 log-prob 由它计算。")
    """Keep the weights that generated the data, and compute the old policy's log-probs with them."""

    rollout_external: bool = option(
        False, unwired="refuse", zh="使用已在运行的 SGLang 服务，不自己启动引擎。需要 --rollout-external-engine-addrs。"
    )
    """Use SGLang servers that run already and start none. Needs --rollout-external-engine-addrs."""

    rollout_external_engine_addrs: list[str] | None = option(
        None,
        unwired="warn",
        zh="这些服务的地址，每个写作 `host:port`，顺序即引擎编号。需要 --rollout-external。默认：没有。",
    )
    """Addresses of these servers, each `host:port`, in the order of the engines. Needs --rollout-external. Default:
    none."""

    rollout_function_path: str = option(
        "relax.engine.rollout.sglang_rollout.generate_rollout",
        effect="relax_core/rollout/generate.py",
        honours=("relax.engine.rollout.sglang_rollout.generate_rollout",),
        zh="生成一个 step 全部样本的函数的点分路径。默认值代表 Relax 自带的生成过程。",
    )
    """Dotted path of the function that generates all samples of a step. The default stands for Relax's own."""

    custom_generate_function_path: str | None = option(
        None,
        stages="generate",
        effect="tasks/generate.py",
        zh="自定义异步函数 `generate(args, sample, sampling_params) -> sample`，由它生成一个样本，"
        "例如多轮对话或工具调用；用 `relax_core.rollout.custom.engine()` 访问引擎。"
        "评估也用它，除非评估集另有指定。默认：每个样本请求引擎一次。",
    )
    """Your function `async generate(args, sample, sampling_params) -> sample`, as `package.module.function` or
    `file.py:function`: it makes one sample, with several turns or tools for example, and reaches the engines through
    `relax_core.rollout.custom.engine()`. Evaluation uses it too unless a set names its own. Default: one request to an
    engine for each sample."""

    rollout_data_postprocess_path: str | None = option(
        None,
        stages="advantage",
        effect=_HOOKS,
        zh="自定义函数 `postprocess(args, samples)`：一个 step 的样本已有分数和引擎的 log-prob、尚未计算 advantage 时，"
        "就地修改它们的 loss_mask 和 remove_sample。默认：不修改。",
    )
    """Your function `postprocess(args, samples)`: it gets the samples of a step with their scores and the engine's
    log-probs, before advantages, and changes their loss_mask and remove_sample in place. Default: nothing changes."""

    custom_rollout_log_function_path: str | None = option(
        None,
        effect=_HOOKS,
        zh="自定义函数 `log(rollout_id, args, samples, extra, time)`，每个 step 提交时调用；写入 `extra` 的数一并记录，"
        "返回真值则不再记录 rollout 的默认指标。默认：只有默认指标。",
    )
    """Your function `log(rollout_id, args, samples, extra, time)`, called when a step is committed: numbers that it
    puts into `extra` are logged too, and a true result leaves out the usual metrics of the rollout. Default: these
    alone."""

    custom_eval_rollout_log_function_path: str | None = option(
        None,
        effect=_HOOKS,
        zh="自定义函数 `log(rollout_id, args, data, extra)`，每次评估之后调用；"
        "`data` 由评估集名称对应到 rewards、truncated 和 samples；写入 `extra` 的数一并记录，"
        "返回真值则不再记录评估的默认指标。默认：只有默认指标。",
    )
    """Your function `log(rollout_id, args, data, extra)`, called after an evaluation; `data` has rewards, truncated and
    samples for the name of each set. Numbers that it puts into `extra` are logged too, and a true result leaves out the
    usual metrics of evaluation. Default: these alone."""
