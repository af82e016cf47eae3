"""Scores of samples while others are generated: the same table, the same number of calls, and nothing left running."""

import asyncio
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import UserError
from data.ragged import Ragged
from data.schema import ROLLOUT
from data.schema import table as schema_table
from relax_core.config.sections import RelaxConfig
from relax_core.rewards import registry
from relax_core.rewards.choice import training_choice
from relax_core.rewards.pools import Pools
from relax_core.rewards.score import score_table, score_timed
from relax_core.rewards.sources import scoring_hash
from relax_core.rewards.stream import Lane, RewardStream
from relax_core.rewards.types import RewardSpec

GROUP = 4

FUNCTIONS = """
import asyncio, os, pathlib, time

folder = pathlib.Path(__file__).parent

def note(text):
    descriptor = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, (text + "\\n").encode())
    os.close(descriptor)

def reward(sample):
    note(f"begin {sample.sample_id} {os.getpid()}")
    while "hang" in sample.response and not (folder / "go").exists():
        time.sleep(0.01)
    if "fail" in sample.response:
        raise ValueError("boom")
    note(f"end {sample.sample_id}")
    return float(len(sample.response))

async def together(sample):
    note(f"begin {sample.sample_id} {os.getpid()}")
    while "hang" in sample.response and not (folder / "go").exists():
        await asyncio.sleep(0.01)
    for _ in range(3):
        await asyncio.sleep(0.001)
    note(f"end {sample.sample_id}")
    return float(len(sample.response))

def of_group(samples):
    note("group " + " ".join(sample.sample_id for sample in samples))
    return [float(place + len(sample.response)) for place, sample in enumerate(samples)]
"""


