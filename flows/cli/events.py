"""``relax events``: the timeline of a run.

Guarantee: it only reads; a run directory without a timeline, or an unknown kind, is an error that says what there is.
"""

import argparse
import sys

from data.errors import UserError
from data.jsontext import dumps
from data.store import RunStore
from relax_core.tracking.events import FILE, FOLDER, KINDS, event_text, read_events


def events(parser: argparse.ArgumentParser, arguments: list[str]) -> int:
    """Print the events of a run, oldest first."""
    kinds = "\n".join(f"  {kind:18}  {text}" for kind, text in KINDS.items())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"kinds:\n{kinds}"
    parser.add_argument("run", metavar="RUN", help="run directory, a folder or an fsspec URL")
    parser.add_argument("--step", type=int, metavar="N", help="only the events of this step")
    parser.add_argument("--kind", metavar="K", help="only the events of this kind")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    chosen = parser.parse_args(arguments)
    if chosen.kind is not None and chosen.kind not in KINDS:
        raise UserError(f"--kind {chosen.kind}: there is no such kind of event.", f"Kinds: {', '.join(KINDS)}.")
    store = RunStore(chosen.run)
    if not store.exists(FILE) and not store.exists(FOLDER):
        raise UserError(
            f"{chosen.run} has no {FILE}.",
            "Name the --run-dir of a run." if not store.exists("config.yaml") else "It gets one with its next start.",
        )
    found = read_events(store, chosen.step, chosen.kind)
    if not found:
        print("no such events", file=sys.stderr)
    for event in found:
        print(dumps(event) if chosen.json else event_text(event))
    sys.stdout.flush()
    return 0
