"""Options of logging and monitoring.

Guarantee: none of them changes what is generated or trained. Importing this module needs pydantic only.
"""

from relax_core.config.declare import Section, option


class TrackingSection(Section):
    """Logging and monitoring"""

    title_zh = "日志与监控配置"

    use_tensorboard: bool = option(
        False,
        effect="relax_core/tracking/tensorboard.py",
        zh="把每步的指标写成 TensorBoard 事件。需要 tensorboard 包（`relax-rl[tensorboard]`）。",
    )
    """Write the metrics of each step for TensorBoard. Needs the package tensorboard (`relax-rl[tensorboard]`)."""
    tb_project_name: str | None = option(
        None,
        effect="relax_core/tracking/tensorboard.py",
        zh="TensorBoard 事件写入的目录。需要 --use-tensorboard。默认：环境变量 TENSORBOARD_DIR 的值。",
    )
    """Folder of TensorBoard's files. Needs --use-tensorboard. Default: the environment variable TENSORBOARD_DIR."""
    tb_experiment_name: str | None = option(
        None,
        effect="relax_core/tracking/tensorboard.py",
        zh="这次运行在 TensorBoard 中的名称，即上述目录里的子目录。需要 --use-tensorboard。"
        "默认：由运行目录得出的名称。",
    )
    """Name of this run in TensorBoard: a folder in that one. Needs --use-tensorboard. Default: a name made of the run
    directory's."""
    use_clearml: bool = option(False, unwired="warn", zh="把指标发送到 ClearML。")
    """Send the metrics to ClearML."""
    use_metrics_service: bool = option(
        False, unwired="warn", zh="启动一个指标服务：各进程把指标交给它，由它按 step 汇总后转给各后端。"
    )
    """Start a service that gathers the metrics of all processes, step by step, and hands them on."""
    timeline_dump_dir: str | None = option(
        None,
        effect="relax_core/tracking/timeline.py",
        zh="时间线的输出目录或 fsspec URL：每步一个 Chrome Trace 文件 `timeline_step_<step>.json`，每个阶段一个事件。"
        "默认：不记录时间线。",
    )
    """Folder or fsspec URL of timelines: one file `timeline_step_<step>.json` a step in Chrome's trace format, with one
    event a stage. Default: no timeline."""
    log_passrate: bool = option(
        False, effect="relax_core/tracking/metrics.py", zh="记录训练样本的 pass@k。评估集的 pass@k 总会记录。"
    )
    """Report pass@k of the training samples. That of evaluation sets is always reported."""
    log_multi_turn: bool = option(
        False,
        effect="relax_core/tracking/metrics.py",
        zh="记录多轮 rollout 的统计：轮数（num_turn）、每轮长度（turn_len）、不含环境返回内容的回答长度。"
        "loss mask 为 1 的一段算一轮；metadata 里有 round_number 时以它为轮数。",
    )
    """Report statistics of rollouts with several turns: number of turns, length of a turn, length of a response without
    what its environment said. A turn is a stretch that the loss mask takes; `round_number` in the metadata counts
    them where it is given."""
    log_reward_category: str | None = option(
        None,
        effect="relax_core/tracking/metrics.py",
        zh="reward 返回 dict 时，按其中这个 key 的取值统计各占多少，记为 error_cat/<取值>。默认：不统计。",
    )
    """Key in the dict of a reward whose values (numbers or texts) are counted, each as a share of the samples:
    error_cat/<value>. Default: none."""
    notify_urls: str | None = option(
        None,
        effect="relax_core/tracking/notify.py",
        zh="出错、重启和完成时通知谁：Apprise 格式的地址，用逗号分开。默认：不通知。",
    )
    """Who is told of errors, restarts and the end: addresses in the format of Apprise, with commas between them.
    Default: nobody."""