def rollout(responses: list[str], statuses: list[str] | None = None) -> pa.Table:
    """Rows in groups of four; the label is "4", two tokens each."""
    n = len(responses)
    one = Ragged.from_list([[1]] * n, np.uint8)
    groups = [f"000000-{i // GROUP:04d}" for i in range(n)]
    return schema_table(
        ROLLOUT,
        {
            "sample_id": [f"{group}-{i % GROUP:03d}" for i, group in enumerate(groups)],
            "group_id": groups,
            "prompt_id": ["0"] * n,
            "group_index": [i // GROUP for i in range(n)],
            "index": list(range(n)),
            "step": [0] * n,
            "seed": [0] * n,
            "prompt": ["q"] * n,
            "tokens": Ragged.from_list([[1, 2]] * n, np.int32),
            "prompt_length": [1] * n,
            "response_length": [1] * n,
            "response": responses,
            "label": pa.array(['"4"'] * n, pa.string()),
            "metadata": [json.dumps({"number": i}) for i in range(n)],
            "loss_mask": one,
            "rollout_log_probs": one.astype(np.float32),
            "weight_versions": one.astype(np.int32),
            "status": statuses or ["completed"] * n,
            "finish_reason": ["stop"] * n,
            "remove_sample": [False] * n,
            "abort_count": [0] * n,
        },
    )


def config_of(**reward: Any) -> RelaxConfig:
    return RelaxConfig.model_validate({"reward": reward, "rollout": {"n_samples_per_prompt": GROUP}})


@pytest.fixture
def pools() -> Iterator[Pools]:
    with Pools(config_of(reward_num_workers=2)) as made:
        yield made


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    return path


def stream_of(config: RelaxConfig, pools: Pools, table: pa.Table) -> RewardStream:
    """Samples are handed over as their places in the table."""
    return RewardStream(training_choice(config), config, pools, {}, table.take)


def found(stream: RewardStream, config: RelaxConfig) -> int:
    """Calls whose outcome a stream has, in the end."""
    return len(stream.finish(scoring_hash(training_choice(config), config)).outcomes)


def log_of(path: Path) -> list[str]:
    log = path.parent / "log"
    return log.read_text().splitlines() if log.exists() else []


def wait_for(condition: Callable[[], Any]) -> None:
    """Until it holds; a minute, which nothing here takes, is a failure."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.01)


def began(path: Path, sample: str) -> bool:
    return any(line.startswith(f"begin {sample}") for line in log_of(path))


@settings(deadline=None)
@given(order=st.permutations(range(12)), handed=st.integers(0, 12), data=st.data())
def test_the_table_is_the_same_in_whatever_order_samples_arrive_and_however_many_do(
    order: list[int], handed: int, data: Any
) -> None:
    kinds = st.sampled_from(["completed", "truncated", "aborted"])
    table = rollout([str(i % 5) for i in range(12)], data.draw(st.lists(kinds, min_size=12, max_size=12)))
    mix = {"exact_number": 1, "format": {"weight": 0.5}}
    config = config_of(rm_type=data.draw(st.sampled_from(["exact_number", "mix"])), reward_mix=mix)
    with Pools(config) as pools, stream_of(config, pools, table) as stream:
        for place in order[:handed]:
            stream.add(place)
        scores, _ = score_timed(table, config, pools, {}, stream)
    assert scores.equals(score_table(table, config))


@pytest.mark.parametrize(
    ("name", "group"), [("reward", False), ("together", False), ("of_group", True)], ids=["plain", "async", "groups"]
)
def test_a_users_function_is_called_once_for_each_sample_and_the_table_is_the_same(
    functions: Path, pools: Pools, name: str, group: bool
) -> None:
    config = config_of(custom_rm_path=f"{functions}:{name}", group_rm=group)
    # the aborted sample of the second group counts as there, and is not called
    table = rollout(["a" * i for i in range(12)], ["completed"] * 5 + ["aborted"] + ["completed"] * 6)
    with stream_of(config, pools, table) as stream:
        for place in (0, 5, 11, 3, 2, 1, 7, 4, 6, 10):  # the third group never is complete
            stream.add(place)
        scores, seconds = score_timed(table, config, pools, {}, stream)
    called = Counter(word for line in log_of(functions) for word in line.split() if word.startswith("0") and
                     not line.startswith("end"))  # fmt: skip
    assert called == Counter({name: 1 for place, name in enumerate(table["sample_id"].to_pylist()) if place != 5})
    assert scores.equals(score_table(table, config))
    assert seconds["seconds"].null_count == 1


def test_a_group_is_called_when_it_is_complete_and_in_the_order_of_the_table(functions: Path, pools: Pools) -> None:
    config, table = config_of(custom_rm_path=f"{functions}:of_group", group_rm=True), rollout(["a"] * 8)
    with stream_of(config, pools, table) as stream:
        for place in (0, 6, 1, 5, 2, 7, 4):
            stream.add(place)
        assert found(stream, config) == 1
    assert log_of(functions) == ["group 000000-0001-000 000000-0001-001 000000-0001-002 000000-0001-003"]


@pytest.mark.parametrize("column", ["response", "label", "metadata", "prompt", "status"])
def test_an_outcome_for_another_content_is_not_used(functions: Path, pools: Pools, column: str) -> None:
    config, table = config_of(custom_rm_path=f"{functions}:reward"), rollout(["abc", "de"])
    other = {"response": "other", "label": '"5"', "metadata": '{"number": 7}', "prompt": "p", "status": "truncated"}
    changed = pa.array([other[column], table[column][1].as_py()])
    later = table.set_column(ROLLOUT.get_field_index(column), ROLLOUT.field(column), changed)
    with stream_of(config, pools, table) as stream:
        stream.add(0)
        stream.add(1)
        scores, _ = score_timed(later, config, pools, {}, stream)
    assert scores["reward"].to_pylist() == [5.0 if column == "response" else 3.0, 2.0]
    assert Counter(line.split()[1] for line in log_of(functions) if line.startswith("begin")) == {
        "000000-0000-000": 2,
        "000000-0000-001": 1,
    }


@pytest.mark.parametrize("change", ["source", "option"])
def test_an_outcome_of_another_source_or_option_is_not_used(functions: Path, pools: Pools, change: str) -> None:
    path, table = f"{functions}:reward", rollout(["abc"])
    config = later = config_of(custom_rm_path=path)
    with stream_of(config, pools, table) as stream:
        stream.add(0)
        wait_for(lambda: "end 000000-0000-000" in log_of(functions))
        if change == "source":
            functions.write_text(FUNCTIONS + "# edited\n")
        else:
            later = config_of(custom_rm_path=path, reward_error_policy="zero")
        _, seconds = score_timed(table, later, pools, {}, stream)
    assert seconds["streamed"].to_pylist() == [False]
    assert len(log_of(functions)) == 4  # begin and end, twice


def test_what_was_scored_before_the_table_is_known(functions: Path, pools: Pools) -> None:
    config, table = config_of(custom_rm_path=f"{functions}:reward"), rollout(["abc", "de", "f"])
    with stream_of(config, pools, table) as stream:
        stream.add(1)
        wait_for(lambda: stream._found)  # until the stream itself has taken it
        _, seconds = score_timed(table, config, pools, {}, stream)
    assert seconds["streamed"].to_pylist() == [False, True, False]


@pytest.mark.parametrize("name", ["reward", "together"])
def test_a_call_that_hangs_holds_up_none_that_comes_after_it(functions: Path, pools: Pools, name: str) -> None:
    """The first call ends only after the second has."""
    config, table = config_of(custom_rm_path=f"{functions}:{name}"), rollout(["hang", "abc"])
    with stream_of(config, pools, table) as stream:
        stream.add(0)
        wait_for(lambda: began(functions, "000000-0000-000"))
        stream.add(1)
        wait_for(lambda: "end 000000-0000-001" in log_of(functions))
        (functions.parent / "go").touch()
        assert found(stream, config) == 2
    assert next(line for line in log_of(functions) if line.startswith("end")) == "end 000000-0000-001"


@pytest.mark.parametrize("most", [1, 3])
def test_coroutines_in_all_waves_together_are_never_more_than_allowed(functions: Path, most: int) -> None:
    config = config_of(custom_rm_path=f"{functions}:together", reward_max_concurrency=most, reward_num_workers=4)
    table = rollout(["a"] * 24)
    with Pools(config) as pools, stream_of(config, pools, table) as stream:
        for place in range(24):
            stream.add(place)
            time.sleep(0.002)
        assert found(stream, config) == 24
    running = [1 if line.startswith("begin") else -1 for line in log_of(functions)]
    assert max(np.cumsum(running)) <= most


@settings(deadline=None)
@given(
    most=st.integers(1, 70),
    waves=st.integers(1, 8),
    events=st.lists(st.one_of(st.integers(1, 40), st.none()), max_size=60),
)
def test_a_lane_never_has_more_in_flight_than_allowed_and_begins_with_each_call_once(
    most: int, waves: int, events: list[int | None]
) -> None:
    """Events: so many calls arrive, or (None) the oldest wave ends. At the end all waves end."""
    lane, running, begun = Lane(most, waves), list[tuple[int, int]](), list[Any]()
    arrived = 0

    def begin(last: bool = False) -> None:
        while (wave := lane.next_wave(last)) is not None:
            calls, share = wave
            begun.extend(calls)
            running.append((len(calls), share))
            assert sum(share for _, share in running) == lane.in_flight <= most
            assert 1 <= share <= len(calls)

    for event in events:
        if event is not None:
            lane.waiting += [(b"", number) for number in range(arrived, arrived + event)]  # type: ignore[misc]
            arrived += event
        elif running:
            lane.ended(running.pop(0)[1])
        begin()
        assert running or not lane.waiting  # nothing waits while nothing runs
    begin(True)
    while running:
        lane.ended(running.pop(0)[1])
        begin(True)
    assert [call for _, call in begun] == list(range(arrived))


def test_an_error_ends_the_stream_with_one_warning_and_is_met_where_the_table_is_scored(
    functions: Path, pools: Pools, caplog: pytest.LogCaptureFixture
) -> None:
    """Two calls fail beside each other; the third sample arrives after that."""
    config = config_of(custom_rm_path=f"{functions}:reward")
    table = rollout(["hang, then fail", "hang, then fail", "abc"])
    with stream_of(config, pools, table) as stream:
        for place in range(2):
            stream.add(place)
            wait_for(lambda place=place: began(functions, f"000000-0000-00{place}"))
        (functions.parent / "go").touch()
        wait_for(lambda: caplog.records)
        stream.add(2)
        with pytest.raises(UserError, match=r"failed on sample 000000-0000-00[01]: ValueError: boom"):
            score_timed(table.slice(0, 2), config, pools, {}, stream)
    [warning] = caplog.records
    assert "ValueError: boom" in warning.getMessage()
    assert "Generation goes on and is kept" in warning.getMessage()
    assert not began(functions, "000000-0000-002")


@pytest.mark.parametrize(("policy", "score"), [("zero", 0.0), ("no_score", None)])
def test_with_another_policy_an_error_is_an_outcome_like_any_other(
    functions: Path, pools: Pools, policy: str, score: float | None
) -> None:
    config = config_of(custom_rm_path=f"{functions}:reward", reward_error_policy=policy)
    table = rollout(["fail", "abc"])
    with stream_of(config, pools, table) as stream:
        stream.add(0)
        stream.add(1)
        scores, _ = score_timed(table, config, pools, {}, stream)
    assert scores["reward"].to_pylist() == [score, 3.0]
    assert len([line for line in log_of(functions) if line.startswith("begin")]) == 2


def test_a_function_that_cannot_be_loaded_fails_nobody_who_hands_samples_over(pools: Pools, caplog: Any) -> None:
    config, table = config_of(custom_rm_path="no_such_module.reward"), rollout(["abc"])
    with stream_of(config, pools, table) as stream:
        stream.add(0)
        assert found_nothing(stream)
    assert "no_such_module" in caplog.text


def test_a_machine_without_a_thread_to_spare_holds_nobody_up(
    functions: Path, pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, config = rollout(["a"] * 4), config_of(custom_rm_path=f"{functions}:reward")
    real = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "reward-wave":
            raise RuntimeError("can't start new thread")
        real(thread)

    with stream_of(config, pools, table) as stream:
        monkeypatch.setattr(threading.Thread, "start", start)
        for place in range(4):
            stream.add(place)
        ended = threading.Thread(target=found_nothing, args=(stream,), daemon=True)
        ended.start()
        ended.join(30)
        assert not ended.is_alive()
        assert score_timed(table, config, pools, stream=stream)[0] == score_table(table, config, pools)


def found_nothing(stream: RewardStream) -> bool:
    return not stream.finish("").outcomes


@pytest.mark.parametrize("name", ["reward", "together"])
def test_after_close_no_process_and_no_thread_is_left(functions: Path, pools: Pools, name: str) -> None:
    config, table = config_of(custom_rm_path=f"{functions}:{name}"), rollout(["hang"] * 3)
    stream = stream_of(config, pools, table)
    for place in range(3):
        stream.add(place)
    wait_for(lambda: began(functions, "000000-0000-000"))
    pids = {int(line.split()[2]) for line in log_of(functions)}
    stream.close()
    wait_for(lambda: not any(alive(pid) for pid in pids))
    assert not any(
        thread.name.startswith("reward-") and thread.is_alive() for thread in [*stream._waves, stream._thread]
    )
    stream.add(0)  # whoever still has the stream is not disturbed
    assert found(stream, config) == 0


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_close_ends_coroutines_of_built_in_rewards(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def waiting(sample: Any) -> float:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return 0.0

    spec = RewardSpec("waiting", waiting, True, "", "", patient=True)
    monkeypatch.setattr(registry, "builtin_rewards", lambda: {"waiting": spec})
    stream = stream_of(config_of(rm_type="waiting"), pools, rollout(["abc"]))
    stream.add(0)
    assert begun.wait(60)
    stream.close()
    assert ended.is_set()


def test_close_after_finish_keeps_the_processes(functions: Path, pools: Pools) -> None:
    config, table = config_of(custom_rm_path=f"{functions}:reward"), rollout(["abc"])
    with stream_of(config, pools, table) as stream:
        stream.add(0)
        assert found(stream, config) == 1
    score_table(table, config, pools)
    pids = [line.split()[2] for line in log_of(functions) if line.startswith("begin")]
    assert len(pids) == 2
    assert len(set(pids)) == 1


def test_close_of_one_of_several_streams_leaves_the_calls_of_others_alone(functions: Path, pools: Pools) -> None:
    config, table = config_of(custom_rm_path=f"{functions}:reward"), rollout(["hang"] * 2)
    choice = training_choice(config)
    first, second = (
        RewardStream(choice, config, pools, {}, lambda places: table.take(pa.array(places)), shared=True)
        for _ in range(2)
    )
    first.add(0)
    second.add(1)
    wait_for(lambda: all(began(functions, f"000000-0000-00{place}") for place in range(2)))
    first.close()
    (functions.parent / "go").touch()
    outcomes = second.finish(scoring_hash(choice, config)).outcomes
    assert [outcome.score for [outcome] in outcomes.values()] == [4.0]
