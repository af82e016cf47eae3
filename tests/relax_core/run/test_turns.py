"""Who holds device memory after a turn, whoever held what before it: so a kill at any moment does no harm."""

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes import FakeBackend, FakeEngines, FakeMemory

from data.errors import Lost
from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig
from relax_core.run import turns
from relax_core.run.session import RunSession

ALL = frozenset({"weights", "kv_cache"})
NAMES = ("trainer", "critic", "engines", "judge")
BOTH = {"offload_train": True, "offload_rollout": True}


@pytest.fixture(scope="module")
def backend() -> Iterator[FakeBackend]:
    made = FakeBackend(FakeMemory(*NAMES))
    yield made
    made.engine.stop()


def a_run(backend: FakeBackend, judged: bool = True, **options: Any) -> Any:
    assert backend.memory is not None
    backend.memory.turns.clear()
    engines = FakeEngines(backend.engine, backend.memory)
    judge = FakeEngines(backend.engine, backend.memory, "judge") if judged else None
    notes: list[str] = []
    return SimpleNamespace(
        config=with_options(RelaxConfig(), {**BOTH, **options}),
        backend=backend,
        known_trainers={"actor": backend.trainer, "critic": backend.critic},
        known_engines=engines,
        known_judge=judge,
        engines=engines,
        judge=judge,
        progress=SimpleNamespace(note=notes.append),
        mode="whole",
        giving=None,
        notes=notes,
    )


def every_state() -> Iterator[dict[str, set[str]]]:
    """All that the four can hold: 2 x 2 x 4 x 4."""
    parts = [set[str](), {"weights"}, {"kv_cache"}, set(ALL)]
    models = [set[str](), {"state"}]
    for held in itertools.product(models, models, parts, parts):
        yield {name: set(one) for name, one in zip(NAMES, held, strict=True)}


STATE, NONE = {"state"}, set[str]()


@pytest.mark.parametrize(
    ("turn", "wanted"),
    [
        (turns.generate, {"trainer": NONE, "critic": NONE, "engines": ALL, "judge": ALL}),
        (turns.score, {"trainer": NONE, "critic": NONE, "judge": ALL}),
        (turns.train, {"trainer": STATE, "critic": NONE, "engines": NONE, "judge": NONE}),
        (lambda run: turns.train(run, "critic"), {"trainer": NONE, "critic": STATE, "engines": NONE, "judge": NONE}),
        (turns.save, {"trainer": STATE, "critic": NONE, "judge": NONE}),
        (
            lambda run: turns.hand_over(run, "new"),
            {"trainer": STATE, "critic": NONE, "engines": {"weights"}, "judge": NONE},
        ),
    ],
    ids=["generate", "score", "train", "train the critic", "save", "hand over"],
)
def test_after_a_turn_each_holds_what_it_needs_whatever_was_held_before(
    backend: FakeBackend, turn: Callable[[Any], None], wanted: dict[str, set[str]]
) -> None:
    memory = backend.memory
    assert memory is not None
    for state in every_state():
        memory.held = {name: set(held) for name, held in state.items()}
        backend.engine.label = "old"
        run = a_run(backend)
        turn(run)
        assert {name: memory.held[name] for name in wanted} == wanted, state
        if "engines" not in wanted:  # those who score leave them alone; who saves takes the cache alone
            left = state["engines"] - (set() if turn is turns.score else {"kv_cache"})
            assert memory.held["engines"] == left
        memory.turns.clear()
        turn(run)
        assert not memory.turns  # a repeated turn changes nothing


def test_weights_that_all_engines_have_change_nothing(backend: FakeBackend) -> None:
    assert backend.memory is not None
    backend.memory.held = {name: {"state"} if name in ("trainer", "critic") else set(ALL) for name in NAMES}
    backend.engine.label = "3.abc"
    turns.hand_over(a_run(backend), "3.abc")
    assert not backend.memory.turns


def test_engines_that_gave_up_their_weights_are_stale(backend: FakeBackend) -> None:
    assert backend.memory is not None
    backend.memory.held = {name: set(ALL) if name in ("engines", "judge") else {"state"} for name in NAMES}
    backend.engine.label = "3.abc"
    run = a_run(backend)
    turns.train(run)
    turns.generate(run)
    assert run.engines.stale("3.abc")


