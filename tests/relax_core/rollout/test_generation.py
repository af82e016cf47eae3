"""Generation that is interrupted, cut, and whose engines come and go, over engines in this process."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.errors import UserError
from data.prompts import Prompt
from relax_core.engines.client import Completion
from relax_core.engines.errors import EngineUnavailable
from relax_core.rollout.gate import Gate
from relax_core.rollout.generate import generate
from relax_core.rollout.generated import Ask, Generated
from relax_core.rollout.generation import Generation
from relax_core.rollout.requests import Progress, SampleRequest, group_requests
from relax_core.rollout.sampling import Sampling

SAMPLING = Sampling(max_new_tokens=100, min_new_tokens=5)
TICK = 0.0005


def make_requests(groups: int, samples: int = 1) -> list[SampleRequest]:
    prompts = [Prompt(f"{row:08d}", f"p{row}", np.full(3, row, np.int32), None, {}) for row in range(groups)]
    return group_requests(prompts, prefix="000000", samples=samples, run_seed=42, step=0, first_group=0)


def token(seed: int, position: int) -> int:
    """As in SGLang's deterministic mode the token follows from the seed and its position in the sequence."""
    return 1 + (seed * 31 + position * 17) % 97


def length_of(seed: int) -> int:
    """Tokens after which the response stops: 60 to 79."""
    return 60 + seed % 20


def expected(request: SampleRequest) -> list[int]:
    return [token(request.seed, 3 + place) for place in range(length_of(request.seed))]


class TokenEngine:
    """Makes a token a tick, until it stops, is full, or is told to end."""

    def __init__(self, url: str, version: int = 1) -> None:
        self.url, self.version = url, version
        self.asked: list[tuple[list[int], dict[str, Any], str]] = []
        self.ends: set[str] = set()
        self.here: set[str] = set()
        self.all_ended = threading.Event()
        self.dead = False
        self.deaf = False
        self.most = self.made = 0

    async def generate(self, input_ids: Any, sampling_params: dict[str, Any], rid: str) -> Completion:
        assert rid not in self.here
        self.asked.append((list(map(int, input_ids)), dict(sampling_params), rid))
        self.here.add(rid)
        self.most = max(self.most, len(self.here))
        ids: list[int] = []
        reason = "length"
        seed = sampling_params["sampling_seed"]
        try:
            while len(ids) < sampling_params["max_new_tokens"]:
                await asyncio.sleep(TICK)
                if self.dead:
                    raise EngineUnavailable(f"{self.url} is gone")
                if (rid in self.ends or self.all_ended.is_set()) and not self.deaf:
                    reason = "abort"
                    break
                ids.append(token(seed, len(input_ids) + len(ids)))
                self.made += 1
                if len(input_ids) + len(ids) - 3 == length_of(seed):
                    reason = "stop"
                    break
        finally:
            self.here.discard(rid)
        log_probs = -np.array(ids, np.float32) / 8
        return Completion(
            np.array(ids, np.int32), log_probs, {"type": reason}, "", (str(self.version),), len(input_ids), 1
        )

    async def abort(self, rid: str) -> None:
        self.ends.add(rid)


def in_line(result: Generated) -> None:
    """Tokens as an uninterrupted engine makes them, each with its log-prob."""
    whole = expected(result.request)
    ids = result.output_ids.tolist()
    assert ids == whole[: len(ids)]
    assert result.log_probs.tolist() == [-one / 8 for one in ids]
    assert len(result.token_versions) == len(result.loss_mask) == len(ids)


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


async def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(TICK)


def change_weights(gate: Gate, engines: Sequence[TokenEngine], version: int) -> None:
    """As a weight sync does it, in a thread."""

    def interrupt() -> None:
        for engine in engines:
            engine.all_ended.set()

    with gate.closed(interrupt):
        for engine in engines:
            assert not engine.here
            engine.version = version
            engine.all_ended.clear()


