"""Starting a server process, without SGLang."""

import socket

import pytest

from data.errors import UserError
from relax_core.engines import process as module
from relax_core.engines.errors import EngineStartError
from relax_core.engines.process import EngineProcess
from relax_core.engines.spec import EngineSpec


def spec(tmp_path, **fields) -> EngineSpec:
    defaults = {"index": 2, "device": "cpu", "model": "m", "arguments": (), "environment": ()}
    return EngineSpec(**defaults | {"log_path": str(tmp_path / "engine.log"), "start_timeout": 20.0} | fields)


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Let a script take the place of the server."""

    def put(script: str) -> None:
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(module.sys, "executable", str(program))

    return put


def test_a_fixed_port_in_use_is_named(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=f"127.0.0.1:{port}.*in use"):
            EngineProcess(spec(tmp_path, port=port)).start()


def test_the_error_has_the_reason_and_the_end_of_this_starts_log(tmp_path, stand_in):
    (tmp_path / "engine.log").write_text("of an earlier start\n")
    stand_in("echo first; echo 'ValueError: no such model'; echo last; exit 3")
    process = EngineProcess(spec(tmp_path))
    with pytest.raises(EngineStartError) as raised:
        process.start()
    assert raised.value.problem == "engine 2 died while starting: ValueError: no such model."
    assert raised.value.details.endswith("ValueError: no such model\nlast")
    assert "earlier" not in raised.value.details
    assert process.pid is None


def test_a_start_without_a_word_says_how_it_ended(tmp_path, stand_in):
    stand_in("kill -9 $$")
    with pytest.raises(EngineStartError, match=r"SIGKILL \(out of memory\?\)"):
        EngineProcess(spec(tmp_path)).start()


def test_a_server_that_does_not_answer_is_ended_with_all_its_children(tmp_path, stand_in):
    stand_in("sleep 300 & echo $! > $PIDS; wait")
    pids = tmp_path / "pids"
    process = EngineProcess(spec(tmp_path, start_timeout=1.5, environment=(("PIDS", str(pids)),)))
    with pytest.raises(EngineStartError, match=r"did not answer within 1.5 s.*--engine-start-timeout"):
        process.start()
    assert not (tmp_path / "proc").exists()
    with pytest.raises(ProcessLookupError):
        module.os.kill(int(pids.read_text()), 0)


def test_a_port_taken_meanwhile_is_changed_for_another(tmp_path, stand_in):
    tries = tmp_path / "tries"
    stand_in('echo x >> $TRIES; echo "OSError: [Errno 98] address already in use"; exit 1')
    with pytest.raises(EngineStartError, match="already in use"):
        EngineProcess(spec(tmp_path, environment=(("TRIES", str(tries)),))).start()
    assert len(tries.read_text().split()) == module.PORT_ATTEMPTS


def test_a_log_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/engine\.log"):
        EngineProcess(spec(tmp_path, log_path=str(tmp_path / "file" / "engine.log"))).start()


def test_stopping_what_was_never_started_does_nothing(tmp_path):
    EngineProcess(spec(tmp_path)).stop()
