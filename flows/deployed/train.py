"""The deployment `train/default`: ``relax train`` as a flow run of a worker.

Guarantee: the parameters are checked as the command line is, before anything starts; the same run directory goes on
with its run, also when the same flow run is tried again; a second flow run of a directory waits for the first.
"""

from typing import Any

import flows.environment  # noqa: F401  # isort: skip  # what Prefect reads from the environment when it is imported
from prefect import flow
from prefect.runtime import flow_run

from flows.deployed.form import SubmittedConfig, given_options
from flows.deployed.output import unbroken_output
from flows.deployed.own import introduce, say
from flows.deployed.restarted import count_crashes, going_on_later
from flows.deployed.turn import in_turn
from flows.train import drive, train_with
from relax_core.config import RelaxConfig
from relax_core.config.examine import accept, examine_given
from relax_core.config.submitted import given_parameters
from relax_core.run.session import run_id


@flow(name="train", validate_parameters=True)
def train(*, config_file: str = "", config: SubmittedConfig) -> dict[str, Any]:
    """Train a policy; the same run directory again goes on where it stopped.

    Args:
        config_file: a run file (YAML): a file or URL that the worker can read, such as a run's own config.yaml.
        config: the options of the run, by section. They win over those of the run file.
    """
    given = given_parameters(given_options(config), config_file)
    accept(examine_given(given))
    if given.config.run.run_dir is None:
        given.config.run.run_dir = _own_folder()
    count_crashes(given.config)
    with unbroken_output(), going_on_later():
        return in_turn(lambda: train_with(given.config, given.sources, None, _drive))


def _drive(config: RelaxConfig, sources: Any) -> dict[str, Any]:
    name = run_id(str(config.run.run_dir))
    introduce(name, name)
    say("Running")
    return drive(config, sources)


def _own_folder() -> str:
    """Where a flow run that names no run directory puts its run: the same when it is tried again."""
    return f"runs/flow-run-{str(flow_run.id)[:8]}"
