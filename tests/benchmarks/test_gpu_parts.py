"""The one command for a GPU machine: parts that fail or hang, what a second call does, and the table."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu"

PROGRAMS = {
    "well.py": """
        import json, sys
        out = sys.argv[sys.argv.index("--out") + 1]
        print("words", sys.argv[3:])
        open(f"{out}/well.json", "w").write(json.dumps({"rows": [["speed | of it", 3, "at least 2"], ["other", "x"]]}))
    """,
    "bad.py": """
        import json, sys
        open(f"{sys.argv[2]}/bad.json", "w").write(json.dumps({"rows": [["half of it", "1", "2"]]}))
        sys.exit(3)
    """,
    "silent.py": "",
    # starts a process of its own session, as Ray's daemons are, writes its id, and hangs
    "hangs.py": """
        import os, subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        open(f"{sys.argv[2]}/pid", "w").write(str(child.pid))
        time.sleep(600)
    """,
}

DRIVER = """
    import sys
    sys.path.insert(0, sys.argv[1])
    import parts, table
    from pathlib import Path
    programs, out, again = Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4] == "again"
    parts.GRACE = 2.0
    made = (
        parts.Part("first", "well.py", ("--fast",), always=("--to", "{out}")),
        parts.Part("bad", "bad.py"),
        parts.Part("silent", "silent.py"),
        parts.Part("hangs", "hangs.py", seconds=3),
        parts.Part("nowhere", "nowhere.py"),
        parts.Part("two", "well.py", gpus=2),
    )
    failed = parts.run(made, out, gpus=1, again=again, programs=programs)
    table.write(out, made)
    sys.exit(int(failed))
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list["subprocess.CompletedProcess[str]"]]:
    """The folder of the results, and what two calls printed; the runner may end all processes below its own."""
    folder = tmp_path_factory.mktemp("parts")
    (folder / "programs").mkdir()
    (folder / "out").mkdir()
    for name, text in PROGRAMS.items():
        (folder / "programs" / name).write_text(textwrap.dedent(text))
    command = [sys.executable, "-c", textwrap.dedent(DRIVER), FOLDER, folder / "programs", folder / "out"]
    calls = []
    for _ in range(2):
        call = subprocess.run([*command, "no"], capture_output=True, text=True, timeout=60)
        assert "Traceback" not in call.stderr, call.stderr
        calls.append(call)
        for name in ("silent.py", "hangs.py"):  # the second time without them
            (folder / "programs" / name).write_text(textwrap.dedent(PROGRAMS["well.py"]).replace("well", name[:-3]))
    return folder / "out", calls


def test_a_part_that_fails_or_hangs_does_not_stop_the_others(ran):
    _, (first, _) = ran
    assert first.returncode == 1
    assert "first: well" in first.stdout
    assert "bad: FAILED, ended with 3" in first.stdout
    assert "silent: FAILED, no silent.json came out" in first.stdout
    assert "hangs: FAILED, not ready after 3 s" in first.stdout
    assert "nowhere: FAILED, there is no nowhere.py" in first.stdout
    assert "two: needs 2 GPUs" in first.stdout


def test_a_hung_part_ends_with_what_it_started(ran):
    pid = (ran[0] / "hangs" / "pid").read_text()
    stat = Path(f"/proc/{pid}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_second_call_runs_what_is_not_finished(ran):
    out, (_, second) = ran
    assert "first: finished before" in second.stdout
    assert "hangs: well" in second.stdout
    assert not (out / "hangs.failed").exists()
    assert (out / "bad.failed").read_text() == "ended with 3\n"


def test_a_part_gets_its_arguments_and_a_log(ran):
    out, _ = ran
    assert (out / "logs" / "first.log").read_text() == f"words ['--to', '{out / 'first'}', '--fast']\n"


def test_the_table_has_every_row_and_says_what_failed_and_what_was_not_run(ran):
    out, _ = ran
    lines = (out / "table.md").read_text().splitlines()
    assert lines[0].startswith("GPUs: ")
    assert lines[2:4] == ["| What | Seen | Goal | Command |", "|---|---|---|---|"]
    assert lines[4:] == [
        r"| speed \| of it | 3 | at least 2 | well.py --to OUT --fast |",
        "| other | x | - | well.py --to OUT --fast |",
        "| half of it | 1 | 2 | bad.py |",
        "| bad | failed: ended with 3; see logs/bad.log | - | bad.py |",
        r"| speed \| of it | 3 | at least 2 | silent.py |",
        "| other | x | - | silent.py |",
        r"| speed \| of it | 3 | at least 2 | hangs.py |",
        "| other | x | - | hangs.py |",
        "| nowhere | failed: there is no nowhere.py; see logs/nowhere.log | - | nowhere.py |",
        "| two | not run | - | well.py |",
    ]


def test_results_of_further_programs_and_the_machine_are_in_the_table(tmp_path: Path):
    (tmp_path / "machine.json").write_text(json.dumps({"GPUs": "2 x H200"}))
    (tmp_path / "other.json").write_text(json.dumps({"rows": [["a", "b", "c"]]}))
    (tmp_path / "broken.json").write_text("{")
    command = [sys.executable, str(FOLDER / "table.py"), str(tmp_path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown == (tmp_path / "table.md").read_text()
    assert shown.startswith("GPUs: 2 x H200.\n")
    assert "| a | b | c | other.py |" in shown
    assert "| broken | no rows in broken.json | - | broken.py |" in shown


def test_every_part_has_its_program_and_takes_ten_minutes_at_most_but_learning():
    shown = subprocess.run(
        ["bash", str(FOLDER / "all.sh"), "--list"], capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()
    assert len(shown) >= 9
    for line in shown:
        name, _, _, _, _, seconds, _, program, *_ = line.split()
        assert (FOLDER / program).exists()
        assert int(seconds) < 600 or name == "learning"


def test_an_unknown_part_is_refused():
    command = ["python3", str(FOLDER / "parts.py"), "--only", "colocate,speed"]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode == 2
    assert "no part speed; there are trainer_speed," in refused.stderr


def test_an_only_without_a_name_and_a_folder_that_cannot_be_written_are_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    for words, reason in (
        (["--only", ","], "--only names no part"),
        (["--out", str(tmp_path / "file"), "--only", "numerics"], "file cannot be written: File exists"),
    ):
        command = ["python3", str(FOLDER / "parts.py"), "--rehearse", *words]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert refused.returncode == 2
        assert reason in refused.stderr
        assert "Traceback" not in refused.stderr


def test_files_that_cannot_be_read_have_a_row_that_says_so(tmp_path: Path):
    (tmp_path / "machine.json").write_text("{")
    (tmp_path / "numerics.json").write_bytes(b"\xff\xfe")
    (tmp_path / "generation.json").mkdir()
    (tmp_path / "other.json").write_text('{"rows": "abc"}')
    command = [sys.executable, str(FOLDER / "table.py"), str(tmp_path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.startswith("the machine is not known")
    for name in ("numerics", "generation", "other"):
        assert f"| {name} | no rows in {name}.json | - |" in shown