def test_responses_go_on_after_weights_changed_and_every_token_knows_its_weights():
    gate, engines, requests = Gate(), [TokenEngine("a"), TokenEngine("b")], make_requests(12)

    async def work() -> list[Generated]:
        generation = asyncio.create_task(generate(requests, engines, SAMPLING, concurrency=3, gate=gate))
        for version in (2, 3, 4):
            made = sum(engine.made for engine in engines)
            await wait_for(lambda made=made: sum(engine.made for engine in engines) > made + 20)
            await asyncio.to_thread(change_weights, gate, engines, version)
        return await generation

    results = run(work())
    for request, result in zip(requests, results, strict=True):
        assert result.request is request
        in_line(result)
        assert (len(result.output_ids), result.status) == (length_of(request.seed), "completed")
        versions = result.token_versions.tolist()
        assert versions == sorted(versions)
        assert result.weight_versions == tuple(dict.fromkeys(versions))
        assert result.abort_count == 0
    assert len({version for result in results for version in result.weight_versions}) == 4
    assert sum(result.interrupted for result in results) >= 3
    # No token was made twice: the engines made as many as there are.
    assert sum(engine.made for engine in engines) == sum(len(result.output_ids) for result in results)
    asked = [rid for engine in engines for _, _, rid in engine.asked]
    assert len(asked) == len(set(asked)) == 12 + sum(result.interrupted for result in results)
    for engine in engines:
        assert engine.most <= 3
        for ids, params, rid in engine.asked:
            produced = len(ids) - 3
            request = next(one for one in requests if rid.startswith(one.sample_id))
            assert ids[3:] == expected(request)[:produced]
            assert params["max_new_tokens"] == 100 - produced
            assert params["min_new_tokens"] == max(0, 5 - produced)


def test_an_abort_that_the_gate_did_not_cause_ends_the_response():
    engine = TokenEngine("a")

    async def work() -> Generated:
        task = asyncio.create_task(generate(make_requests(1), [engine], SAMPLING, concurrency=1, gate=Gate()))
        await wait_for(lambda: engine.made == 4)
        engine.all_ended.set()
        [result] = await task
        return result

    result = run(work())
    assert (result.status, result.finish_reason, result.abort_count) == ("aborted", "abort", 1)
    assert len(result.output_ids) == 4


def test_a_response_that_is_interrupted_at_the_end_of_its_budget_ended_by_length():
    gate, requests = Gate(), make_requests(1)

    class Late(TokenEngine):
        async def generate(self, input_ids: Any, sampling_params: dict[str, Any], rid: str) -> Completion:
            done = await super().generate(input_ids, sampling_params, rid)
            gate._count += 1  # the gate was closed while the last token was made
            return replace(done, finish_reason={"type": "abort"})

    engine = Late("a")
    [result] = run(generate(requests, [engine], Sampling(max_new_tokens=4), concurrency=1, gate=gate))
    assert (result.status, result.finish_reason, len(result.output_ids)) == ("truncated", "length", 4)
    assert len(engine.asked) == 1


def progress_of(request: SampleRequest, done: int, mask: int = 1) -> Progress:
    ids = np.array(expected(request)[:done], np.int32)
    versions = np.full(done, 7, np.int32)
    return Progress(ids, -ids.astype(np.float32) / 8, versions, np.full(done, mask, np.uint8), 2, 3)


@pytest.mark.parametrize("done", [0, 1, 9])
def test_a_request_begins_from_what_exists_of_it(done):
    engine, [request] = TokenEngine("a", version=8), make_requests(1)
    request = replace(request, progress=progress_of(request, done, mask=0))
    [result] = run(generate([request], [engine], SAMPLING, concurrency=1))
    in_line(result)
    new = length_of(request.seed) - done
    assert result.token_versions.tolist() == [7] * done + [8] * new
    assert result.loss_mask.tolist() == [0] * done + [1] * new
    assert result.weight_versions == ((7, 8) if done else (8,))
    assert (result.status, result.abort_count) == ("completed", 2)
    [(ids, params, _)] = engine.asked
    assert ids == [0, 0, 0, *expected(request)[:done]]
    assert (params["max_new_tokens"], params["min_new_tokens"]) == (100 - done, max(0, 5 - done))
    left = result.left_over(9)
    assert (left.abort_count, left.start_step, len(left.output_ids)) == (2, 3, length_of(request.seed))


def test_a_request_whose_budget_is_used_up_asks_no_engine():
    [request] = make_requests(1)
    request = replace(request, progress=progress_of(request, 6))
    [result] = run(generate([request], [TokenEngine("a")], Sampling(max_new_tokens=6), concurrency=1))
    assert (result.status, result.finish_reason, result.weight_versions) == ("truncated", "length", (7,))
    in_line(result)


