"""``relax convert``: a checkpoint of a run as a Hugging Face folder.

Guarantee: the run is only read, also while it is trained; a mistake is told before torch is imported.
"""

import argparse
import sys

TEXT = """\
RUN is a run directory, a folder of checkpoints, or one of them (.../iter_0000012); each may be a URL. The run may be
trained meanwhile: where it deletes the newest checkpoint while that is read, the one after it is taken. The same
command again finds the folder that it has made. The way back is not needed: relax train takes DIR as --hf-checkpoint.
"""


def convert(parser: argparse.ArgumentParser, arguments: list[str]) -> int:
    """Write a checkpoint as a Hugging Face folder."""
    parser.epilog, parser.formatter_class = TEXT, argparse.RawDescriptionHelpFormatter
    parser.add_argument("run", metavar="RUN", help="run directory, or folder of checkpoints; or their URL")
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to make: a new or empty one")
    parser.add_argument("--step", type=int, help="the checkpoint of this step (default: the newest complete one)")
    parser.add_argument(
        "--hf-checkpoint",
        metavar="DIR",
        help="for config.json and tokenizer (default: what the run began with)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    chosen = parser.parse_args(arguments)
    from relax_core.cluster.overview import bytes_text
    from relax_core.weights.convert import convert as convert_checkpoint
    from relax_core.weights.convert import find_checkpoints
    from relax_core.weights.convert_out import check_out

    check_out(chosen.out)
    checkpoints = find_checkpoints(chosen.run, chosen.hf_checkpoint, chosen.step)
    found = convert_checkpoint(checkpoints, chosen.out, _say)
    if chosen.json:
        from data.jsontext import dumps

        print(dumps(found.to_json()))
        return 0
    print(f"{found.out}: weights after {found.version} steps, {found.dtype}, {bytes_text(found.bytes)}")
    how = f"in {found.seconds:.1f} s" if found.made else "before: it is there already"
    print(f"converted from {found.checkpoint} {how}")
    return 0


def _say(text: str) -> None:
    print(f"relax: {text}", file=sys.stderr)
