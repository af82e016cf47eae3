"""Where the processes of roles that share devices work."""

from typing import Any

import pytest

from relax_core.config.devices import devices_in_all, number_of, shared_places
from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig


def config(actor: int, rollout: int, each: int = 1, **options: Any) -> RelaxConfig:
    resource = {"actor": (1, actor), "rollout": (1, rollout), **options.pop("resource", {})}
    given = {"colocate": True, "rollout_num_gpus_per_engine": each, "resource": resource, **options}
    return with_options(RelaxConfig(), given)


def test_without_colocation_nothing_is_shared() -> None:
    apart = config(4, 2, colocate=False, genrm_model_path="judge", resource={"genrm": (1, 3)})
    assert shared_places(apart) is None
    assert devices_in_all(apart) == 9


@pytest.mark.parametrize(
    ("given", "places", "count"),
    [
        # one device for all
        (config(1, 1), {"actor": ((0,),), "rollout": ((0,),)}, 1),
        # an engine of two devices is on those of two ranks
        (config(4, 4, 2), {"actor": ((0,), (1,), (2,), (3,)), "rollout": ((0, 1), (2, 3))}, 4),
        # the critic's ranks are on the actor's devices
        (
            config(2, 2, resource={"critic": (1, 2), "advantages": (1, 0)}),
            {"actor": ((0,), (1,)), "critic": ((0,), (1,)), "rollout": ((0,), (1,))},
            2,
        ),
        # 2 + 2 = 4: the judge has the devices behind the rollout's
        (
            config(4, 2, genrm_model_path="judge", genrm_num_gpus=2, genrm_num_gpus_per_engine=2),
            {"actor": ((0,), (1,), (2,), (3,)), "rollout": ((0,), (1,)), "genrm": ((2, 3),)},
            4,
        ),
        # 2 + 2 > 2: it has the same
        (
            config(2, 2, genrm_model_path="judge", resource={"genrm": (1, 2)}),
            {"actor": ((0,), (1,)), "rollout": ((0,), (1,)), "genrm": ((0,), (1,))},
            2,
        ),
    ],
)
def test_roles_share_the_actors_devices(
    given: RelaxConfig, places: dict[str, tuple[tuple[int, ...], ...]], count: int
) -> None:
    found = shared_places(given)
    assert found is not None
    assert {role: groups for role, groups in found.items() if groups} == places
    assert number_of(found) == devices_in_all(given) == count


def test_a_role_that_shares_nothing_adds_its_own_devices() -> None:
    assert devices_in_all(config(2, 2, resource={"reference": (1, 3)})) == 5
