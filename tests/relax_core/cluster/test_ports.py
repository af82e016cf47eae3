"""Addresses and ports of the standing services."""

import random
import socket

import pytest

from data.errors import UserError
from relax_core.cluster import ports


def test_without_host_only_this_machine_is_served() -> None:
    for host in (None, "127.0.0.1", "localhost"):
        assert ports.listening_address(host) == "127.0.0.1"


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(UserError, match=r"--host 198\.51\.100\.7: not an address of this machine"):
        ports.listening_address("198.51.100.7")  # of no machine, by definition


def test_all_addresses_are_told_as_one_that_others_can_use() -> None:
    assert ports.listening_address("0.0.0.0") == "0.0.0.0"
    assert ports.reachable("0.0.0.0") == ports.own_address() != "0.0.0.0"
    assert ports.reachable("192.0.2.7") == "192.0.2.7"


def test_a_range_gives_each_listener_a_port_of_its_own() -> None:
    chosen = ports.PortRange.parse("20000-20049")
    values = [argument.partition("=")[2] for argument in chosen.arguments] + list(chosen.variables.values())
    assert len(set(values)) == len(values)
    assert {int(value) for value in values} <= set(range(20000, 20050))
    # 9 listeners at 20000 to 20008, so workers have what follows
    assert "--min-worker-port=20009" in chosen.arguments
    assert "--max-worker-port=20049" in chosen.arguments


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("20000", "expects FIRST-LAST"),
        ("a-b", "expects FIRST-LAST"),
        ("80-200", "expects 1024 to 65535"),
        ("20100-20000", "the smaller first"),
        ("60000-70000", "expects 1024 to 65535"),
        ("20000-20023", "needs 25 ports"),
    ],
)
def test_a_bad_range_says_why(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ports.PortRange.parse(text)


def test_free_ports_are_different_ones_that_no_connection_is_given() -> None:
    found = ports.free_ports(5)
    assert len(set(found)) == 5
    assert all(21000 <= port < 30000 for port in found)


def test_a_port_that_is_spoken_for_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = ports.free_ports(2)
    monkeypatch.setattr(ports, "_CHOICE", (one, other))
    monkeypatch.setattr(ports, "_TRIES", 2)
    assert ports.free_ports(1, besides=one) == [other]


def test_a_port_that_is_taken_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        taken = holder.getsockname()[1]
        monkeypatch.setattr(ports, "_CHOICE", range(taken, taken + 1))
        monkeypatch.setattr(ports, "_TRIES", 1)
        # the only candidate is held, so the system chooses
        assert ports.free_port() != taken


def test_a_free_port_of_another_machine_is_an_error() -> None:
    with pytest.raises(OSError, match="assign requested address"):
        ports.free_port("198.51.100.7")  # of no machine, by definition


def test_a_run_that_seeds_its_generator_does_not_choose_the_ports() -> None:
    random.seed(7)
    first = ports.free_ports(3)
    random.seed(7)
    assert ports.free_ports(3) != first  # alike by chance once in 10^12
