"""Meeting places of torch's processes.

Guarantee: a store whose address is 127.0.0.1 listens there alone; torch by itself would listen at all addresses of the
machine. From the choice of a port on it is held, so that nobody else can take it before the processes meet.
"""

import importlib
import os
import socket
from datetime import timedelta
from typing import Any

LOOPBACK = "127.0.0.1"


_held: dict[int, socket.socket] = {}
"""What :func:`meeting_place` listens with until the store takes it over, by port."""


def meeting_place(host: str) -> str:
    """``tcp://HOST:PORT``, where this process listens from now on; its own :func:`store_at` takes that over.

    Args:
        host: address of this machine by which the others reach it.
    """
    listener = _listen(host, 0)
    port = int(listener.getsockname()[1])
    _held[port] = listener
    return f"tcp://{host}:{port}"


def store_at(host_name: str, port: int, world_size: int | None, is_master: bool, timeout: timedelta) -> Any:
    """A ``TCPStore``; one at 127.0.0.1 is reached from this machine alone.

    Args:
        is_master: listen, at a free port where it is 0; the others connect.

    Raises:
        OSError: the port is taken.
    """
    from torch.distributed import TCPStore

    if not is_master:
        return TCPStore(host_name, port, world_size, False, timeout)
    listener = _held.pop(port, None) or _listen(host_name, port)
    number = listener.getsockname()[1]
    return TCPStore(host_name, number, world_size, True, timeout, master_listen_fd=listener.detach())  # it closes it


def _listen(host: str, port: int) -> socket.socket:
    if host != LOOPBACK and socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=socket.SOMAXCONN, dualstack_ipv6=True)
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host if host == LOOPBACK else "", port))
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        raise
    return listener


def stay_local() -> None:
    """From now on in this process, stores that torch makes for ``tcp://127.0.0.1:PORT`` are such ones, and gloo talks
    over loopback."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    module = importlib.import_module("torch.distributed.rendezvous")
    original = module.TCPStore

    def store(host_name: str, port: int, world_size: int | None = None, is_master: bool = False, **more: Any) -> Any:
        if is_master and host_name == LOOPBACK:
            return store_at(host_name, port, world_size, True, more["timeout"])
        return original(host_name=host_name, port=port, world_size=world_size, is_master=is_master, **more)

    module.TCPStore = store  # type: ignore[attr-defined]
