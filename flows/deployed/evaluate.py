"""The deployment `evaluate/newest`: the newest checkpoint of a run on evaluation sets, as often as a schedule says.

Guarantee: a run that is being trained is not touched; weights that were evaluated already with the same sets and
options are not evaluated again, and neither is a run that has no checkpoint yet: both are told, as the state `Skipped`.
"""

from typing import Any

import flows.environment  # noqa: F401  # isort: skip  # what Prefect reads from the environment when it is imported
from prefect import flow
from prefect.artifacts import create_table_artifact
from prefect.states import Completed, State

from data.errors import UserError
from flows.deployed.form import SubmittedConfig, given_options
from flows.deployed.late import skip_the_same
from flows.deployed.own import introduce
from relax_core.config.examine import accept, examine_given
from relax_core.config.submitted import given_parameters, run_file_of
from relax_core.run.session import run_id
from tasks.keys import artefact_key


@flow(name="evaluate")
def evaluate(*, run_dir: str, again: bool = False, config: SubmittedConfig) -> State:
    """Score the newest checkpoint of a run on its evaluation sets.

    Args:
        run_dir: the run directory, a folder or URL that the worker can reach.
        again: also where these weights were evaluated with the same sets and options before.
        config: options that count otherwise than in the run, by section: other evaluation sets, for example.
    """
    name = run_id(run_dir)
    introduce(f"evaluate/{name}", name)
    skip_the_same()
    run_file = run_file_of(run_dir)
    if run_file is None:
        return Completed(name="Skipped", message=f"There is no run in {run_dir} yet.", data={"skipped": True})
    given = given_parameters(_options(config, run_dir), run_file)
    accept(examine_given(given, "evaluate"))
    from flows.evaluate import evaluate_newest  # here: it takes seconds that a mistake in the options does not need

    result = evaluate_newest(given.config, again)
    if result["skipped"]:
        return Completed(name="Skipped", message=result["reason"], data=result)
    rows = [{"metric": metric, "value": value} for metric, value in sorted(result["metrics"].items())]
    create_table_artifact(
        rows, key=artefact_key(name, "evaluation"), description=f"{run_dir} after {result['version']} steps"
    )
    return Completed(message=f"weights after {result['version']} steps", data=result)


def _options(config: SubmittedConfig, run_dir: str) -> dict[str, Any]:
    options: dict[str, Any] = given_options(config)
    named = options.get("run", {}).get("run_dir")
    if named not in (None, run_dir):
        raise UserError(f"run_dir is {run_dir}, and run.run_dir of config is {named}.", "Leave one of them out.")
    options["run"] = {**options.get("run", {}), "run_dir": run_dir}
    return options
