"""What the program of the colocated switch counts: whole turns of a step, and what training takes longer for them."""

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from programs import program as load_program


@pytest.fixture(scope="module")
def program() -> ModuleType:
    return load_program("benchmarks/gpu/turn_watch.py")


def turn(name: str, start: float, seconds: float, **more: Any) -> dict[str, Any]:
    return {"turn": name, "start": start, "end": start + seconds, "seconds": seconds, "calls": [], **more}


def seen(program: ModuleType) -> Any:
    """Three steps of 10 s; the first turns are slow, and the last step is not followed by a generation."""
    watch = program.Watch.__new__(program.Watch)
    released = {"who": "engines", "what": "release kv_cache", "ms": 90.0, "inside": [{"flush": 9.0, "release": 80.0}]}
    told = {"out_bytes": 8e9, "out": 0.2, "back_bytes": 7e9, "back": 0.35, "wait": 0.01, "free": 0.04, "take": 0.02}
    watch.turns = [turn("hand_over", 0, 9.0), turn("generate", 1, 9.0)]
    for step in range(3):
        slow = 2.0 if step == 0 else 0.1
        start = 10.0 * (step + 1)
        watch.turns += [turn("generated", start, 0.0), turn("train", start + 1, slow, moved=told)]
        watch.turns += [turn("hand_over", start + 5, 0.03), turn("save", start + 5.5, 0.0)]
        if step < 2:
            watch.turns.append(turn("generate", start + 6, slow + step / 10, moved=told))
    watch.beside = [released]
    watch.pushes = [{"seconds": 0.05, "bytes": 1.2e9, "buckets": 3}, {"seconds": 0.0, "bytes": 0, "buckets": 0}]
    looks = [(18.0, 100_000), (21.5, 20_000), (21.6, 9_000), (24.0, 60_000), (29.0, 100_000)]
    watch.memory = SimpleNamespace(between=lambda start, end: [size for when, size in looks if start <= when <= end])
    return watch


def test_a_step_is_counted_from_the_end_of_its_generation_to_the_next_one(program: ModuleType) -> None:
    watch = seen(program)
    assert [[row["turn"] for row in cycle] for cycle in watch.cycles()] == [
        ["generated", "train", "hand_over", "save", "generate"]
    ] * 2
    repeated = [{"moved": False, "train": 1.0}, {"moved": True, "train": 1.25, "told": watch.turns[3]["moved"]}]
    steps = [
        {"metrics": {"train_rollout_logprob_abs_diff": 0.01}},
        {"metrics": {"train_rollout_logprob_abs_diff": 0.02}},
    ]
    rows = {row[0]: row[1:] for row in program.table(watch, repeated, steps)}
    # both count, as there are not more: 2 + 0.03 + 2 and 0.1 + 0.03 + 0.2; the middle is 2.18
    assert rows["the turns of a step together, s (median; largest)"] == ["2.180; 4.030", ""]
    assert rows["switch beyond training: turns and what training takes longer, s"] == ["2.430", "< 0.5"]
    assert rows["engine: release kv_cache, beside the scoring, ms (median)"] == ["flush 9, release 80", ""]
    assert rows["trainer to the host, GB/s beside other work (median)"] == ["40.0", ""]
    assert rows["trainer to the device, the optimiser's state, GB/s beside other work (median)"] == ["20.0", ""]
    assert rows["push of weights, s (median; largest)"] == ["0.050; 0.050, 1.20 GB", ""]
    assert rows["difference of log-probs, engine and trainer (largest mean)"] == ["0.0200", ""]
    # 9,000 MiB are 9.4 GB
    assert rows["memory in use when engines have released and the trainer is there, GB"] == ["9.4", ""]
    assert rows["memory in use while it generates, GB (least; most)"] == ["104.9; 104.9", ""]


def test_a_step_without_a_difference_of_log_probs_is_no_good_one(program: ModuleType) -> None:
    found = program.worst_difference([{"metrics": {"train_rollout_logprob_abs_diff": None}}, {"metrics": {}}])
    assert found != found
