"""Tokens a second of one engine: asked by a client of a few lines, and by the loop, in one go.

    python benchmarks/gpu/generation.py [--size 0.6b] [--concurrency 256] [--tokens 512] [--requests 512] [--rounds 3]
                                        [--profile] [--prefect] [--out FOLDER] [-- further options of relax train]
    python benchmarks/gpu/generation.py --rehearse      # without a GPU: a tiny model, few and short responses

A random model of Qwen3-0.6B's shape in a real SGLang server, started from the project's own description of an engine.
All responses have the same number of tokens, with log-probabilities. The client counts tokens and does nothing else.
The loop is the steps of ``relax train --debug-rollout-only`` with the same prompts: requests, answers, log-probs, text,
rows, both stored tables, and the reward ``random``. Printed: tokens/s of each round, the ratio of the medians, and what
the loop's time went to; all of it goes to ``FOLDER/generation.json`` too. ``--profile``: one more round of the loop
under cProfile. ``--prefect``: stages are Prefect's tasks, with its server. Fails where a response has another length.
"""

import argparse
import asyncio
import cProfile
import io
import json
import os
import pstats
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from models import ROOT, SIZES, write_model

sys.path.append(str(ROOT / "benchmarks"))  # behind this folder, which has programs of the same names

from driver_cost import LABEL, Round, alone, bodies_of, median_phases, staged, words

