"""Options of a run as a whole: where it lives, what it runs on, how strict it is. They are Relax's own.

Guarantee: no stage's output depends on them, so that a run may go on under other values; --custom-args alone decide
what functions of the user do.
"""

from typing import Any

from relax_core.config.declare import Section, option
from relax_core.config.ranges import above


class RunSection(Section):
    """Run"""

    title_zh = "运行"

    run_dir: str | None = option(
        None,
        effect="relax_core/run/session.py",
        zh="运行目录：本地文件夹或任意 fsspec URL。再次给出同一目录即接着跑。默认：`runs/<时间>`。",
    )
    """Where the run lives: a folder or any fsspec URL. The same again goes on with the run. Default: `runs/<time>`."""

    ray_address: str | None = option(
        None,
        effect="relax_core/cluster/backend.py",
        zh="要连接的 Ray head（`host:port` 或 `auto`）。默认：`relax up` 启动的那个；没有时为本次运行单独启动一个。",
    )
    """Ray head to use (`host:port`, or `auto`). Default: the one that `relax up` started, else one for this run."""

    engine_start_timeout: float = option(
        600.0, above(0), effect="relax_core/engines/spec.py", zh="引擎或训练器启动最多允许的秒数。"
    )
    """Seconds that the start of an engine or of the trainer may take."""

    debug: bool = option(False, effect="flows/cli/main.py", zh="出错时显示完整的 traceback。")
    """Show the traceback of an error."""

    env_file: str | None = option(
        None,
        effect="relax_core/cluster/backend.py",
        zh="YAML 文件；其中 `env_vars:` 下的变量会设置到每个 Ray actor 的环境里。默认：存在时用 `configs/env.yaml`。",
    )
    """YAML file whose `env_vars:` are set in the environment of every Ray actor. Default: `configs/env.yaml` where it
    exists."""

    custom_args: dict[str, Any] = option(
        {},
        stages="generate advantage train evaluate",
        effect="relax_core/config/options.py",
        zh="传给用户自定义函数的任意值（JSON 对象）：它们是这些函数的 `args` 的属性；Relax 自身不使用。",
    )
    """Free values for your own functions (JSON): attributes of the `args` that they get; Relax itself uses none of
    them."""

    takeover: bool = option(
        False,
        effect="relax_core/run/session.py",
        zh="该运行目录正由另一个活着的进程驱动时，把它接管过来：本机的先结束掉，其他机器的会在下一个阶段被拒绝。",
    )
    """Take a run from a living driver: one of this machine is ended first, one of another is refused at its next
    stage."""

    allow_unwired: bool = option(
        False,
        effect="relax_core/config/wired.py",
        zh="即使设置了本版本尚未实现的选项也继续运行：原本的拒绝改为警告。",
    )
    """Go on although options are set that this version does not honour: what would be refused is only warned about."""