def test_a_cut_gives_what_there_is_and_spares_whom_it_is_told_to():
    # 2 engines of 2 permits: 4 requests are at an engine, 6 wait. The last of those that wait is spared.
    engines, requests = [TokenEngine("a"), TokenEngine("b")], make_requests(10)
    requests[0] = replace(requests[0], progress=progress_of(requests[0], 5))

    async def work() -> list[Generated]:
        async with Generation(engines, SAMPLING, concurrency=2) as generation:
            tasks = [asyncio.create_task(generation.sample(request)) for request in requests]
            await wait_for(lambda: sum(engine.made for engine in engines) >= 12)
            await generation.cut(lambda request: request is requests[1] or request is requests[9])
            spared = requests[1].sample_id, requests[9].sample_id
            assert all(rid.startswith(spared) for engine in engines for rid in engine.here)
            late = await generation.sample(replace(requests[2], sample_id="late"))
            assert (late.status, len(late.output_ids), late.abort_count) == ("aborted", 0, 1)
            return await asyncio.gather(*tasks)

    results = run(work())
    for place, result in enumerate(results):
        in_line(result)
        if place in (1, 9):
            assert (result.status, len(result.output_ids)) == ("completed", length_of(result.request.seed))
            assert result.abort_count == 0
        else:
            assert (result.status, result.finish_reason) == ("aborted", "abort")
            assert result.abort_count == (3 if place == 0 else 1)
    assert len(results[0].output_ids) > 5  # what it had, and what was made since
    assert results[0].token_versions.tolist()[:6] == [7] * 5 + [1]
    assert [len(result.output_ids) for result in results[4:9]] == [0] * 5
    asked = sum(len(engine.asked) for engine in engines)
    assert asked == 5  # four, and the spared one that waited


def test_a_cut_response_that_goes_on_later_is_the_whole_response():
    engine, requests = TokenEngine("a"), make_requests(6)

    async def work() -> list[Generated]:
        async with Generation([engine], SAMPLING, concurrency=6) as generation:
            tasks = [asyncio.create_task(generation.sample(request)) for request in requests]
            await wait_for(lambda: engine.made >= 30)
            await generation.cut()
            return await asyncio.gather(*tasks)

    first = run(work())
    rest = [replace(one.request, progress=one.left_over(4)) for one in first]
    engine = TokenEngine("a", version=2)
    second = run(generate(rest, [engine], SAMPLING, concurrency=6))
    for before, result in zip(first, second, strict=True):
        in_line(result)
        old, new = len(before.output_ids), len(result.output_ids) - len(before.output_ids)
        assert (result.status, result.token_versions.tolist()) == ("completed", [1] * old + [2] * new)
    assert rest[0].progress is not None
    assert rest[0].progress.start_step == 4


def test_a_cut_while_the_gate_is_closed_lets_nobody_through(monkeypatch):
    monkeypatch.setitem(globals(), "length_of", lambda seed: 1000)
    gate, engine, requests = Gate(), TokenEngine("a"), make_requests(3)

    async def work() -> list[Generated]:
        async with Generation([engine], Sampling(max_new_tokens=1000), concurrency=3, gate=gate) as generation:
            tasks = [asyncio.create_task(generation.sample(request)) for request in requests]
            await wait_for(lambda: engine.made >= 9)
            opened, closed = threading.Event(), threading.Event()

            def close() -> None:
                with gate.closed(engine.all_ended.set):
                    closed.set()
                    opened.wait(30)

            thread = asyncio.create_task(asyncio.to_thread(close))
            await asyncio.to_thread(closed.wait, 30)
            await generation.cut()
            results = await asyncio.gather(*tasks)
            opened.set()
            await thread
            return results

    results = run(work())
    assert [result.status for result in results] == ["aborted"] * 3
    assert sum(len(result.output_ids) for result in results) == engine.made
    assert len(engine.asked) == 3


def test_an_engine_that_does_not_end_a_cut_request_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("relax_core.rollout.generation.END_SECONDS", 0.0)
    monkeypatch.setattr("relax_core.rollout.generation.INTERRUPT_SECONDS", 0.001)
    engine, requests = TokenEngine("a"), make_requests(2)
    engine.deaf = True
    monkeypatch.setitem(globals(), "length_of", lambda seed: 10**6)

    async def work() -> list[Generated]:
        async with Generation([engine], Sampling(max_new_tokens=10**6), concurrency=3) as generation:
            tasks = [asyncio.create_task(generation.sample(request)) for request in requests]
            await wait_for(lambda: engine.made >= 4)
            await generation.cut()
            return await asyncio.gather(*tasks)

    assert [(len(one.output_ids), one.status) for one in run(work())] == [(0, "aborted")] * 2


