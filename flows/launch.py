"""From a configuration to an open run.

Guarantee: everything that can be checked without an engine is checked before one starts, and what this process
started is ended when the run is closed; standing engines stay unless the run is finished.
"""

import contextlib
from collections.abc import Iterator, Mapping

from relax_core.cluster.drivers import driving
from relax_core.config import Purpose, RelaxConfig, Source, option_values, prepare
from relax_core.config.sources import DEFAULT, PYTHON
from relax_core.rewards.score import check_reward
from relax_core.rollout.hooks import check_functions
from relax_core.run.ownership import address
from relax_core.run.ports import Backend
from relax_core.run.session import RunSession, run_id
from relax_core.tracking.notify import check_addresses
from relax_core.tracking.progress import Progress
from relax_core.tracking.tensorboard import check_board
from relax_core.training.hooks import check_loss_functions
from relax_core.waiting import TELL_SECONDS, Wait, listening


def checked(
    config: RelaxConfig, purpose: Purpose = "train", sources: Mapping[str, Source] | None = None
) -> RelaxConfig:
    """Resolved and validated; raises ``UserError`` with all that is wrong."""
    config = prepare(config, purpose, sources)
    check_reward(config)
    check_functions(config)
    if purpose == "train":
        check_loss_functions(config)
        check_addresses(config)
        check_board(config)
    return config


def _ray_backend(config: RelaxConfig, name: str) -> Backend:
    from relax_core.cluster.backend import (
        RayBackend,
    )  # Ray costs half a second that a mistake in the options does not need

    return RayBackend(config, name)


_OPEN: dict[str, RunSession] = {}


def given_options(config: RelaxConfig) -> dict[str, Source]:
    """Origin of the options of a configuration that was made in Python: what is no default was given."""
    default = option_values(RelaxConfig())
    return {name: DEFAULT if value == default.get(name) else PYTHON for name, value in option_values(config).items()}


@contextlib.contextmanager
def open_run(
    config: RelaxConfig,
    sources: Mapping[str, Source] | None = None,
    backend: Backend | None = None,
    training: bool = True,
) -> Iterator[RunSession]:
    """An open run, closed at the end; inside the ``with`` of the same run, that run.

    Args:
        config: checked.
        sources: origin of each option, for ``config.yaml``.
        backend: another way to engines than Ray (tests, benchmarks).
        training: False for a look at a run that changes nothing of it.
    """
    name = run_id(str(config.run.run_dir))
    if name in _OPEN:
        yield _OPEN[name]
        return
    given = backend
    factory = _ray_backend if given is None else lambda config, name: given
    run = _OPEN[name] = RunSession(config, sources or {}, factory, Progress(), training)
    try:
        with _telling_waits(run), _driving(run) if training else contextlib.nullcontext():
            yield run
        if training and run.next_step() >= run.total_steps:
            run.backend.release()
    finally:
        del _OPEN[name]
        run.close()


@contextlib.contextmanager
def _telling_waits(run: RunSession) -> Iterator[None]:
    """Long waits are told on the terminal and in the timeline."""

    def tell(wait: Wait) -> None:
        run.progress.note(wait.text)
        if wait.seconds < TELL_SECONDS:  # the start of something: it is for whoever sits there
            return
        seconds = round(wait.seconds, 1)
        run.events.add("waiting", who=wait.whom, cause=f"for {wait.what}", since=wait.since, seconds=seconds)

    with listening(tell):
        yield


@contextlib.contextmanager
def _driving(run: RunSession) -> Iterator[None]:
    """Tell the run's timeline of this driver, unless there is nothing to drive."""
    first = run.next_step()
    if first >= run.total_steps:
        yield
        return
    run.events.add("driver_started", cause="the run goes on" if first else "", first_step=first, steps=run.total_steps)
    staleness = run.config.cluster.max_staleness if run.overlaps else None
    try:
        with driving(run.id, address(run.store.url), run.total_steps, staleness):
            yield
    except BaseException as error:
        run.events.add("driver_ended", cause=f"{type(error).__name__}: {error}".strip(": "))
        raise
    run.events.add("driver_ended", cause="finished")
    run.events.close()
