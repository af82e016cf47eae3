"""``relax reward``: the score of one case, of a recorded rollout, or the list of built-in rewards.

Guarantee: nothing is started but the processes of reward functions, and nothing of a run is changed; neither torch, Ray
nor Prefect is imported. The options of the reward are those of ``relax train``.
"""

import argparse
import json
import math
import sys
from typing import Any

from data.errors import UserError
from data.jsontext import dumps
from relax_core.config.parser import read_config, read_words
from relax_core.config.sections import RelaxConfig

SHOWN = 20
"""Samples with another score that are listed."""

EPILOG = """\
The options of the reward are those of `relax train`: --rm-type, --custom-rm-path, --reward-key, --rm-url and so on.
With --run the run's own count, unless they are given anew. --response - is standard input.

  relax reward --rm-type math --label '\\frac{1}{2}' --response 'It is \\boxed{0.5}.'
  relax reward --custom-rm-path my_reward.py:reward --label 5 --response 'It is 5.'
  relax reward --run runs/quickstart --step 3 --rm-type gsm8k_flexible --out again.parquet

Exit code 0: scored, or no score; 1: a call failed, was too long or gave NaN; 2: a mistake that you can mend."""

_LENGTH = "Give --response-length N, or --hf-checkpoint, whose tokenizer counts."


def reward(parser: argparse.ArgumentParser, arguments: list[str]) -> int:
    """Score one case or a recorded rollout."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "relax reward [--list | --response TEXT ... | --run DIR [--step N]] [options of `relax train`]"
    parser.add_argument("--list", action="store_true", help="list the built-in rewards")
    parser.add_argument("--response", help="response to score")
    parser.add_argument("--prompt", default=None, help="its prompt")
    parser.add_argument("--label", help="its label, a text")
    parser.add_argument("--label-json", help="its label in JSON, where it is no text")
    parser.add_argument("--metadata", help="its metadata, a JSON object")
    parser.add_argument("--response-length", type=int, help="its tokens (default: by the tokenizer of --hf-checkpoint)")
    parser.add_argument("--truncated", action="store_true", help="it was cut off at the length limit")
    parser.add_argument("--run", help="run directory or URL: score a recorded rollout again")
    parser.add_argument("--step", type=int, help="rollout step (default: the last finished one)")
    parser.add_argument("--out", help="Parquet file or URL for the new scores beside the old ones")
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen, words = parser.parse_known_args(arguments)
    if chosen.list:
        return _list(chosen.json)
    if chosen.run is not None:
        _refuse(chosen, ("response", "prompt", "label", "label_json", "metadata", "response_length"), "--run")
        return _again(chosen, words)
    _refuse(chosen, ("step", "out"), "a single case")
    if chosen.response is None:
        raise UserError("relax reward: there is nothing to score.", "Give --response TEXT, --run DIR or --list.")
    return _one(chosen, words)


def _refuse(chosen: argparse.Namespace, names: tuple[str, ...], mode: str) -> None:
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(chosen, name) is not None]
    if given:
        raise UserError(
            f"relax reward: {', '.join(given)} does not go with {mode}.", "`relax reward --help` shows both."
        )


def _list(as_json: bool) -> int:
    from relax_core.rewards.registry import builtin_rewards

    found = {spec.name: spec.doc for spec in builtin_rewards().values()}
    if as_json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return 0
    width = max(map(len, found))
    print("\n".join(f"{name:{width}}  {doc}" for name, doc in found.items()))
    print("\nEach may have boxed_ before it: it scores what stands in the last box of the response.")
    return 0


def _one(chosen: argparse.Namespace, words: list[str]) -> int:
    from relax_core.rewards.rescore import one_case, token_count

    if chosen.label is not None and chosen.label_json is not None:
        raise UserError("relax reward: --label and --label-json are both given.", "Leave one out.")
    label = chosen.label if chosen.label_json is None else _json("--label-json", chosen.label_json)
    metadata = _json("--metadata", chosen.metadata or "{}")
    if not isinstance(metadata, dict):
        raise UserError(
            f"--metadata {chosen.metadata}: is no JSON object.", 'Write --metadata \'{"rm_type": "math"}\'.'
        )
    config, response, length = read_config(words).config, chosen.response, chosen.response_length
    response = sys.stdin.read() if response == "-" else response
    if length is None and config.checkpoint.hf_checkpoint:
        length = token_count(config.checkpoint.hf_checkpoint, response)
    try:
        row = one_case(
            config,
            response=response,
            prompt=chosen.prompt or "",
            label=label,
            metadata=metadata,
            response_length=length or 0,
            truncated=chosen.truncated,
        )
    except UserError as error:
        raise UserError(error.problem, _of_this_command(error.fix), error.details) from error
    shown = {
        "score": row["reward"],
        "outcome": row["outcome"],
        "reward": row["rm_type"],
        "decision": row["decision"],
        "reason": row["decision_reason"],
        "raw": row["raw_reward"],
        "components": row["components"],
        "error": row["error"],
        "response_length": length,
        "seconds": row["seconds"],
    }
    if row["judge_output"] is not None:
        shown["judge"] = row["judge_output"]
    if chosen.json:
        print(dumps(shown))
    else:
        print("\n".join(_lines(shown, _reads_length(config))))
    return int(row["outcome"] in ("failed", "nan"))


def _of_this_command(fix: str, of_case: bool = True) -> str:
    """What is to be done here, where a run would be told otherwise.

    Args:
        of_case: the case is that of the command line.
    """
    from relax_core.rewards.answers.labels import NAME_LABELS
    from relax_core.rewards.judge.client import NO_JUDGE, URLS
    from relax_core.rewards.parts import GIVE_LENGTH

    if fix == NO_JUDGE:
        return f"This command starts none: start a server of SGLang and name it: {URLS}=http://host:port relax reward"
    case = {NAME_LABELS: "Give --label TEXT, or --label-json where it is no text.", GIVE_LENGTH: _LENGTH}
    return case.get(fix, fix) if of_case else fix


def _reads_length(config: RelaxConfig) -> bool:
    """Whether the file of the user's function speaks of tokens or of their number."""
    from pathlib import Path

    from relax_core.functions import load_function

    path = config.reward.custom_rm_path
    if not path:
        return False
    module = sys.modules.get(load_function(path, "--custom-rm-path", "reward(sample)", None).call.__module__)
    file = getattr(module, "__file__", None)
    text = Path(file).read_text(errors="replace") if file else "tokens"
    return any(name in text for name in ("response_length", "tokens"))