GOAL_RATE, GOAL_SHARE, GOAL_CPU = 35_000, 0.9, 3.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="0.6b")
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=512, help="of each response")
    parser.add_argument("--requests", type=int, default=512, help="of a round, eight for each prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="one more round of the loop under cProfile")
    parser.add_argument("--prefect", action="store_true", help="with Prefect's tasks and its server")
    parser.add_argument("--limit", type=int, default=420, help="seconds after which it gives up")
    parser.add_argument("--out", type=Path, help="folder of generation.json and the engine's log; by default none")
    parser.add_argument("--rehearse", action="store_true", help="no GPU: a tiny model, few and short responses")
    parser.add_argument("more", nargs="*", help="further options of relax train, behind --")
    chosen = parser.parse_args()
    if chosen.rehearse:
        chosen.size, chosen.concurrency, chosen.tokens, chosen.requests = "tiny", 16, 24, 32
    keep({}, chosen.out)  # the folder is there, whatever comes
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(chosen.limit)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ["PREFECT_HOME"], os.environ["RELAX_HOME"] = str(folder / "prefect"), str(folder / "relax")
        (folder / "prefect").mkdir()
        return measure(folder, chosen)


def _too_long(*_: object) -> None:
    raise TimeoutError("--limit is over")


def measure(folder: Path, chosen: argparse.Namespace) -> int:
    os.environ |= {"NCCL_CUMEM_ENABLE": "0", "OMP_WAIT_POLICY": "passive"}
    from relax_core.config.examine import prepare
    from relax_core.config.parser import read_given
    from relax_core.engines.actor import SGLangEngine
    from relax_core.engines.control import EngineControl
    from relax_core.engines.spec import engine_spec

    began = time.perf_counter()
    say(f"a random model, {chosen.size}")
    write_model(folder / "model", chosen.size)
    whole_vocabulary(folder / "model", SIZES[chosen.size]["vocab"])

    def configured(name: str, rounds: int) -> Any:
        (folder / name).mkdir()
        given = words(folder / name, folder / "model", chosen.requests, chosen.tokens, rounds)
        found = read_given([*given, *server(chosen), *chosen.more], {})
        assert not found.notes, found.notes
        return found.config

    config = configured("loop", chosen.rounds + 1)
    prepared = prepare(config.model_copy(deep=True), "train", None)
    say(f"{time.perf_counter() - began:.1f} s; the engine starts")
    spec = engine_spec(prepared, 0, "cpu" if chosen.rehearse else "cuda", folder / "run/logs")
    say(" ".join(spec.arguments))
    engine, began = SGLangEngine(spec), time.perf_counter()
    found: dict[str, Any] = {"options": vars(chosen) | {"out": str(chosen.out)}, "alone": [], "loop": []}
    try:
        url = engine.start().url
        found["start"] = round(time.perf_counter() - began, 1)
        say(f"{found['start']} s; rounds of {chosen.requests} x {chosen.tokens} tokens, {chosen.concurrency} at a time")
        with EngineControl(url) as control:
            control.set_weight_version(LABEL)
        bodies = bodies_of(prepared, chosen.tokens)

        def client(rounds: int, warm: bool) -> None:
            for number in range(rounds + warm):
                tokens, seconds, cpu = asyncio.run(alone(url, bodies, chosen.concurrency))
                say(f"client: {tokens} tokens  {seconds:.3f} s  {tokens / seconds:,.0f} tokens/s  CPU {cpu:.3f} s")
                if number or not warm:
                    found["alone"].append({"tokens": tokens, "seconds": seconds, "cpu": cpu})
                keep(found, chosen.out)

        before = (chosen.rounds + 1) // 2  # some behind the loop, so that a drift of the machine shows
        client(before, warm=True)
        for one in staged(config, url, prefect=chosen.prefect):
            say(f"loop: {one.tokens} tokens  {one.seconds:.3f} s  {one.rate:,.0f} tokens/s  CPU {one.cpu:.3f} s")
            found["loop"].append({"tokens": one.tokens, "seconds": one.seconds, "cpu": one.cpu, "marks": one.marks})
        keep(found, chosen.out)
        client(chosen.rounds - before, warm=False)
        code = report(found, chosen)
        if chosen.profile:
            profiled(lambda profile: staged(configured("profiled", 2), url, profile), chosen.out)
        return code
    finally:
        signal.alarm(0)
        engine.stop()
        if chosen.out is not None and Path(spec.log_path).exists():
            shutil.copy(spec.log_path, chosen.out / "generation_engine.log")


def server(chosen: argparse.Namespace) -> list[str]:
    """Options of the engine."""
    given = {
        "--sglang-server-concurrency": str(chosen.concurrency),
        "--sglang-max-running-requests": str(chosen.concurrency),
        "--engine-start-timeout": "300",
    }
    if not chosen.rehearse:
        given |= {
            "--sglang-mem-fraction-static": "0.7",
            "--sglang-attention-backend": "fa3" if SIZES[chosen.size]["head"] == 128 else "triton",
            "--sglang-sampling-backend": "pytorch",
            "--sglang-grammar-backend": "none",
        }
    exact = [] if chosen.rehearse else ["--bf16", "--sglang-skip-server-warmup"]
    return [*(word for pair in given.items() for word in pair), *exact]


def whole_vocabulary(model: Path, size: int) -> None:
    """Give every token that the model may make a text, as a trained model's tokens have one."""
    path = model / "tokenizer.json"
    content = json.loads(path.read_text())
    content["added_tokens"] = [one for one in content["added_tokens"] if one["special"]]  # no mere stop-gaps
    known = content["model"]["vocab"]
    taken = {*known.values(), *(one["id"] for one in content["added_tokens"])}
    known |= {f"Ġword{number}": number for number in range(size) if number not in taken}
    path.write_text(json.dumps(content, ensure_ascii=False))


def report(found: dict[str, Any], chosen: argparse.Namespace) -> int:
    """Print the rows and the phases; 1 where a response had another length."""
    rates = {way: [one["tokens"] / one["seconds"] for one in found[way]] for way in ("alone", "loop")}
    of_client, of_loop = (statistics.median(rates[way]) for way in ("alone", "loop"))
    cpu = statistics.median(1e6 * one["cpu"] / one["tokens"] for one in found["loop"])
    what = f"{chosen.size}, {chosen.concurrency} at a time, {chosen.tokens} new tokens"
    way = "generate and reward, as Prefect's tasks" if chosen.prefect else "generate and reward"
    found["rows"] = [
        [f"engine alone, tokens/s ({what})", spread(rates["alone"]), f"{GOAL_RATE:,}"],
        [f"in the loop, tokens/s ({way}, from prompts to stored tables)", spread(rates["loop"]), ""],
        ["loop's share of the engine's own rate", f"{100 * of_loop / of_client:.1f}%", f"{100 * GOAL_SHARE:.0f}%"],
        ["driver's processor time for a token, us", f"{cpu:.2f}", f"below {GOAL_CPU:.0f}"],
    ]
    print("\n| what | seen | goal |\n|---|---|---|")
    for row in found["rows"]:
        print("| " + " | ".join(row) + " |")
    found["phases_ms"] = median_phases([_round(one) for one in found["loop"]])
    print("ms of the loop by phase, up to: " + "  ".join(f"{name} {ms:.0f}" for name, ms in found["phases_ms"].items()))
    print(
        f"ms of the client alone: {1000 * statistics.median(one['seconds'] for one in found['alone']):.0f}", flush=True
    )
    keep(found, chosen.out)
    wrong = [one["tokens"] for way in rates for one in found[way] if one["tokens"] != chosen.requests * chosen.tokens]
    if wrong:
        print(f"Rounds had {wrong} tokens in place of {chosen.requests * chosen.tokens}.")
    return int(bool(wrong))


def _round(content: dict[str, Any]) -> Round:
    result = Round()
    result.marks = content["marks"]
    return result


def spread(rates: Sequence[float]) -> str:
    """The median, and the least and largest."""
    return f"{statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"


def profiled(run: Callable[[cProfile.Profile], object], out: Path | None) -> None:
    """A round under cProfile: the functions of the main thread that took most."""
    profile = cProfile.Profile()
    run(profile)
    text = io.StringIO()
    for order in ("tottime", "cumulative"):
        pstats.Stats(profile, stream=text).sort_stats(order).print_stats(40)
    print(text.getvalue(), flush=True)
    if out is not None:
        (out / "generation_profile.txt").write_text(text.getvalue())


def keep(found: dict[str, Any], out: Path | None) -> None:
    """What is known so far."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "generation.json").write_text(json.dumps(found, indent=1))


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
