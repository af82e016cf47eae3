"""Standing services: started once, found again, ended by process id."""

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from data.errors import UserError
from relax_core.cluster import ports, services


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RELAX_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def spawn(own_home: Path, seconds: int = 60) -> services.Service:
    own_home.mkdir(exist_ok=True)
    process = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds})"])
    created = psutil.Process(process.pid).create_time()
    service = services.Service("ray", "127.0.0.1:1", process.pid, created, "")
    services.record({"ray": service})
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
    services.record({"ray": other})
    assert services.stop() == []
    assert service.alive()
    psutil.Process(service.pid).kill()


@pytest.mark.parametrize(
    "record",
    [
        *(b"{", b"[]", b"\xff\xfe", b'{"ray": 5}'),
        b'{"ray": {"name": "ray", "address": "127.0.0.1:1", "pid": "a", "created": "b", "log": ""}}',
        b'{"ray": {"name": "ray", "address": "127.0.0.1:x", "pid": -1, "created": 0, "log": ""}}',
    ],
)
def test_a_damaged_record_counts_as_none(own_home: Path, record: bytes) -> None:
    own_home.mkdir()
    (own_home / "services.json").write_bytes(record)
    assert services.recorded() == {}


def test_a_home_that_cannot_be_made_is_told(own_home: Path) -> None:
    own_home.write_text("")
    with pytest.raises(UserError, match=r"RELAX_HOME .* cannot be made"):
        services.recorded()


