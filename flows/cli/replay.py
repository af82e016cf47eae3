"""``relax replay`` and ``relax diff``: a recorded step computed again, two runs compared.

Guarantee: nothing of a run is changed. Without a stage that needs a model neither torch, Ray nor Prefect is imported;
where a Prefect server stands (``relax up``) a replay is a flow there.
"""

import argparse
import os
from typing import Any

from data.errors import UserError

REPLAY = """\
A step has the stages reward, forward (passes of models, where the advantages need them), advantage and train. What lies
between --from and --to is computed again, each stage from what the one before it gave, and compared with what was
recorded; what lies before --from is taken as recorded. Nothing is generated.

Up to advantage no model is needed: recorded columns of forward are used, and it takes a second or two. With --to train,
or --from train, the trainer is started on the CPU: it loads the newest checkpoint before the step, trains again on the
stored batches up to it, makes the passes of forward, and repeats the update.

Stages without a model must give the same bits; those with one may differ by rounding (--rtol 1e-5 --atol 1e-6), as
another number of threads or ranks, or a GPU, adds in another order. --rtol and --atol, where given, count for all.

--set, any number of times, says what would have changed with other options, written as for `relax train`; options that
can change nothing from --from to --to are refused.

  relax replay runs/quickstart --step 3
  relax replay runs/quickstart --step 3 --set disable_grpo_std_normalization=true
  relax replay runs/quickstart --step 3 --to train --set lr=1e-5 --set use_kl_loss=true --set kl_loss_coef=0.01

Exit code 0: equal; 1: something differs (with --set: changes), or a stage could not be repeated; 2: a mistake that you
can mend."""

DIFF = """\
Tables are compared by sample id: rollout, reward, forward, batch, evaluations; then metrics of the updates, the data
cursor and the identities of the weights. The first step, stage, sample and token that differ are named.

  relax diff runs/a runs/b
  relax diff runs/a s3://bucket/b --steps 0-9 --rtol 1e-5

Exit code 0: equal (options may differ); 1: something differs, or one of them lacks it; 2: a mistake that you can
mend."""


def replay(parser: argparse.ArgumentParser, arguments: list[str]) -> int:
    """Compute a recorded step again."""
    from relax_core.replay.span import STAGES

    parser.epilog, parser.formatter_class = REPLAY, argparse.RawDescriptionHelpFormatter
    parser.add_argument("run", metavar="RUN", help="run directory or URL")
    parser.add_argument("--step", type=int, required=True, help="rollout step, from 0")
    parser.add_argument("--from", dest="first", choices=STAGES, default="reward", help="first stage (default: reward)")
    parser.add_argument("--to", dest="last", choices=STAGES, help="last stage (default: advantage, or --from if later)")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="with another option")
    parser.add_argument("--model", metavar="DIR", help="the model's folder, where it is not where the run had it")
    parser.add_argument("--out", metavar="DIR", help="folder or URL for the new tables and replay.json")
    _common(parser)
    chosen = parser.parse_args(_joined(arguments))
    _quiet()
    options: dict[str, Any] = {
        "first": chosen.first,
        "last": chosen.last,
        "changes": chosen.set,
        "tolerance": _tolerance(chosen),
        "out": chosen.out,
        "model": chosen.model,
    }
    from relax_core.replay.replay import Replay

    report = _do_replay(Replay(chosen.run, chosen.step, **options))
    if chosen.json:
        from data.jsontext import dumps

        print(dumps(report.to_json()))
    else:
        from relax_core.replay.text import replay_lines

        print("\n".join(replay_lines(report)))
    return 0 if report.equal else 1


def _joined(arguments: list[str]) -> list[str]:
    """``--set --lr=1`` as one word: argparse would take the second for an argument of its own."""
    joined: list[str] = []
    for word in arguments:
        if joined and joined[-1] == "--set":
            joined[-1] = f"--set={word}"
        else:
            joined.append(word)
    return joined


def _do_replay(replayed: Any) -> Any:
    """As a flow where a server shows it, else in this process alone: a server of its own costs 15 s."""
    from relax_core.cluster.services import recorded

    if os.environ.get("PREFECT_API_URL") or "prefect" in recorded():
        from flows.replay import replay as replay_in_prefect

        return replay_in_prefect(replayed)
    return replayed.run()


def diff(parser: argparse.ArgumentParser, arguments: list[str]) -> int:
    """Compare two runs."""
    parser.epilog, parser.formatter_class = DIFF, argparse.RawDescriptionHelpFormatter
    parser.add_argument("run_a", metavar="RUN_A", help="run directory or URL")
    parser.add_argument("run_b", metavar="RUN_B", help="another one")
    steps = parser.add_mutually_exclusive_group()
    steps.add_argument("--step", type=int, help="this step alone")
    steps.add_argument("--steps", metavar="A-B", help="these steps alone, both included")
    _common(parser)
    chosen = parser.parse_args(arguments)
    _quiet()
    from relax_core.replay.columns import EXACT
    from relax_core.replay.runs import diff_runs

    found = diff_runs(chosen.run_a, chosen.run_b, _span(chosen), _tolerance(chosen) or EXACT)
    if chosen.json:
        from data.jsontext import dumps

        print(dumps(found.to_json()))
    else:
        from relax_core.replay.text import runs_lines

        print("\n".join(runs_lines(found)))
    return 0 if found.equal else 1


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rtol", type=float, help="floats may differ by this share of the old value")
    parser.add_argument("--atol", type=float, help="and by this much")
    parser.add_argument("--json", action="store_true", help="print JSON")


def _tolerance(chosen: argparse.Namespace) -> Any:
    from relax_core.replay.columns import Tolerance

    if chosen.rtol is None and chosen.atol is None:
        return None
    for name in ("rtol", "atol"):
        value = getattr(chosen, name)
        if value is not None and not 0 <= value < float("inf"):
            raise UserError(f"--{name} {value}: must be 0 or more.")
    return Tolerance(chosen.rtol or 0.0, chosen.atol or 0.0)


def _span(chosen: argparse.Namespace) -> tuple[int, int] | None:
    if chosen.step is not None:
        return chosen.step, chosen.step
    if chosen.steps is None:
        return None
    first, dash, last = chosen.steps.partition("-")
    if not (dash and first.isdigit() and last.isdigit() and int(first) <= int(last)):
        raise UserError(f"--steps {chosen.steps}: is no span of steps.", "Write --steps 0-9.")
    return int(first), int(last)


def _quiet() -> None:
    """Warnings of libraries do not help the person at the keyboard."""
    import warnings

    warnings.filterwarnings("ignore")
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