@pytest.mark.parametrize(
    ("options", "turns_taken"),
    [
        ({"offload_train": False}, ["engines -kv_cache,weights", "judge -kv_cache,weights"]),
        ({"offload_rollout": False}, ["critic -state"]),
        ({"offload_train": False, "offload_rollout": False}, []),
        ({"offload_train": None, "offload_rollout": None}, []),
        ({"fully_async": True}, []),  # engines generate while others learn
    ],
)
def test_each_option_moves_its_own_side(
    backend: FakeBackend, options: dict[str, bool | None], turns_taken: list[str]
) -> None:
    assert backend.memory is not None
    backend.memory.held = {name: set(ALL) if name in ("engines", "judge") else {"state"} for name in NAMES}
    turns.train(a_run(backend, **options))
    assert backend.memory.turns == turns_taken


def test_on_a_cpu_nobody_is_asked_and_the_person_is_told(backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "device", "cpu")
    run = a_run(backend, colocate=True)
    run.known_trainers = run.known_engines = run.engines = None  # would fail
    for turn in (turns.generate, turns.generated, turns.score, turns.train, turns.save):
        turn(run)
    turns.hand_over(run, "new")
    turns.note(run)
    assert run.notes == ["--colocate: without a GPU nothing is freed; trainer and engines run beside each other"]
    quiet = a_run(backend, offload_train=False, offload_rollout=False)
    turns.note(quiet)
    assert not quiet.notes


def test_what_is_begun_behind_a_generation_is_done_before_the_next_turn(backend: FakeBackend) -> None:
    memory = backend.memory
    assert memory is not None
    for turn in (turns.score, turns.train, turns.save, turns.generate):
        memory.held = {name: set(ALL) if name in ("engines", "judge") else set() for name in NAMES}
        run, began = a_run(backend), threading.Event()
        release = run.known_engines.release

        def late(parts: Any, began: threading.Event = began, release: Any = release) -> None:
            began.wait(10)
            release(parts)

        run.known_engines.release = late
        turns.generated(run)
        assert not memory.turns
        threading.Timer(0.05, began.set).start()
        turn(run)
        assert memory.turns[0] == "engines -kv_cache"
        assert memory.held["engines"] >= {"kv_cache"} or turn is not turns.generate
        assert run.giving is None


def test_what_failed_behind_a_generation_is_told_in_the_next_turn_once(backend: FakeBackend) -> None:
    run = a_run(backend)

    def fails(parts: Any) -> None:
        raise Lost("The engine died.", "Start again.")

    release, run.known_engines.release = run.known_engines.release, fails
    turns.generated(run)
    run.known_engines.release = release
    with pytest.raises(Lost, match="died"):
        turns.train(run)
    turns.train(run)


def test_nothing_is_given_up_behind_a_generation_where_the_cache_is_still_wanted(backend: FakeBackend) -> None:
    for mode, options in (
        ("rollout", {}),
        ("whole", {"offload_rollout": False}),
        ("whole", {"use_fault_tolerance": True}),  # a check of the engine may still be on its way
    ):
        run = a_run(backend, **options)
        run.mode = mode
        turns.generated(run)
        assert run.giving is None


def test_a_run_that_ends_keeps_the_way_to_engines_that_are_giving_up_memory(tmp_path: Path) -> None:
    config = with_options(RelaxConfig(), {"run_dir": str(tmp_path)})
    given, giving = [], Future[None]()
    backend: Any = SimpleNamespace(close=lambda: given.append(giving.done()))
    run = RunSession(config, {}, lambda *_: backend, SimpleNamespace(), training=False)
    assert run.backend is backend
    run.giving = giving
    threading.Timer(0.05, giving.set_result, [None]).start()
    run.close()
    assert given == [True]


def test_without_a_judge_scoring_changes_nothing(backend: FakeBackend) -> None:
    assert backend.memory is not None
    turns.score(a_run(backend, judged=False))
    assert not backend.memory.turns
