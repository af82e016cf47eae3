"""Meeting places of torch's processes."""

import importlib
import os
import socket
from datetime import timedelta

import psutil
import pytest
import torch.distributed as dist

from relax_core.cluster.ports import own_address
from relax_core.engines.meeting import meeting_place, stay_local, store_at

SECONDS = timedelta(seconds=30)


def listening() -> set[tuple[str, int]]:
    return {
        (one.laddr.ip, one.laddr.port)
        for one in psutil.Process().net_connections("inet")
        if one.status == psutil.CONN_LISTEN
    }


def test_a_store_listens_on_loopback_alone_and_others_find_it() -> None:
    before = listening()
    master = store_at("127.0.0.1", 0, None, True, SECONDS)
    assert {address for address, _ in listening() - before} == {"127.0.0.1"}
    other = store_at("127.0.0.1", master.port, None, False, SECONDS)
    master.set("key", "value")
    assert other.get("key") == b"value"


def test_a_chosen_meeting_place_is_held_until_the_processes_meet() -> None:
    before = listening()
    address = meeting_place("127.0.0.1")
    port = int(address.rpartition(":")[2])
    assert listening() - before == {("127.0.0.1", port)}
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    master = store_at("127.0.0.1", port, None, True, SECONDS)
    assert master.port == port
    assert listening() - before == {("127.0.0.1", port)}  # the same listener


def test_others_reach_a_meeting_place_of_another_address() -> None:
    address = own_address()
    port = int(meeting_place(address).rpartition(":")[2])
    master = store_at(address, port, None, True, SECONDS)
    store_at(address, port, None, False, SECONDS).set("key", "value")
    assert master.get("key") == b"value"


def test_torchs_own_meeting_places_stay_local(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("torch.distributed.rendezvous")
    monkeypatch.setattr(module, "TCPStore", module.TCPStore)  # put back afterwards
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    stay_local()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    before = listening()
    port = store_at("127.0.0.1", 0, None, True, SECONDS).port  # freed at once
    store, rank, size = next(dist.rendezvous(f"tcp://127.0.0.1:{port}", 0, 1, timeout=SECONDS))
    assert (rank, size) == (0, 1)
    assert {address for address, _ in listening() - before} == {"127.0.0.1"}
    assert store.port == port
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
