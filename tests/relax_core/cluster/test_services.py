"""Standing services: started once, found again, ended by process id."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from data.errors import UserError
from relax_core.cluster import services


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RELAX_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def spawn(own_home: Path, seconds: int = 60) -> services.Service:
    own_home.mkdir(exist_ok=True)
    process = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds})"])
    created = psutil.Process(process.pid).create_time()
    service = services.Service("ray", "127.0.0.1:1", process.pid, created, "")
    services._record({"ray": service})
    return service


def test_a_recorded_service_is_used_again_and_ended_by_stop(own_home: Path) -> None:
    service = spawn(own_home)
    assert services.start_ray() == service
    assert services.stop() == [service]
    assert not service.alive()
    assert services.recorded() == {}


def test_a_dead_service_is_not_found(own_home: Path) -> None:
    service = spawn(own_home)
    psutil.Process(service.pid).kill()
    psutil.Process(service.pid).wait()
    assert services.recorded() == {}


def test_a_process_id_that_was_given_to_another_program_is_left_alone(own_home: Path) -> None:
    service = spawn(own_home)
    other = services.Service("ray", service.address, service.pid, service.created - 1000, "")
    services._record({"ray": other})
    assert services.stop() == []
    assert service.alive()
    psutil.Process(service.pid).kill()


def test_a_damaged_record_counts_as_none(own_home: Path) -> None:
    own_home.mkdir()
    (own_home / "services.json").write_text("{")
    assert services.recorded() == {}


def test_a_port_in_use_is_an_error_that_names_option_and_port(own_home: Path) -> None:
    import socket

    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(UserError, match=f"--prefect-port {port}: the port is in use"):
            services.start_prefect(port)


def test_a_service_that_ends_at_once_shows_the_end_of_its_log(own_home: Path) -> None:
    own_home.mkdir()
    command = [sys.executable, "-c", "print('cannot do this'); raise SystemExit(1)"]
    with pytest.raises(UserError, match=r"ended at once(?s:.*)cannot do this"):
        services._spawn("thing", command, "", {}, lambda: False)


@pytest.mark.parametrize("own", [None, "30"])
def test_who_has_lost_rays_head_is_told_soon_unless_the_user_wants_it_otherwise(
    own: str | None, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "RAY_gcs_rpc_server_reconnect_timeout_s"
    monkeypatch.delenv(name, raising=False)
    if own:
        monkeypatch.setenv(name, own)
    command = [sys.executable, "-c", f"import os, time; print(os.environ['{name}'], flush=True); time.sleep(60)"]
    service = services._spawn("some", command, "", {}, lambda: "\n" in (own_home / "some.log").read_text())
    services._end(service.pid)
    assert (own_home / "some.log").read_text() == f"{own or 10}\n"


def test_ray_knows_the_variables_that_are_set_for_it() -> None:
    """Ray ignores a variable that it does not know: those of its C++ part are in the library's text."""
    import ray._raylet

    assert b"RAY_gcs_rpc_server_reconnect_timeout_s" in Path(ray._raylet.__file__).read_bytes()
