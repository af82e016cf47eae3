"""A run to look at in Prefect's interface: ``python shown_run.py FOLDER``. Five steps in groups of two, engines that
answer at once; in the third a trainer dies under its update, and has said something before. With ``slow`` behind it a
hundred steps of a second.
"""

import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]


def main(folder: Path, slow: bool) -> None:
    from fakes import FakeBackend
    from loop import small_config
    from tiny import make_tiny

    import flows.groups
    from data.errors import Lost
    from flows.train import train

    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"input": f"{a} + 2 =", "label": str(a + 2)}) + "\n" for a in range(8)))
    backend = FakeBackend()
    update, deaths = backend.trainer.train, []

    def dying(base: int, *others: Any) -> Any:
        if base == 2 and not deaths:
            deaths.append(base)
            logs = folder / "run" / "logs"
            logs.mkdir()
            (logs / "trainer-rank-0.log").write_text("WARNING megatron: NCCL timeout\nan ordinary line\n")
            raise Lost("The trainer died (out of memory).")
        return update(base, *others)

    backend.engine.pace = 0.2 if slow else 0.0
    steps = 100 if slow else 5
    config = small_config(folder, Path(make_tiny(folder / "model")), prompts, num_rollout=steps)
    with (
        mock.patch.object(backend.trainer, "train", dying),
        mock.patch.multiple(flows.groups, FEW=3, SIZE=2),
    ):
        print(json.dumps(train(config, backend=backend)))  # type: ignore[arg-type]


if __name__ == "__main__":
    main(Path(sys.argv[1]), "slow" in sys.argv)
