"""The transcript of ``docs/how-to/wrong-options.md``: command lines that people really type, and what Relax says.

Guarantee: every answer on the page is what ``relax doctor`` prints for the words above it; the page is made anew by
``docs/generate.py`` and a test finds it stale.
"""

import contextlib
import json
import os
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

from relax_core.config.examine import examine_given
from relax_core.config.parser import read_given

GOOD = (
    "--hf-checkpoint model --prompt-data prompts.jsonl --rollout-batch-size 8 --n-samples-per-prompt 4"
    " --rollout-max-response-len 64 --num-rollout 3 --rm-type gsm8k --input-key question --label-key answer"
)
"""A configuration that is right, over the files of ``_folder``; a mistake is added to it, or takes something away."""

MISTAKES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("A misspelt option", "--rollout-bach-size 16", ("--rollout-bach-size", "16")),
    ("Underscores", "--rollout_batch_size 16", ("--rollout_batch_size", "16")),
    ("A beginning of a name", "--rollout-temp 0.7", ("--rollout-temp", "0.7")),
    ("One dash", "-lr 2e-6", ("-lr", "2e-6")),
    ("A value of the wrong type", "--global-batch-size 16.5", ("--global-batch-size", "16.5")),
    ("A choice that is none", "--lr-decay-style cosin", ("--lr-decay-style", "cosin")),
    (
        "JSON without quotes round it: the shell takes its quotes away",
        '--resource {"actor":[1,1],"rollout":[1,1]}',
        ("--resource", "{actor:[1,1],rollout:[1,1]}"),
    ),
    ("JSON with the wrong quotes", "--resource \"{'actor':[1,1]}\"", ("--resource", "{'actor':[1,1]}")),
    (
        "A role that is none",
        '--resource \'{"actor":[1,1],"rolout":[1,1]}\'',
        ("--resource", '{"actor":[1,1],"rolout":[1,1]}'),
    ),
    ("A text with spaces, unquoted", "--system-prompt Be brief.", ("--system-prompt", "Be", "brief.")),
    ("A batch that does not divide the samples", "--global-batch-size 12", ("--global-batch-size", "12")),
    (
        "Two options that say different things",
        "--global-batch-size 16 --num-steps-per-rollout 4",
        ("--global-batch-size", "16", "--num-steps-per-rollout", "4"),
    ),
    (
        "A parallel size that no device is there for",
        "--tensor-model-parallel-size 2",
        ("--tensor-model-parallel-size", "2"),
    ),
    ("A weight without the term", "--kl-loss-coef 0.01", ("--kl-loss-coef", "0.01")),
    ("Dynamic batches without a budget", "--use-dynamic-batch-size", ("--use-dynamic-batch-size",)),
    ("Greedy sampling in training", "--rollout-temperature 0", ("--rollout-temperature", "0")),
    ("An evaluation without prompts", "--eval-interval 5", ("--eval-interval", "5")),
    ("A context that leaves no room", "--rollout-max-context-len 64", ("--rollout-max-context-len", "64")),
    ("An option of SGLang, misspelt", "--sglang-mem-fraction 0.8", ("--sglang-mem-fraction", "0.8")),
    ("An option of Megatron that the model contradicts", "--num-layers 32", ("--num-layers", "32")),
    ("An estimator without what it needs", "--advantage-estimator ppo", ("--advantage-estimator", "ppo")),
    ("A file that is not there", "--prompt-data promtps.jsonl", ("--prompt-data", "promtps.jsonl")),
    (
        "Several at once",
        "--lrr 1e-6 --global-batch-size 12 --rollout-top-p 1.5 --save-hf 'out/{step}'",
        ("--lrr", "1e-6", "--global-batch-size", "12", "--rollout-top-p", "1.5", "--save-hf", "out/{step}"),
    ),
)
"""What is wrong, how it is typed, and the words that arrive."""

MODEL = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
}


@contextlib.contextmanager
def _folder() -> Iterator[None]:
    """A working directory with a model folder (no weights) and prompts."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as place:
        model = Path(place) / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(MODEL))
        (model / "tokenizer.json").write_text("{}")
        (model / "model.safetensors").write_bytes(b"")
        rows = [{"question": "1+1=", "answer": "2"}] * 16
        (Path(place) / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        os.chdir(place)
        try:
            yield
        finally:
            os.chdir(before)


def answer(words: tuple[str, ...]) -> str:
    """What ``relax doctor`` finds wrong in the good configuration with these words added."""
    with _folder():
        here = os.getcwd()
        report = examine_given(read_given([*GOOD.split(), *words], {}))
    found = [f"ERROR    {problem}" for problem in report.errors]
    found += [f"warning  {problem}" for problem in report.warnings]
    lines = (text.replace(f"/private{here}", "/home/me").replace(here, "/home/me") for text in found)
    return "\n".join(textwrap.fill(line, 110, subsequent_indent="         ") for line in lines) or "nothing"


def transcript_page() -> str:
    """The page: every mistake with what is typed and what is said."""
    lines = [
        "# What Relax says to wrong options",
        "",
        "<!-- Made by docs/generate.py from docs/mistakes.py: change that and run the script, not this page. -->",
        "",
        "Each of these is added to a configuration that is right:",
        "",
        "```",
        *textwrap.wrap(f"relax doctor {GOOD}", 100, break_on_hyphens=False, subsequent_indent="    "),
        "```",
        "",
        "`relax train` finds the same, before anything starts; ERROR and warning stand here for the headings of"
        " `relax doctor`. All mistakes of a command line, a run file and the environment are told together.",
    ]
    for title, typed, words in MISTAKES:
        lines += ["", f"## {title}", "", "```", f"relax doctor ... {typed}", "", answer(words), "```"]
    return "\n".join(lines) + "\n"
