"""``relax show``: a run's steps and rollouts on the terminal, and as one HTML page.

Guarantee: the run is only read, also while it goes on, and neither torch, Ray nor Prefect is imported.
"""

import argparse
import sys
from typing import Any

from data.errors import UserError
from data.jsontext import dumps

EPILOG = """\
Without --step: the steps of the run, and the best and worst samples of the newest one. --html writes one file that any
browser opens, also without a network: every token coloured by log-prob gap, advantage, loss mask, weight version or
probability.

  relax show runs/quickstart
  relax show runs/quickstart --step 3 --sort length --reverse
  relax show runs/quickstart --step 3 --sample 000003-0002-000
  relax show runs/quickstart --step 3 --html
  relax show runs/quickstart --json | jq .reward"""

LAST = 20
"""Steps in the table."""

EACH = 3
"""Samples of either end."""


def show(parser: argparse.ArgumentParser, arguments: list[str]) -> int:
    """Show steps and samples."""
    from relax_core.show.samples import KEYS

    parser.epilog, parser.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    parser.add_argument("run", metavar="RUN", help="run directory, a folder or an fsspec URL")
    parser.add_argument("--step", type=int, metavar="N", help="rollout step (default: that of the id, or the newest)")
    parser.add_argument("--eval", metavar="SET", help="results of this evaluation set in place of the rollout")
    parser.add_argument("--sort", choices=KEYS, default="reward", help="what is best (default: reward)")
    parser.add_argument("--reverse", action="store_true", help="the lower end first")
    parser.add_argument("--limit", type=int, metavar="N", help="samples of either end (3), of a page (128), of --json")
    parser.add_argument("--sample", metavar="ID", help="this sample alone, whole")
    parser.add_argument("--group", metavar="ID", help="the samples of this group")
    parser.add_argument("--prompt", metavar="TEXT", help="samples whose prompt has this text")
    parser.add_argument("--html", nargs="?", const="", metavar="FILE", help="write a page (default: RUN-step-N.html)")
    parser.add_argument("--replayed", metavar="DIR", help="folder of `relax replay --out` with log-probs of the step")
    parser.add_argument("--model", metavar="DIR", help="the model's folder, where it is not where the run had it")
    parser.add_argument("--json", action="store_true", help="one JSON object a line: steps, or samples with --step")
    chosen = parser.parse_args(arguments)
    if chosen.limit is not None and chosen.limit < 1:
        raise UserError(f"--limit {chosen.limit}: must be 1 or more.")
    if chosen.json and chosen.html is not None:
        raise UserError("--json and --html are both given.", "Leave one out.")
    if chosen.eval is not None and chosen.replayed is not None:
        raise UserError("--replayed does not go with --eval.", "Only steps are replayed.")
    from data.store import RunStore

    store = RunStore(chosen.run)
    picked = any(
        getattr(chosen, name) is not None for name in ("step", "eval", "sample", "group", "prompt", "replayed")
    )
    if chosen.json and not picked:
        return _steps_as_json(store)
    return _samples(store, chosen, picked)


def _steps_as_json(store: Any) -> int:
    from relax_core.show.overview import read_overview

    for row in read_overview(store).rows:
        print(dumps(row.to_json()))
    return 0


def _samples(store: Any, chosen: argparse.Namespace, picked: bool) -> int:
    from relax_core.show import text
    from relax_core.show.overview import read_overview
    from relax_core.show.samples import chosen as those

    console = text.console()
    if not picked and chosen.html is None:
        console.print(text.overview_text(read_overview(store, LAST), _writes_blocks()), soft_wrap=False)
    shown = _shown(store, chosen)
    if shown is None:
        console.print("\nNo step has a rollout yet.")
        return 0
    samples = those(shown.samples, chosen.sample, chosen.group, chosen.prompt)
    if chosen.html is not None:
        return _write_page(store, chosen, shown, samples)
    if chosen.json:
        from relax_core.show.samples import in_order

        for sample in in_order(samples, chosen.sort, ascending=chosen.reverse)[: chosen.limit]:
            print(dumps({"title": shown.title, **sample.to_json()}))
        return 0
    whole = chosen.sample is not None
    console.print(text.step_text(shown, samples, chosen.sort, chosen.reverse, chosen.limit or EACH, whole))
    if whole:
        from relax_core.show.page import vocabulary_of

        vocabulary, lacking = vocabulary_of(store, chosen.model)
        colours = text.coloured_text(samples[0], vocabulary) if console.color_system else None
        if colours is not None:
            console.print(colours)
        if (tokens := text.tokens_text(samples[0], vocabulary)) is not None:
            console.print(tokens)
            if lacking:
                console.print(f"note: {text.visible(lacking)}", style="dim")
    return 0


def _shown(store: Any, chosen: argparse.Namespace) -> Any:
    """The samples that are asked for; None where no step has any yet and none is named."""
    from relax_core.replay.recorded import open_step, recorded_steps
    from relax_core.show.evaluations import read_eval
    from relax_core.show.reading import read_step, step_of

    if chosen.eval is not None:
        return read_eval(store, chosen.eval, chosen.step)
    step = chosen.step
    if step is None and (name := chosen.sample or chosen.group):
        step = step_of(store, name)
    if step is None:
        if not recorded_steps(store):
            open_step(chosen.run, 0)  # says what is wrong
        found = (n for n in reversed(recorded_steps(store)) if store.exists(store.step_path(n, "rollout.parquet")))
        step = next(found, None)
        if step is None:
            return None
    else:
        open_step(chosen.run, step)
    shown = read_step(store, step, _replayed(chosen.replayed))
    if chosen.replayed is not None and all(sample.gap is None for sample in shown.samples):
        raise UserError(
            f"--replayed {chosen.replayed}: its forward.parquet has old_log_probs of no sample of {shown.title}.",
            "Replay this very step.",
        )
    return shown


def _replayed(folder: str | None) -> Any:
    if folder is None:
        return None
    from data.store import RunStore

    store = RunStore(folder)
    if not store.exists("forward.parquet"):
        raise UserError(
            f"--replayed {folder}: has no forward.parquet.",
            "`relax replay` writes it where options need passes of models: docs/how-to/read-rollouts.md.",
        )
    return store.read_table("forward.parquet")


def _write_page(store: Any, chosen: argparse.Namespace, shown: Any, samples: Any) -> int:
    from relax_core.show.content import PAGE_SAMPLES
    from relax_core.show.page import page, write_html

    path = chosen.html
    if not path:
        name = chosen.run.rstrip("/").rpartition("/")[2] or "run"
        path = f"{name}-{shown.title.replace(' ', '-')}.html"
    limit = chosen.limit or PAGE_SAMPLES
    content = page(store, shown, samples, chosen.sort, chosen.reverse, limit, chosen.model)
    print(write_html(path, content))
    return 0


def _writes_blocks() -> bool:
    from relax_core.show.overview import BLOCKS

    try:
        BLOCKS.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
