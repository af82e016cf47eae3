"""Lines of the actors' own logs that matter."""

import logging
from pathlib import Path

from relax_core.tracking.actor_logs import MOST, ActorLogs, keep_log, telling_lines


def test_what_was_there_before_is_not_told_and_each_line_once_at_a_stage_of_its_actor(tmp_path: Path) -> None:
    engine, trainer = tmp_path / "engine-0.log", tmp_path / "trainer-rank-0.log"
    engine.write_text("an old error\n")
    logs = ActorLogs(tmp_path)
    with engine.open("a") as log:
        log.write("KV cache pool is full. Retract requests. #retracted_reqs: 1\nDecode batch, #running-req: 4\n")
    trainer.write_text("WARNING megatron: loss is nan\n")
    assert logs.after("reward") == []
    assert [str(line) for line in logs.after("generate")] == [
        "engine-0: KV cache pool is full. Retract requests. #retracted_reqs: 1"
    ]
    assert [str(line) for line in logs.after("train")] == ["trainer-rank-0: WARNING megatron: loss is nan"]
    assert logs.after("generate") == logs.after("train") == logs.after("commit") == []


def test_a_line_that_is_still_being_written_waits(tmp_path: Path) -> None:
    logs, path = ActorLogs(tmp_path), tmp_path / "engine-0.log"
    path.write_text("Error: half")
    assert logs.after("generate") == []
    path.write_text("Error: half a line\n")
    assert [line.text for line in logs.after("generate")] == ["Error: half a line"]


def test_a_log_that_nobody_knows_is_read_at_the_end_of_the_step(tmp_path: Path) -> None:
    logs = ActorLogs(tmp_path)
    (tmp_path / "proxy.log").write_text("connection refused\n")
    assert logs.after("train") == []
    assert [line.who for line in logs.after("commit")] == ["proxy"]


def test_a_log_that_was_begun_anew_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "engine-0.log"
    path.write_text("x" * 100 + "\n")
    logs = ActorLogs(tmp_path)
    path.write_text("an error\n")
    assert [line.text for line in logs.after("generate")] == ["an error"]


def test_repeated_lines_are_one_and_noise_is_none() -> None:
    text = "\n".join(
        [
            "[2026-11-30 11:30:23] \x1b[1;33mtimeout of request 17\x1b[0m",
            "[2026-11-30 11:30:24] \x1b[1;33mtimeout of request 18\x1b[0m",
            "/site-packages/x.py:53: UserWarning: Only CUDA supports it.",
            '  warnings.warn("error")',
            "Traceback (most recent call last):",
            '  File "x.py", line 1, in error',
            "RuntimeError: boom",
            'INFO: 127.0.0.1 - "POST /generate HTTP/1.1" 200 OK',
        ]
    )
    assert [(line.text, line.times, line.error) for line in telling_lines("e", text)] == [
        ("[2026-11-30 11:30:24] timeout of request 18", 2, False),
        ("RuntimeError: boom", 1, True),
    ]


def test_a_flood_is_cut_with_errors_first(tmp_path: Path) -> None:
    logs = ActorLogs(tmp_path)
    kinds = [f"warning {'abcdefghijklmnopqrstuvwxyz'[at]}" for at in range(26)]
    (tmp_path / "engine-0.log").write_text("\n".join([*kinds, "an error at the end", ""]))
    found = logs.after("generate")
    assert len(found) == MOST
    assert "an error at the end" in found[-2].text
    assert found[-1].text == f"16 further kinds of lines; all are in {tmp_path}"  # 27 kinds, 11 shown


def test_no_folder_is_no_line(tmp_path: Path) -> None:
    assert ActorLogs(tmp_path / "missing").after("generate") == []


def test_a_process_keeps_its_warnings_in_the_run_directory(tmp_path: Path) -> None:
    before = list(logging.getLogger().handlers)
    keep_log(str(tmp_path / "run"), "trainer-rank-0")
    (added,) = [handler for handler in logging.getLogger().handlers if handler not in before]
    try:
        logging.getLogger("megatron.core").warning("the loss is nan")
        logging.getLogger("megatron.core").info("not this")
    finally:
        logging.getLogger().removeHandler(added)
        added.close()
    (line,) = (tmp_path / "run/logs/trainer-rank-0.log").read_text().splitlines()
    assert line.endswith("] WARNING megatron.core: the loss is nan")


def test_a_run_elsewhere_keeps_no_log_here() -> None:
    before = list(logging.getLogger().handlers)
    keep_log("memory://run", "trainer-rank-0")
    keep_log(None, "trainer-rank-0")
    assert logging.getLogger().handlers == before
