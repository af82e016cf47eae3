"""How often a flow run has crashed, as Prefect keeps its states."""

import signal
from datetime import UTC, datetime, timedelta

import pytest
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import Pause, TerminationSignal
from prefect.states import AwaitingRetry

from flows.deployed import restarted
from flows.deployed.restarted import Crashes, crashes, going_on_later

START = datetime(2026, 1, 1, tzinfo=UTC)
R, C, S, F, X = StateType.RUNNING, StateType.CRASHED, StateType.SCHEDULED, StateType.FAILED, StateType.CANCELLED


def states(*types: StateType) -> list[State]:
    """States a second apart; each message has the place of its state."""
    return [
        State(type=one, message=f"state {n}\nmore", timestamp=START + timedelta(seconds=n))
        for n, one in enumerate(types)
    ]


def test_each_crash_of_a_run_that_ran_counts_once() -> None:
    # the second C is the worker's second word of the first death, the third that it is to be tried again
    found = crashes(states(S, R, C, C, C, S, R, R, C, C, S, R))
    assert found == Crashes(["state 2", "state 8"], newest=True)


def test_the_order_in_which_states_come_does_not_matter() -> None:
    assert crashes(states(S, R, C, S, R)[::-1]) == Crashes(["state 2"], newest=True)


def test_what_crashes_before_it_runs_does_not_count() -> None:
    assert crashes(states(S, C, S, C, S, R)) == Crashes()


def test_after_failed_or_cancelled_somebody_has_decided_and_the_count_begins_anew() -> None:
    assert crashes(states(R, C, S, R, F, S, R, C, S, R)) == Crashes(["state 7"], newest=True)
    assert crashes(states(R, C, S, R, X, S, R)) == Crashes()


def test_an_end_in_order_is_no_crash() -> None:
    assert crashes(states(R, S, R, S, R)) == Crashes()


def test_a_new_start_after_an_end_in_order_has_no_crash_to_tell() -> None:
    assert crashes(states(R, C, S, R, S, R)) == Crashes(["state 1"], newest=False)
    assert crashes(states(R, C, S, R, R)) == Crashes(["state 1"], newest=False)  # it waits its turn, or goes on


@pytest.mark.parametrize("asked", [TerminationSignal(signal.SIGTERM), SystemExit(15), SystemExit(143)])
def test_sigterm_puts_a_flow_run_off_whoever_hears_it(asked: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    state: State[None] = AwaitingRetry()
    monkeypatch.setattr(restarted, "_put_off", lambda: state)
    with pytest.raises(Pause) as put_off, going_on_later():
        raise asked
    assert put_off.value.state is state


@pytest.mark.parametrize("asked", [TerminationSignal(signal.SIGTERM), SystemExit(15)])
def test_a_flow_run_that_was_cancelled_is_not_put_off(asked: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarted, "_put_off", lambda: None)
    with pytest.raises(TerminationSignal), going_on_later():
        raise asked


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), ValueError()])
def test_other_ends_are_passed_on(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarted, "_put_off", lambda: pytest.fail("put off"))
    with pytest.raises(type(error)), going_on_later():
        raise error