def test_a_function_that_asks_on_and_on_after_a_cut_is_an_error():
    async def answer(request: SampleRequest, params: dict[str, Any], ask: Ask) -> Generated:
        while (await ask(request.prompt.tokens, params)).finish_reason["type"] == "abort":
            pass
        raise AssertionError

    engine = TokenEngine("a")

    async def work() -> None:
        async with Generation([engine], SAMPLING, concurrency=1, answer=answer) as generation:
            task = asyncio.create_task(generation.sample(make_requests(1)[0]))
            await wait_for(lambda: engine.made >= 2)
            await generation.cut()
            await task

    with pytest.raises(UserError, match="goes on asking after the sample was ended"):
        run(work())


def test_an_engine_that_is_given_up_gives_its_requests_to_the_others_at_once():
    stuck, other, requests = TokenEngine("http://a"), TokenEngine("http://b"), make_requests(8)
    told: list[tuple[str, str]] = []

    async def silent(input_ids: Any, sampling_params: dict[str, Any], rid: str) -> Completion:
        stuck.asked.append(([], {}, rid))
        await asyncio.Event().wait()
        raise AssertionError

    stuck.generate = silent  # type: ignore[method-assign]

    async def work() -> list[Generated]:
        async with Generation(
            [stuck, other], SAMPLING, concurrency=2, lost=lambda *what: told.append(what)
        ) as generation:
            tasks = [asyncio.create_task(generation.sample(request)) for request in requests]
            await wait_for(lambda: len(stuck.asked) == 2)
            await asyncio.to_thread(generation.lose, "http://a/", "answers no health check")
            await asyncio.to_thread(generation.lose, "http://nobody", "unknown")
            results = await asyncio.gather(*tasks)
        generation.lose("http://b", "after its end")  # nobody listens
        return results

    for result in run(work()):
        in_line(result)
        assert result.status == "completed"
    assert told == [("http://a", "answers no health check")]
    assert len(stuck.asked) == 2


