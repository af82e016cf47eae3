"""Meeting places of torch's processes."""

import importlib
import os
from datetime import timedelta

import psutil
import pytest
import torch.distributed as dist

from relax_core.engines.loopback import local_store, stay_local

SECONDS = timedelta(seconds=30)


def listening() -> set[tuple[str, int]]:
    return {
        (one.laddr.ip, one.laddr.port)
        for one in psutil.Process().net_connections("inet")
        if one.status == psutil.CONN_LISTEN
    }


def test_a_store_listens_on_loopback_alone_and_others_find_it() -> None:
    before = listening()
    master = local_store("127.0.0.1", 0, None, True, SECONDS)
    assert {address for address, _ in listening() - before} == {"127.0.0.1"}
    other = local_store("127.0.0.1", master.port, None, False, SECONDS)
    master.set("key", "value")
    assert other.get("key") == b"value"


def test_torchs_own_meeting_places_stay_local(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("torch.distributed.rendezvous")
    monkeypatch.setattr(module, "TCPStore", module.TCPStore)  # put back afterwards
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    stay_local()
    assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
    before = listening()
    port = local_store("127.0.0.1", 0, None, True, SECONDS).port  # freed at once
    store, rank, size = next(dist.rendezvous(f"tcp://127.0.0.1:{port}", 0, 1, timeout=SECONDS))
    assert (rank, size) == (0, 1)
    assert {address for address, _ in listening() - before} == {"127.0.0.1"}
    assert store.port == port
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
