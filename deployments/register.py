"""Register Relax on a Prefect server: work pool, deployments, automations. ``python -m deployments.register``

Guarantee: idempotent, and quick where nothing is to be done; what people changed on the server stays: schedules of a
deployment that exists, limits of the pool. The server is the one of ``PREFECT_API_URL``.
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

import flows.environment  # noqa: F401  # isort: skip  # what Prefect reads from the environment when it is imported
from prefect import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL

from data.errors import UserError
from deployments.automations import missing, register_automations
from relax_core import __version__

FILE = Path(__file__).with_name("prefect.yaml")
POOL = "relax"


def register(folder: str | None = None) -> list[str]:
    """Register what is missing or of another version.

    Args:
        folder: working folder of flow runs: relative paths in their parameters mean it. Default: the current one.

    Returns:
        What was made, a line each; empty: all was there.

    Raises:
        UserError: there is no server, or it refuses.
    """
    if not PREFECT_API_URL.value():
        raise UserError("No Prefect server is named.", "Start one with `relax up`, or set PREFECT_API_URL.")
    folder = os.path.abspath(folder or os.getcwd())
    declared = yaml.safe_load(FILE.read_text())
    version = _version(folder)
    done = []
    with get_client(sync_client=True) as client:
        try:
            client.read_work_pool(POOL)
        except ObjectNotFound:
            client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
            done.append(f"work pool {POOL}")
        existing = {}
        for one in declared["deployments"]:
            name = _name(one)
            try:
                existing[name] = client.read_deployment_by_name(name).version
            except ObjectNotFound:
                existing[name] = None
    stale = [one for one in declared["deployments"] if existing[_name(one)] != version]
    if stale:
        _deploy(declared, stale, {name for name, found in existing.items() if found is not None}, version, folder)
        done += [f"deployment {_name(one)}" for one in stale]
    return done + register_automations()


def _name(one: dict[str, Any]) -> str:
    """`train/default`; a flow has the name of its function."""
    return f"{one['entrypoint'].rpartition('.')[2]}/{one['name']}"


def _version(folder: str) -> str:
    """Another one wherever what is registered would be another: parameters follow the options of this version."""
    from relax_core.config import RelaxConfig
    from relax_core.replay.span import STAGES

    content = hashlib.sha256(FILE.read_bytes() + Path(__file__).read_bytes())
    content.update(f"{FILE} {STAGES}".encode())  # run files are named by their place
    content.update(repr(RelaxConfig.model_json_schema()).encode())
    for path in sorted((FILE.parents[1] / "flows" / "deployed").glob("*.py")):
        content.update(path.read_bytes())
    content.update(folder.encode())
    return f"{__version__}-{content.hexdigest()[:8]}"


def _deploy(
    declared: dict[str, Any], stale: list[dict[str, Any]], existing: set[str], version: str, folder: str
) -> None:
    """``prefect deploy --all`` of these deployments."""
    wanted = []
    for one in stale:
        kept = {key: value for key, value in one.items() if key != "schedules" or _name(one) not in existing}
        parameters = dict(kept.get("parameters") or {})
        if config_file := parameters.get("config_file"):  # one of this package, wherever flow runs are
            parameters["config_file"] = str(FILE.with_name(os.path.basename(config_file)))
        wanted.append({**kept, "version": version, "parameters": parameters})
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "prefect.yaml"
        path.write_text(yaml.safe_dump({**declared, "deployments": wanted}))
        command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", str(path)]
        environment = {
            **os.environ,
            "RELAX_WORK_DIR": folder,
            "PYTHONPATH": os.pathsep.join([str(FILE.parents[1]), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
        }
        result = subprocess.run(command, env=environment, cwd=temporary, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        tail = "\n".join((result.stdout + result.stderr).strip().splitlines()[-15:])
        raise UserError("Prefect did not take the deployments.", "It said:", tail)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m deployments.register", description=str(__doc__).splitlines()[0])
    parser.add_argument("--folder", help="working folder of flow runs (default: the current one)")
    try:
        done = register(parser.parse_args().folder)
    except UserError as error:
        print(f"relax: {error}", file=sys.stderr)
        return error.exit_code
    print("\n".join(f"registered {line}" for line in done) or "everything is registered already")
    print("\n".join(missing()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