class Reviver:
    """Gives engines under new addresses; ``Generation`` gets them where it would make clients."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], TokenEngine]) -> None:
        self.calls, self.threads, self.engines = 0, set(), {}
        self._make = make
        monkeypatch.setattr(Generation, "_connect", lambda generation, url: self.connect(url))

    def connect(self, url: str) -> TokenEngine:
        return self.engines.setdefault(url, self._make(url))

    def __call__(self) -> list[str]:
        self.calls += 1
        self.threads.add(threading.get_ident())
        return [f"http://new{self.calls}-{place}" for place in range(2)]


def test_when_no_engine_is_left_new_ones_are_asked_for_once_and_responses_go_on(monkeypatch):
    monkeypatch.setitem(globals(), "length_of", lambda seed: 400)
    gate, engine, requests = Gate(), TokenEngine("http://a"), make_requests(9)
    revive, lost = Reviver(monkeypatch, lambda url: TokenEngine(url, version=2)), []

    async def work() -> list[Generated]:
        task = asyncio.create_task(
            generate(
                requests,
                [engine],
                Sampling(max_new_tokens=400),
                concurrency=4,
                gate=gate,
                revive=revive,
                lost=lambda url, reason: lost.append(url),
            )
        )
        await wait_for(lambda: engine.made >= 16)
        await asyncio.to_thread(change_weights, gate, [engine], 2)  # four have four tokens or so of version 1
        await wait_for(lambda: len(engine.asked) >= 8)
        engine.dead = True
        return await task

    results = run(work())
    for result in results:
        in_line(result)
        assert result.status == "completed"
    assert (revive.calls, lost) == (1, ["http://a"])
    assert threading.get_ident() not in revive.threads
    went_on = [result for result in results if result.weight_versions == (1, 2)]
    assert len(went_on) == 4
    assert Counter(rid for one in revive.engines.values() for _, _, rid in one.asked).most_common(1)[0][1] == 1


def test_engines_that_die_again_and_again_without_an_answer_end_the_generation(monkeypatch):
    def dead(url: str) -> TokenEngine:
        engine = TokenEngine(url)
        engine.dead = True
        return engine

    revive = Reviver(monkeypatch, dead)
    with pytest.raises(UserError, match="were replaced 2 times, and none answered") as error:
        run(generate(make_requests(5), [dead("http://a")], SAMPLING, concurrency=2, revive=revive))
    assert revive.calls == 2  # lost three times: at first, and twice after it
    assert "http://a: http://a is gone" in error.value.details
    assert "http://new2-1: http://new2-1 is gone" in error.value.details


def test_an_answer_in_between_lets_engines_die_more_often(monkeypatch):
    def dies_after_one(url: str) -> TokenEngine:
        engine = TokenEngine(url)

        async def once(input_ids: Any, sampling_params: dict[str, Any], rid: str) -> Completion:
            if engine.dead:
                raise EngineUnavailable("gone")
            engine.dead = True
            ids = np.array([token(sampling_params["sampling_seed"], 3)], np.int32)
            return Completion(ids, -ids.astype(np.float32) / 8, {"type": "stop"}, "", ("1",), 3, 0)

        engine.generate = once  # type: ignore[method-assign]
        return engine

    revive = Reviver(monkeypatch, dies_after_one)
    results = run(generate(make_requests(11), [dies_after_one("http://a")], SAMPLING, concurrency=1, revive=revive))
    assert [result.status for result in results] == ["completed"] * 11
    assert revive.calls == 5  # one answer of the first engine, two of each pair


def test_an_error_of_reviving_is_that_of_the_generation():
    def revive() -> list[str]:
        raise UserError("there is no room for an engine")

    engine = TokenEngine("a")
    engine.dead = True
    with pytest.raises(UserError, match="no room for an engine"):
        run(generate(make_requests(5), [engine], SAMPLING, concurrency=2, revive=revive))
    with pytest.raises(UserError, match="No rollout engine is left; lost: a"):
        run(generate(make_requests(5), [engine], SAMPLING, concurrency=2, revive=list))


def test_engines_that_are_added_take_part(monkeypatch):
    made = Reviver(monkeypatch, TokenEngine)
    first, requests = TokenEngine("http://a"), make_requests(12)

    async def work() -> list[Generated]:
        async with Generation([first], SAMPLING, concurrency=1) as generation:
            tasks = [asyncio.create_task(generation.sample(request)) for request in requests]
            await wait_for(lambda: first.made > 3)
            await asyncio.to_thread(generation.add, ["http://b/", "http://a", "http://c"])
            return await asyncio.gather(*tasks)

    for result in run(work()):
        in_line(result)
    assert sorted(made.engines) == ["http://b", "http://c"]
    assert all(len(engine.asked) > 1 and engine.most == 1 for engine in made.engines.values())


def test_a_generation_that_is_cancelled_leaves_nothing_in_flight():
    engine = TokenEngine("a")

    async def work() -> None:
        task = asyncio.create_task(generate(make_requests(9), [engine], SAMPLING, concurrency=4, gate=Gate()))
        await wait_for(lambda: engine.made > 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not engine.here

    run(work())


@settings(max_examples=15, deadline=None)
@given(
    actions=st.lists(st.tuples(st.integers(0, 60), st.sampled_from(["weights", "die", "lose", "add"])), max_size=5),
    cut=st.none() | st.integers(0, 200),
)
def test_whatever_happens_every_response_has_each_of_its_tokens_once(actions, cut):
    requests, gate = make_requests(3, samples=2), Gate()
    engines = [TokenEngine(f"http://{place}") for place in range(2)]
    gone: set[str] = set()

    def made() -> int:
        return sum(engine.made for engine in engines)

    class Local(Generation):
        def _connect(self, url: str) -> Any:
            engines.append(TokenEngine(url, version=engines[0].version))
            return engines[-1]

    def replacement() -> list[str]:
        return [f"http://{len(engines)}"]

    async def work() -> list[Generated]:
        async with Local(
            list(engines), SAMPLING, concurrency=2, gate=gate, revive=replacement, lost=lambda url, why: gone.add(url)
        ) as generation:
            tasks = [asyncio.create_task(generation.sample(request)) for request in requests]

            async def more(count: int) -> None:
                before = made()
                await wait_for(lambda: made() >= before + count or all(task.done() for task in tasks))

            for count, action in actions:
                await more(count)
                alive = [engine for engine in engines if not engine.dead and engine.url not in gone]
                if len(engines) - len(alive) == 3:
                    alive = []  # no more deaths: all engines lost for the third time would be an error
                if action == "weights":
                    await asyncio.to_thread(change_weights, gate, engines, engines[0].version + 1)
                elif action == "die" and alive:
                    alive[0].dead = True
                elif action == "lose" and alive:
                    generation.lose(alive[-1].url, "silent")
                elif action == "add":
                    generation.add(replacement())
            if cut is not None:
                await more(cut)
                await generation.cut(lambda request: request.k == 1)
            return await asyncio.gather(*tasks)

    for result in run(work()):
        in_line(result)
        versions = result.token_versions.tolist()
        assert versions == sorted(versions)
        if result.status == "aborted":
            assert cut is not None
            assert result.request.k == 0
            rest = replace(result.request, progress=result.left_over(0))
            [result] = run(generate([rest], [TokenEngine("later", version=9)], SAMPLING, concurrency=1))
            in_line(result)
        assert (result.status, len(result.output_ids)) == ("completed", length_of(result.request.seed))
