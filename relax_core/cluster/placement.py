"""Devices that several actors of a run share: reserved once, handed out by number.

Guarantee: Ray gives the devices to nobody else while the run has them, an actor that is started again gets the same
ones, and each sees its own devices first. Which process has which is ``relax_core.config.devices``.
"""

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from data.errors import NotStarted, UserError
from relax_core.cluster.actors import result
from relax_core.cluster.machine import alone, node_id
from relax_core.config.devices import Places, number_of
from relax_core.waiting import told

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Place:
    """Where an actor works.

    Attributes:
        environment: variables of its process, by which it sees its devices and no others.
        options: what ``get_or_start`` needs to put it there: it takes no device of its own from Ray.
        others: the other reserved devices of the same machine.
    """

    environment: Mapping[str, str]
    options: Mapping[str, Any]
    others: tuple[str, ...]

    @property
    def devices(self) -> str:
        """Its devices, as CUDA_VISIBLE_DEVICES names them."""
        return self.environment[VISIBLE]

    @property
    def devices_first(self) -> str:
        """Its devices and behind them the others: weights may come from the memory of any of them."""
        return ",".join([self.devices, *self.others])


@dataclass(frozen=True, order=True)
class Device:
    """One reserved device.

    Attributes:
        node: Ray's id of its machine.
        index: its place among the machine's, as CUDA_VISIBLE_DEVICES names it.
        bundle: its place in the reservation.
    """

    node: str
    index: int | str
    bundle: int


class SharedDevices:
    """The devices of a run whose roles share them.

    Args:
        name: of the reservation, under which another driver finds it.
        count: devices.
        timeout: seconds until they must be free.

    Raises:
        UserError: the cluster has too few that are free.
    """

    def __init__(self, name: str, count: int, timeout: float = 600.0) -> None:
        self._group = _reserved(name, count, timeout)
        self._devices = sorted(_look(self._group, count, timeout))
        if not alone() and any(device.node != node_id() for device in self._devices):  # of a driver on another machine
            release_devices(name)
            self._group = _reserved(name, count, timeout)
            self._devices = sorted(_look(self._group, count, timeout))

    def place(self, numbers: Sequence[int]) -> Place:
        """The place of an actor with these devices.

        Raises:
            UserError: they are on several machines.
        """
        chosen = [self._devices[number] for number in numbers]
        if len(nodes := {device.node for device in chosen}) > 1:
            raise UserError(
                f"The devices {', '.join(map(str, numbers))} of the role actor, which an engine shares, are on several "
                "machines.",
                "Lower --rollout-num-gpus-per-engine or --genrm-num-gpus-per-engine until it divides the GPUs of each "
                "machine.",
            )
        names = ",".join(str(device.index) for device in chosen)
        return Place(
            environment={VISIBLE: names, "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"},
            options={"scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, chosen[0].bundle)},
            others=tuple(str(one.index) for one in self._devices if one.node in nodes and one not in chosen),
        )


class RunDevices:
    """The places of a run's processes; devices are reserved when the first one is asked for.

    Args:
        places: which devices each process has; None: nothing is shared.
        name, timeout: as for ``SharedDevices``.
    """

    def __init__(self, places: Places | None, name: str, timeout: float) -> None:
        self._places, self._name, self._timeout = places, name, timeout
        self._lock = threading.Lock()
        self._devices: SharedDevices | None = None

    @property
    def shared(self) -> bool:
        """Whether processes share devices."""
        return self._places is not None

    def place(self, role: str, index: int) -> Place | None:
        """The place of a role's process; None where Ray chooses it.

        Raises:
            UserError: as ``SharedDevices``.
        """
        if self._places is None:
            return None
        with self._lock:  # of threads that start actors
            if self._devices is None:
                self._devices = SharedDevices(self._name, number_of(self._places), self._timeout)
        return self._devices.place(self._places[role][index])

    def give_back(self) -> None:
        """Let others have the devices; the actors on them end."""
        self._devices = None
        release_devices(self._name)


def release_devices(name: str) -> None:
    """Give a reservation back, if there is one; the actors on it end."""
    with contextlib.suppress(ValueError):
        remove_placement_group(ray.util.get_placement_group(name))


def _reserved(name: str, count: int, timeout: float) -> PlacementGroup:
    with contextlib.suppress(ValueError):
        found = ray.util.get_placement_group(name)
        if found.bundle_count == count:
            return _ready(found, name, count, timeout)
        remove_placement_group(found)  # of a time when the run had other sizes
    here = None if alone() else [{"ray.io/node-id": node_id()}] * count
    made = placement_group(
        [{"GPU": 1}] * count, strategy="PACK", name=name, lifetime="detached", bundle_label_selector=here
    )
    return _ready(made, name, count, timeout)


def _ready(group: PlacementGroup, name: str, count: int, timeout: float) -> PlacementGroup:
    with told(f"{count} GPUs that are free", "the roles that share them", timeout):
        there = group.wait(timeout)
    if there:
        return group
    release_devices(name)
    have, free = (int(of().get("GPU", 0)) for of in (ray.cluster_resources, ray.available_resources))
    raise NotStarted(
        f"The roles that share devices need {count} GPUs; the cluster has {have}, of which {free} are free.",
        "Free or add GPUs, or ask for fewer with --resource.",
    )


def _look(group: PlacementGroup, count: int, timeout: float) -> list[Device]:
    """Which device each bundle is."""

    @ray.remote(num_cpus=0, num_gpus=1, max_retries=0)
    def seen() -> tuple[str, str]:
        return ray.get_runtime_context().get_node_id(), str(ray.get_gpu_ids()[0])

    calls = [
        seen.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, bundle)).remote()
        for bundle in range(count)
    ]
    devices = []
    for bundle, call in enumerate(calls):
        node, index = result(call, timeout, "the look at the reserved devices")
        devices.append(Device(node, int(index) if index.isdigit() else index, bundle))
    return devices