def _lines(shown: dict[str, Any], reads_length: bool) -> list[str]:
    """What there is, a line each.

    Args:
        reads_length: of a user's function.
    """
    kept = {**shown, "score": _number(shown["score"]), "seconds": f"{shown['seconds'] or 0:.4f}"}
    if shown["raw"] == shown["score"] or shown["outcome"] == "nan":
        kept["raw"] = None
    kept["response_length"] = None
    if reads_length and shown["decision"] == "custom" and shown["response_length"] is None:
        kept["length"] = f"the function got 0 tokens, as the length is not known. {_LENGTH}"
    elif shown["response_length"] is not None:
        kept["length"] = f"{shown['response_length']} tokens"
    kept["components"] = json.dumps(shown["components"], ensure_ascii=False) if shown["components"] else None
    return [f"{name:10} {value}" for name, value in kept.items() if value is not None]


def _json(option: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"{option} {text}: is no JSON: {error}.", "Quote it for the shell: '{\"a\": 1}'.") from None


def _again(chosen: argparse.Namespace, words: list[str]) -> int:
    from relax_core.rewards.rescore import rescored

    try:
        found = rescored(chosen.run, chosen.step, _config_of_run(chosen.run, words))
    except UserError as error:
        raise UserError(error.problem, _of_this_command(error.fix, of_case=False), error.details) from error
    if chosen.out is not None:
        _write(found.table, chosen.out)
    summary, changes = found.summary(), found.changes()
    if chosen.json:
        print(dumps({**summary, "changes": changes}))
    else:
        print("\n".join(_report(chosen, summary, changes)))
    return int(summary["failed"] > 0 or summary["nan"] > 0)


def _config_of_run(run: str, words: list[str]) -> RelaxConfig:
    """The run's own options, those that are given anew before them; a built-in that is named stands for the run's own
    function."""
    from data.store import RunStore

    given = read_words(words)[0]
    if not any(word.partition("=")[0] == "--config" for word in words) and RunStore(run).exists("config.yaml"):
        words = ["--config", f"{run.rstrip('/')}/config.yaml", *words]
    config = read_config(words).config
    if given.get("rm_type") and not given.get("custom_rm_path"):
        config.reward.custom_rm_path = None
    return config


def _report(chosen: argparse.Namespace, summary: dict[str, Any], changes: list[dict[str, Any]]) -> list[str]:
    scored_by = ", ".join(f"{name} {count}" for name, count in summary["scored_by"].items())
    kinds = ", ".join(f"{summary[name]} {name}" for name in ("up", "down", "gained", "lost") if summary[name])
    lines = [
        f"{chosen.run}, step {summary['step']}: {summary['samples']} samples, scored by {scored_by}",
        f"changed {summary['changed']}{f' ({kinds})' if kinds else ''}, failed {summary['failed']}"
        + (f", NaN {summary['nan']}" if summary["nan"] else ""),
        f"mean    {_number(summary['old_mean'])} -> {_number(summary['new_mean'])}",
    ]
    if changes:
        width = max(len(change["sample_id"]) for change in changes)
        lines += ["", f"{'sample':{width}}  {'old':>8}  {'new':>8}"]
        lines += [
            f"{change['sample_id']:{width}}  {_number(change['old']):>8}  {_number(change['new']):>8}"
            + (f"  {change['error'][:60]}" if change["error"] else "")
            for change in changes[:SHOWN]
        ]
    if len(changes) > SHOWN:
        lines.append(f"... and {len(changes) - SHOWN} more" + ("" if chosen.out else "; --out FILE.parquet has all"))
    if chosen.out:
        lines.append(f"\n{chosen.out} is written.")
    return lines


def _number(value: float | None) -> str:
    return "none" if value is None else "NaN" if math.isnan(value) else f"{value:.4g}"


def _write(table: Any, path: str) -> None:
    from data.store import RunStore

    folder, slash, name = path.rpartition("/")
    RunStore(folder + slash or ".").write_table(name, table)
