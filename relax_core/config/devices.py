"""Which devices each process of a run works on where roles share them (``--colocate``).

Guarantee: pure arithmetic, the same wherever it is asked. Numbers count the devices that the run reserves, from 0:
neighbours are on one machine as far as that has room.
"""

from collections.abc import Mapping
from types import MappingProxyType

from relax_core.config.derived import role_devices
from relax_core.config.sections import RelaxConfig

Places = Mapping[str, tuple[tuple[int, ...], ...]]
"""Role -> for each of its processes (ranks of a trainer, engines) the numbers of its devices."""


def shared_places(config: RelaxConfig) -> Places | None:
    """Where the processes of the roles that share devices work; None without ``--colocate``.

    Rank i of the actor, and of the critic, is on device i; engine e of g devices is on the devices from e * g on. The
    judge's engines are on the devices behind the rollout's where both together fit on the actor's, else on the same.

    Args:
        config: resolved.
    """
    if not config.cluster.colocate:
        return None
    actor, rollout, judge = role_devices(config, "actor"), role_devices(config, "rollout"), judge_devices(config)
    behind = rollout if rollout + judge <= actor else 0
    each, each_judge = config.cluster.rollout_num_gpus_per_engine, config.genrm.genrm_num_gpus_per_engine
    return MappingProxyType(
        {
            "actor": _in_groups(actor, 1),
            "critic": _in_groups(role_devices(config, "critic"), 1),
            "rollout": _in_groups(rollout, each),
            "genrm": _in_groups(judge, each_judge, behind),
        }
    )


def judge_devices(config: RelaxConfig) -> int:
    """Devices of the judge's engines together; 0 in a run without one."""
    if config.genrm.genrm_model_path is None:
        return 0
    return role_devices(config, "genrm") or config.genrm.genrm_num_gpus


def number_of(places: Places) -> int:
    """Devices that all of them need together."""
    return 1 + max((device for groups in places.values() for group in groups for device in group), default=-1)


def devices_in_all(config: RelaxConfig) -> int:
    """Devices that a run needs: those that are shared once, those of other roles for each."""
    places = shared_places(config)
    judge = judge_devices(config)
    others = [role for role in config.cluster.resource if role != "genrm" and (places is None or role not in places)]
    own = sum(role_devices(config, role) for role in others)
    return own + (judge if places is None else number_of(places))


def _in_groups(count: int, size: int, first: int = 0) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(range(first + start, first + start + size)) for start in range(0, count - size + 1, size))
