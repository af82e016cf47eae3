"""`relax up`, `status` and `down`, for real."""

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from standing import Standing

from relax_core.cluster import access, ports, services

pytestmark = [pytest.mark.standing, pytest.mark.e2e]


def listening(pids: list[int]) -> dict[str, set[str]]:
    """Addresses at which processes and all below them listen, by command."""
    found: dict[str, set[str]] = {}
    for root in map(psutil.Process, pids):
        for process in [root, *root.children(recursive=True)]:
            addresses = {one.laddr.ip for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN}
            if addresses:
                found.setdefault(" ".join(process.cmdline())[:80], set()).update(addresses)
    return found


def pids(home: Path) -> dict[str, int]:
    rows = json.loads((home / "services.json").read_text())
    return {name: row["pid"] for name, row in rows.items()}


def test_nothing_listens_beyond_this_machine(standing: Standing) -> None:
    found = listening(list(pids(standing.home).values()))
    assert len(found) > 5  # the server, the head's store, its raylet, agents
    assert {name: where for name, where in found.items() if where - {"127.0.0.1", "::ffff:127.0.0.1"}} == {}


def test_what_was_killed_comes_back_where_it_was_and_the_rest_is_left(standing: Standing) -> None:
    before = pids(standing.home)
    assert sorted(before) == ["prefect", "ray", "worker"]
    for name in ("prefect", "worker"):
        process = psutil.Process(before[name])
        process.kill()
        process.wait(10)
    told = standing.relax("up", check=True).stdout
    after = pids(standing.home)
    assert f"ray      stands already: {address(standing, 'ray')} (process {before['ray']}" in told
    assert after["ray"] == before["ray"]
    assert {name for name in after if after[name] != before[name]} == {"prefect", "worker"}
    assert address(standing, "prefect") == standing.api  # the port of before
    assert f"UI       {standing.ui}" in told
    assert f"folder   {standing.folder}" in told


def address(standing: Standing, name: str) -> str:
    return str(json.loads((standing.home / "services.json").read_text())[name]["address"])


def test_status_shows_services_memory_and_the_worker(standing: Standing) -> None:
    found = json.loads(standing.relax("status", "--json", check=True).stdout)
    assert {row["name"]: row["alive"] for row in found["services"]} == dict.fromkeys(("ray", "prefect", "worker"), True)
    assert all(row["memory"] > 10 * 2**20 for row in found["services"])
    assert [one["status"] for one in found["queue"]["workers"]].count("ONLINE") >= 1
    assert "problem" not in found["queue"]
    text = standing.relax("status", check=True).stdout
    assert f"worker   in {standing.folder}" in text


@pytest.fixture(scope="module")
def open_services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, services.Service]]:
    """A head and a server that other machines reach."""
    host = ports.own_address()
    if ports.is_loopback(host):
        pytest.skip("this machine has no other address than loopback")
    home = tmp_path_factory.mktemp("open")
    (home / "prefect").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        for name in [*os.environ]:
            if name.startswith(("PREFECT_", "RAY_")):
                patch.delenv(name)
        patch.setenv("RELAX_HOME", str(home))
        patch.setenv("PREFECT_HOME", str(home / "prefect"))
        try:
            with ThreadPoolExecutor(2) as pool:
                starts = [pool.submit(services.start_ray, host=host), pool.submit(services.start_prefect, host=host)]
                found = {service.name: service for service in [start.result() for start in starts]}
            yield found
        finally:
            services.stop()


def test_beyond_this_machine_prefect_wants_its_password(open_services: dict[str, services.Service]) -> None:
    server = open_services["prefect"]
    asked = urllib.request.Request(f"{server.address}/flow_runs/count", b"{}", {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with pytest.raises(urllib.error.HTTPError) as refused:
        opener.open(asked, timeout=30)
    assert refused.value.code == 401
    asked.add_header("Authorization", access.basic("relax:wrong"))
    with pytest.raises(urllib.error.HTTPError) as wrong:
        opener.open(asked, timeout=30)
    assert wrong.value.code == 401
    assert services.ask(server, "flow_runs/count", {}, timeout=30) == 0


def test_beyond_this_machine_ray_refuses_who_has_no_token(open_services: dict[str, services.Service]) -> None:
    grpc = pytest.importorskip("grpc")
    for metadata in ((), (("authorization", "Bearer wrong"),)):
        with grpc.insecure_channel(open_services["ray"].address) as channel:
            call = channel.unary_unary("/ray.rpc.NodeInfoGcsService/GetAllNodeInfo")
            with pytest.raises(grpc.RpcError) as refused:
                call(b"", metadata=metadata, timeout=30)
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED


def test_on_the_machine_itself_status_is_let_in_by_itself(
    open_services: dict[str, services.Service], tmp_path: Path
) -> None:
    import subprocess

    command = [str(Path(sys.executable).with_name("relax")), "status", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    found: dict[str, Any] = json.loads(done.stdout)
    assert {row["name"]: row["protected"] for row in found["services"]} == {"ray": True, "prefect": True}
    assert found["actors"] == []  # a head that refuses would be a line here
    assert "401" not in str(found["queue"])
