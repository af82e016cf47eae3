"""The deployment `replay/step`: ``relax replay`` as a flow run.

Guarantee: it does what ``relax_core.replay.replay.Replay`` does, a task for each stage; the run directory is only read.
What differs ends the flow run as the state `Different`, which is no failure.
"""

from typing import Any

import flows.environment  # noqa: F401  # isort: skip  # what Prefect reads from the environment when it is imported
from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.states import Completed, State

from flows.deployed.own import introduce
from flows.replay import replay_stages
from relax_core.replay.replay import Replay
from relax_core.replay.span import Stage
from relax_core.replay.text import replay_lines
from relax_core.run.session import run_id
from relax_core.tracking.report import fenced


@flow(name="replay")
def replay(
    run_dir: str,
    step: int,
    first: Stage = "reward",
    last: Stage | None = None,
    options: dict[str, Any] | None = None,
    out: str = "",
    model: str = "",
) -> State:
    """Compute a recorded step again, also with other options, and name what differs.

    Args:
        run_dir: the run directory, a folder or URL that the worker can reach.
        step: rollout step, from 0.
        first: the first stage that is computed again.
        last: the last one; default: advantage, or the first stage if that is later.
        options: options that count otherwise than in the run, such as {"disable_grpo_std_normalization": true}.
        out: folder or URL for the new tables and replay.json.
        model: the model's folder, where it is not where the run had it.
    """
    introduce(f"replay/{run_id(run_dir)}/step-{step:06d}", run_id(run_dir))
    changes = [f"{name}={_text(value)}" for name, value in (options or {}).items()]
    with Replay(
        run_dir, step, first=first, last=last, changes=changes, out=out or None, model=model or None
    ) as replayed:
        report = replay_stages(replayed)
    text = fenced("\n".join(replay_lines(report)))
    create_markdown_artifact(text, key="replay", description=f"{run_dir}, step {step}")
    found = report.to_json()
    if report.equal:
        return Completed(message="equal", data=found)
    return Completed(name="Different", message="something differs: see the artefact", data=found)


def _text(value: Any) -> str:
    """As it is written behind ``--set``."""
    from data.jsontext import dumps

    return value if isinstance(value, str) else dumps(value)
