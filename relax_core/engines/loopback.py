"""Meeting places of torch's processes on loopback.

Guarantee: a store whose address is 127.0.0.1 listens there alone; torch by itself would listen at all addresses of the
machine. Any other address is torch's own business.
"""

import importlib
import os
import socket
from datetime import timedelta
from typing import Any

LOOPBACK = "127.0.0.1"


def local_store(host_name: str, port: int, world_size: int | None, is_master: bool, timeout: timedelta) -> Any:
    """A ``TCPStore`` at an address of this machine alone.

    Args:
        is_master: listen; the others connect.

    Raises:
        OSError: the port is taken.
    """
    from torch.distributed import TCPStore

    if not is_master:
        return TCPStore(host_name, port, world_size, False, timeout)
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host_name, port))
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        raise
    number = listener.getsockname()[1]
    return TCPStore(host_name, number, world_size, True, timeout, master_listen_fd=listener.detach())  # it closes it


def stay_local() -> None:
    """From now on in this process, stores that torch makes for ``tcp://127.0.0.1:PORT`` are such ones, and gloo talks
    over loopback."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    module = importlib.import_module("torch.distributed.rendezvous")
    original = module.TCPStore

    def store(host_name: str, port: int, world_size: int | None = None, is_master: bool = False, **more: Any) -> Any:
        if is_master and host_name == LOOPBACK:
            return local_store(host_name, port, world_size, True, more["timeout"])
        return original(host_name=host_name, port=port, world_size=world_size, is_master=is_master, **more)

    module.TCPStore = store  # type: ignore[attr-defined]
