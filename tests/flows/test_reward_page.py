"""The commands of docs/how-to/develop-a-reward.md, run as they stand there, print what the page shows."""

import io
import re
import shlex
from pathlib import Path

import pyarrow as pa
import pytest
from effect_probes import reward_table, rollout_table

from data.schema import REWARD, ROLLOUT, conform
from data.store import RunStore
from flows.cli.main import main
from relax_core.config.options import with_options
from relax_core.config.run_file import dump
from relax_core.config.sections import RelaxConfig
from relax_core.rewards.sandbox.run import hindrance

PAGE = (Path(__file__).parents[2] / "docs/how-to/develop-a-reward.md").read_text()
SHELL = [text.splitlines() for text in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)]
SHOWN = [text.splitlines() for text in re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)]

FUNCTION = "def reward(sample):\n    return float(sample.response.rstrip('.').endswith(str(sample.label)))\n"
PROGRAM = "```python\ndef add(a, b):\n    return a + b\n```\n"


def recorded(url: str, step: int) -> None:
    """32 samples to the label 5, of which 8 were scored 1. The right answers, 10 of them, are those 8 but for the last,
    and 3 more: scored again, 3 go up and 1 goes down."""
    count, right = 32, {6, 7, 8, *range(24, 31)}
    ids = [f"{step:06d}-{place // 4:04d}-{place % 4:03d}" for place in range(count)]
    columns = {
        "sample_id": pa.array(ids),
        "group_id": pa.array([name[:11] for name in ids]),
        "response": pa.array(["5" if place in right else "6" for place in range(count)]),
        "label": pa.array(['"5"'] * count),
        "reward": pa.array([float(place >= 24) for place in range(count)], pa.float32()),
    }
    store = RunStore(url)
    for name, table, schema in (("rollout", rollout_table(), ROLLOUT), ("reward", reward_table(), REWARD)):
        many = pa.concat_tables([table.slice(0, 1)] * count)
        for column in columns.keys() & set(many.column_names):
            many = many.set_column(many.column_names.index(column), column, columns[column])
        store.write_table(store.step_path(step, f"{name}.parquet"), conform(many.combine_chunks(), schema))
    config = with_options(RelaxConfig(), {"rm_type": "exact_number"})
    store.write_bytes("config.yaml", dump(config, {"rm_type": "command line"}).encode())


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_reward.py").write_text(FUNCTION)
    Path("response.txt").write_text(PROGRAM)
    recorded("runs/quickstart", 3)
    recorded("memory://bucket/run", 120)


def output(line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a command line prints."""
    words = shlex.split(line.replace("s3://", "memory://"))
    if words[0] == "cat":
        monkeypatch.setattr("sys.stdin", io.StringIO(Path(words[1]).read_text()))
        words = words[3:]
    assert words[0] == "relax"
    assert main(words[1:]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("line", SHELL[0])
def test_every_case_of_the_page_is_scored_1(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if "--rm-type code" in line and hindrance():
        pytest.skip("this machine gives no sandbox")
    told = output(line, capsys, monkeypatch)
    assert told[0] == "score      1"
    if line == SHELL[0][0]:
        assert told[:-1] == SHOWN[0][:-1]
        assert told[-1].split()[0] == SHOWN[0][-1].split()[0] == "seconds"


def test_the_comparison_with_a_recorded_step_looks_like_that_of_the_page(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    [own, other, far] = SHELL[1]
    assert output(own, capsys, monkeypatch)[0].endswith("scored by exact_number (explicit) 32")
    told, shown = output(other, capsys, monkeypatch), SHOWN[1]
    assert told[: len(shown) - 1] == shown[:-1]
    assert shown[-1] == "..."
    assert len(told) == 9  # with the other three
    assert output(far, capsys, monkeypatch)[-1] == "scores.parquet is written."
    assert Path("scores.parquet").is_file()
