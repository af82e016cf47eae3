"""A run's actors are on its driver's machine: in a cluster of two that believe in two GPUs each, and as arithmetic."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from data.errors import NotStarted
from relax_core.cluster import machine

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parents[3]

# The driver is on one machine first, then on the other.
DRIVER = """
import json, sys
import ray
ray.init(address=sys.argv[1], _node_ip_address=sys.argv[2], namespace="relax", log_to_driver=False)
from relax_core.cluster.actors import find, get_or_start
from relax_core.cluster.machine import here, is_here, node_id
from relax_core.cluster.placement import SharedDevices

class Thing:
    def where(self):
        return node_id()

def place(name, gpus):
    return ray.get(get_or_start(Thing, name, num_gpus=gpus, timeout=60, **here())[0].where.remote()) == node_id()

before = find("left")
answer = {"ip": sys.argv[2], "left": before is not None and is_here(before)}
answer["beside"] = [place(f"{sys.argv[2]}-{number}", number) for number in (0, 1)]
if before is None:
    place("left", 0)
ray.kill(find(f"{sys.argv[2]}-1"))
shared = SharedDevices("shared", 2, 60.0)
answer["shared"] = {device.node == node_id() for device in shared._devices} == {True}
print(json.dumps(answer))
"""

CLUSTER = """
import subprocess, sys
from ray.cluster_utils import Cluster

size = {"num_cpus": 4, "num_gpus": 2, "object_store_memory": 80 * 1024**2}
places = ("127.0.0.2", "127.0.0.3")
head = {**size, "node_ip_address": places[0], "include_dashboard": False, "temp_dir": sys.argv[2]}
cluster = Cluster(initialize_head=True, head_node_args=head)
try:
    cluster.add_node(**size, node_ip_address=places[1])
    for place in places:
        subprocess.run([sys.executable, "-c", sys.argv[1], cluster.address, place], check=True)
finally:
    cluster.shutdown()
"""


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the two drivers found."""
    quiet = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT)}
    own = {"CUDA_VISIBLE_DEVICES": "0,1", "RELAX_HOME": str(tmp_path_factory.mktemp("machine")), **quiet}
    with tempfile.TemporaryDirectory(prefix="relax-") as folder:  # sockets in pytest's would have too long a name
        command = [sys.executable, "-c", CLUSTER, DRIVER, folder]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, env=os.environ | own, timeout=250, check=False
        )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_actors_with_and_without_devices_are_beside_their_driver(drivers: list[dict[str, Any]]) -> None:
    assert [one["beside"] for one in drivers] == [[True, True]] * 2


def test_what_a_driver_left_on_another_machine_is_not_here(drivers: list[dict[str, Any]]) -> None:
    assert drivers[1]["left"] is False


def test_shared_devices_follow_the_driver(drivers: list[dict[str, Any]]) -> None:
    """The second one finds the first one's reservation, of as many devices, on the other machine."""
    assert [one["shared"] for one in drivers] == [True, True]


def cluster_of(*gpus: int) -> SimpleNamespace:
    """As much of Ray as says which machines there are; the driver is on the first."""
    nodes = [{"NodeID": str(number), "Alive": True, "Resources": {"GPU": count}} for number, count in enumerate(gpus)]
    nodes.append({"NodeID": "gone", "Alive": False, "Resources": {"GPU": 8}})
    context = SimpleNamespace(get_node_id=lambda: "0")
    return SimpleNamespace(nodes=lambda: nodes, get_runtime_context=lambda: context)


def test_a_run_that_its_machine_cannot_hold_is_refused_though_the_cluster_could(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "ray", cluster_of(2, 4))
    machine.require_gpus(2)
    with pytest.raises(NotStarted, match="The run needs 3 GPUs, and the driver's machine has 2") as caught:
        machine.require_gpus(3)
    assert "--resource" in str(caught.value)


def test_a_machine_alone_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ray", cluster_of(2))
    machine.require_gpus(3)  # Ray may get to know more of them; the start of the actors tells otherwise
    assert machine.here() == {}


def test_a_driver_without_gpus_in_a_cluster_with_some_is_in_the_wrong_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ray", cluster_of(0, 4))
    with pytest.raises(NotStarted, match="The driver's machine has no GPU; others of the cluster have 4"):
        machine.gpus_here()
    monkeypatch.setattr(machine, "ray", cluster_of(0, 0))
    assert machine.gpus_here() == 0
