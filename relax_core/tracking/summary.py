"""What a run says at its end: where it is and how to look at it.

Guarantee: every command shown can be pasted into a shell as it stands (in the environment that ran it).
"""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import PurePath

SCORES_SQL = (
    "SELECT step, round(avg(reward), 3) AS reward, round(avg(response_length), 1) AS length, count(*) AS samples "
    "FROM '{run}/steps/*/rollout.parquet' JOIN '{run}/steps/*/reward.parquet' USING (sample_id) "
    "GROUP BY step ORDER BY step"
)


def closing_summary(
    run: str,
    *,
    steps: Sequence[str] = (),
    last_step: int | None = None,
    board: str | None = None,
    ui: str | None = None,
    resume: str | None = None,
) -> str:
    """The text.

    Args:
        run: the run's folder or URL.
        steps: lines about what happened.
        last_step: newest step with tables; without one there is nothing to look at yet.
        board: the folder of TensorBoard's events, if there is one.
        ui: address of the interface, or the command that starts it; by default where the flow's server is.
        resume: command that goes on; by default the one that this process was started with.
    """
    lines = ["", f"Run: {run}", *(f"  {line}" for line in steps)]
    if last_step is not None:
        program, scores = _program(sys.argv), SCORES_SQL.format(run=run.replace("'", "''"))
        lines += [
            "Look at it",
            f"  steps, best and worst:  {shlex.join([program, 'show', run])}",
            f"  newest step as a page:  {shlex.join([program, 'show', run, '--step', str(last_step), '--html'])}",
            f"  its files, by SQL:      {_duckdb(scores)}",
        ]
        lines += [f"  TensorBoard:            {shlex.join(['tensorboard', '--logdir', board])}"] if board else []
    lines += [
        f"UI:       {ui or _interface()}",
        f"Go on:    {resume or resume_command(run)}",
        "          (a larger --num-rollout adds steps)",
    ]
    return "\n".join(lines)


def _interface() -> str:
    """A standing server's address; a temporary one is gone when this is read."""
    server = os.environ.get("PREFECT_API_URL", "").removesuffix("/api")
    return server or "relax up   (starts it; runs under it are shown as they go)"


def _program(argv: Sequence[str]) -> str:
    """This program as it can be typed: its name where a shell finds it, else as it was started."""
    started = argv[0] if argv and PurePath(argv[0]).name == "relax" else "relax"
    return "relax" if shutil.which("relax") else started


def _duckdb(sql: str) -> str:
    """A command of this environment that shows a query's result."""
    return f"{shlex.quote(sys.executable)} -c {shlex.quote(f'import duckdb; print(duckdb.sql({sql!r}))')}"


def resume_command(run: str, argv: Sequence[str] | None = None) -> str:
    """The command line that goes on with a run: the present one, with ``--run-dir`` where it was left out."""
    arguments = list(sys.argv if argv is None else argv)
    if not arguments or PurePath(arguments[0]).name != "relax":
        return shlex.join(["relax", "train", "--config", f"{run}/config.yaml", "--run-dir", run])
    arguments[0] = _program(arguments)
    if not any(argument.split("=", 1)[0] == "--run-dir" for argument in arguments):
        arguments += ["--run-dir", run]
    return shlex.join(arguments)