def test_a_port_in_use_is_an_error_that_names_option_and_port(own_home: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(UserError, match=f"--prefect-port {port}: the port is in use"):
            services.start_prefect(port)


def dead(name: str, address: str, **facts: Any) -> services.Service:
    """A service as it is remembered after its process has died."""
    service = services.Service(name, address, 1, 0.0, "", **facts)
    services.record({**services.remembered(), name: service})
    return service


class Started(Exception):
    """Instead of a process: its command and environment."""

    def __init__(self, command: list[str], env: dict[str, str], **facts: Any) -> None:
        self.command, self.env, self.facts = " ".join(command), env, facts


@pytest.fixture
def spawned(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def spawn(name: str, command: list[str], address: str, env: dict[str, str], ready: Any, **facts: Any) -> None:
        raise Started(command, env, address=address, **facts)

    monkeypatch.setattr(services, "_spawn", spawn)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "PREFECT_SERVER_API_AUTH_STRING"):
        monkeypatch.delenv(name, raising=False)


def test_a_service_that_died_is_started_again_where_it_was(spawned: None) -> None:
    port = ports.free_port()
    dead("prefect", f"http://127.0.0.1:{port}/api")
    with pytest.raises(Started) as started:
        services.start_prefect()
    assert f"--host 127.0.0.1 --port {port}" in started.value.command


def test_what_died_behind_a_password_is_never_started_again_without_one(
    spawned: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "listening_address", str)
    monkeypatch.setattr(services, "require_free", lambda *asked: None)
    monkeypatch.setattr(services, "free_port", lambda host: 6379)
    dead("prefect", "http://192.0.2.7:4200/api", host="192.0.2.7", protected=True)
    with pytest.raises(Started) as started:
        services.start_prefect()
    assert "--host 192.0.2.7 --port 4200" in started.value.command
    assert started.value.env["PREFECT_SERVER_API_AUTH_STRING"].startswith("relax:")
    assert started.value.facts == {"address": "http://192.0.2.7:4200/api", "host": "192.0.2.7", "protected": True}
    with pytest.raises(Started) as other:  # and the head is where the server was
        services.start_ray()
    assert "--node-ip-address=192.0.2.7" in other.value.command
    assert other.value.env[services.LOCAL_ONLY] == "1"
    assert other.value.env["RAY_AUTH_MODE"] == "token"


def test_a_head_of_this_machine_keeps_to_loopback_and_asks_for_a_token(spawned: None, own_home: Path) -> None:
    with pytest.raises(Started) as started:
        services.start_ray(6379)
    assert "--node-ip-address=127.0.0.1 --port=6379" in started.value.command
    assert started.value.env[services.LOCAL_ONLY] == "0"
    token = Path(started.value.env["RAY_AUTH_TOKEN_PATH"])
    assert started.value.env["RAY_AUTH_MODE"] == "token"
    assert len(token.read_text()) == 64
    assert token.stat().st_mode & 0o777 == 0o600


def test_a_token_is_left_out_only_on_loopback(spawned: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.raises(Started) as started:
        services.start_ray()
    assert started.value.env["RAY_AUTH_MODE"] == "disabled"
    monkeypatch.setattr(services, "listening_address", str)
    monkeypatch.setattr(services, "require_free", lambda *asked: None)
    with pytest.raises(Started) as beyond:
        services.start_ray(6379, host="192.0.2.7")
    assert beyond.value.env["RAY_AUTH_MODE"] == "token"


@pytest.mark.parametrize("where", [{"port": 4200}, {"host": "192.0.2.7"}])
def test_what_stands_elsewhere_than_asked_for_is_an_error(
    where: dict[str, Any], own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "listening_address", str)
    service = spawn(own_home)
    with pytest.raises(UserError, match=r"stands (at port 1 )?already"):
        services.start_ray(**where)
    assert service.alive()
    services.stop()


def test_the_worker_asks_often_and_works_where_it_was_started(spawned: None, own_home: Path) -> None:
    server = services.Service("prefect", "http://127.0.0.1:4200/api", 1, 0.0, "")
    with pytest.raises(Started) as started:
        services.start_worker(server, "/some/folder")
    assert "worker start --pool relax --type process" in started.value.command
    assert started.value.env == {"PREFECT_API_URL": server.address, "PREFECT_WORKER_QUERY_SECONDS": "2"}
    assert started.value.facts["folder"] == "/some/folder"


def test_every_service_gets_this_home_whatever_folder_it_runs_in(own_home: Path) -> None:
    assert services.service_environment({"A": "b"}).items() >= {"A": "b", "RELAX_HOME": str(own_home)}.items()


def test_services_are_ended_in_order_and_one_alone_where_asked(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services.Service, "alive", lambda service: True)
    ended: list[int] = []
    monkeypatch.setattr(services, "_end", ended.append)
    rows = {name: services.Service(name, "", number, 0.0, "") for number, name in enumerate(services.NAMES)}
    services.record(rows)
    assert [service.name for service in services.stop(["prefect"])] == ["prefect"]
    assert [service.name for service in services.stop()] == ["worker", "ray"]
    assert ended == [1, 2, 0]


def test_a_log_of_before_is_kept(own_home: Path) -> None:
    for text in ("first", "second"):
        command = [sys.executable, "-c", f"print('{text}'); raise SystemExit(1)"]
        with pytest.raises(UserError):
            services._spawn("thing", command, "", {}, lambda: False)
    log = services.log_of("thing")
    assert (log.read_text(), log.with_name("thing.log.1").read_text()) == ("second\n", "first\n")


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
    service = services._spawn("some", command, "", {}, lambda: "\n" in services.log_of("some").read_text())
    services._end(service.pid)
    assert services.log_of("some").read_text() == f"{own or 10}\n"


def test_ray_knows_the_variables_that_are_set_for_it() -> None:
    """Ray ignores a variable that it does not know: those of its C++ part are in the library's text."""
    import ray._raylet

    assert b"RAY_gcs_rpc_server_reconnect_timeout_s" in Path(ray._raylet.__file__).read_bytes()
    for name in (b"RAY_AUTH_MODE", b"RAY_AUTH_TOKEN_PATH"):
        assert name in Path(ray._raylet.__file__).read_bytes()
    from ray._private import ray_constants

    assert services.LOCAL_ONLY == ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR


def test_a_service_comes_back_where_it_was_also_after_it_was_stopped(
    own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "_end", lambda pid: None)
    port = ports.free_port()
    services.record({"prefect": services.Service("prefect", f"http://127.0.0.1:{port}/api", 0, 0.0, "")})
    services.stop()
    assert services._port("prefect", "--prefect-port", None, "127.0.0.1") == port  # shells still know it
    (own_home / "ports.json").write_text("[")
    assert services._port("prefect", "--prefect-port", None, "127.0.0.1") != 0  # any free one
