"""Named actors on a real Ray head, which the whole session shares."""

import os
from collections.abc import Iterator

import pytest
import ray

from data.errors import UserError
from relax_core.cluster.actors import ActorDied, find, get_or_start, kill, result

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_head")]


class Counter:
    """What the tests put into actors."""

    def __init__(self, fail: str = "") -> None:
        if fail == "user":
            raise UserError("The thing is wrong.", "Mend it.")
        if fail == "exit":
            os._exit(3)
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    def environment(self, name: str) -> str | None:
        return os.environ.get(name)

    def refuse(self) -> None:
        raise UserError("No.", "Ask otherwise.", "line")

    def die(self) -> None:
        os._exit(1)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.node.name
    kill(request.node.name)


def test_an_actor_is_started_once_and_found_again_by_its_name(name: str) -> None:
    first, started = get_or_start(Counter, name, env={"COLOUR": "red"}, timeout=60)
    assert started
    assert result(first.add.remote()) == 1
    assert result(first.environment.remote("COLOUR")) == "red"
    again, started = get_or_start(Counter, name)
    assert not started
    assert result(again.add.remote()) == 2


def test_an_actor_that_does_not_fit_is_an_error_that_says_what_is_lacking(name: str) -> None:
    with pytest.raises(UserError, match=r"needs 64 CPU, the cluster has \d+ of which \d+ are free"):
        get_or_start(Counter, name, num_cpus=64, timeout=3)
    assert find(name) is None


def test_an_actor_whose_constructor_dies_is_an_error_with_the_reason(name: str) -> None:
    with pytest.raises(UserError, match="died while starting"):
        get_or_start(Counter, name, kwargs={"fail": "exit"}, timeout=60)


def test_an_error_of_ours_inside_an_actor_arrives_as_itself(name: str) -> None:
    handle, _ = get_or_start(Counter, name, timeout=60)
    with pytest.raises(UserError) as caught:
        result(handle.refuse.remote())
    assert (caught.value.problem, caught.value.fix, caught.value.details) == ("No.", "Ask otherwise.", "line")


def test_an_actor_that_dies_in_a_call_is_an_error_and_is_no_longer_found(name: str) -> None:
    handle, _ = get_or_start(Counter, name, timeout=60)
    with pytest.raises(ActorDied, match="the counter died"):
        result(handle.die.remote(), 30, "the counter")
    assert find(name) is None


def test_waiting_has_an_end_and_says_for_whom(name: str) -> None:
    class Sleeper:
        def sleep(self) -> None:
            import time

            time.sleep(30)

    handle, _ = get_or_start(Sleeper, name, timeout=60)
    with pytest.raises(UserError, match="Waited 1 s for the sleeper"):
        result(handle.sleep.remote(), 1, "the sleeper")
    assert ray.is_initialized()
