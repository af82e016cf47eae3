"""Stand-ins for what a test of the pipeline does not need for real: an engine that answers at once over HTTP, in
SGLang's JSON, and a trainer whose weights are a hash. Both behave like the real ones where it matters here: the
engine's answer depends on the weights, the seed and the prompt alone; the trainer compares and swaps, and dies with
its checkpoints kept.
"""

import asyncio
import contextlib
import hashlib
import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from aiohttp import web
from served import Handler, Served

from data.schema import FORWARD
from data.schema import table as make_table
from data.store import RunStore, TableRef
from relax_core.rewards.pool import RewardPool
from relax_core.tracking.events import NO_EVENTS
from relax_core.training.errors import SliceRefused, VersionMismatch
from relax_core.weights.label import weight_label


def digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


MODELS = ("trainer", "critic")


class FakeMemory:
    """Device memory that is shared out in a backend whose ``device`` is ``cuda``. ``turns`` lists who gave up or took
    what, in order. At first all hold all.

    Args:
        names: who is there, of ``trainer``, ``critic``, ``engines`` and ``judge``.
    """

    def __init__(self, *names: str) -> None:
        self.turns: list[str] = []
        whole = {name: {"state"} if name in MODELS else {"weights", "kv_cache"} for name in names}
        self.held: dict[str, set[str]] = whole

    def give(self, who: str, parts: Any) -> bool:
        """Whether this changed anything."""
        given = self.held[who] & set(parts)
        self.held[who] -= given
        if given:
            self.turns.append(f"{who} -{','.join(sorted(given))}")
        return bool(given)

    def take(self, who: str, parts: Any) -> bool:
        """Whether this changed anything."""
        taken = set(parts) - self.held[who]
        self.held[who] |= taken
        if taken:
            self.turns.append(f"{who} +{','.join(sorted(taken))}")
        return bool(taken)

    def require(self, who: str, parts: Any, *, alone: bool, **others: set[str]) -> None:
        """Who works holds its parts; the other models hold nothing, engines at most ``others``."""
        assert self.held[who] >= set(parts), (who, self.held)
        if not alone:
            return
        for other, held in self.held.items():
            assert other == who or held <= others.get(other, set()), (who, self.held)


def _weakly(method: Handler) -> Handler:
    """The method, without a hold on its object."""
    reference = weakref.WeakMethod(method)

    async def handler(request: web.Request) -> web.StreamResponse:
        bound = reference()
        assert bound is not None
        return await bound(request)

    return handler


class FakeEngine:
    """One engine in a thread of this process, until ``stop`` or until nobody has it. ``generate_calls`` counts the
    requests that it answered; with ``answers`` it fails after so many. With ``pace`` it takes so many seconds a token,
    and a request that is aborted meanwhile returns the tokens that there are; the longest response has ``longest``
    tokens."""

    pace = 0.0
    longest = 4
    until_aborted: tuple[str, ...] = ()
    """Beginnings of ids of requests that end by being aborted only, and then have some tokens."""

    def __init__(self, vocabulary: int = 200, memory: FakeMemory | None = None) -> None:
        self.memory = memory
        self._running: dict[str, asyncio.Event] = {}
        self.asked: list[str] = []
        self.misplaced: list[str] = []
        self.label, self.weights, self.vocabulary = "default", "start", vocabulary
        self.generate_calls = 0
        self.answers: int | None = None
        self.events: list[str] = []
        routes = {
            "POST /generate": self._generate,
            "POST /v1/chat/completions": self._chat,
            "POST /abort_request": self._abort,
        }
        served = Served({route: _weakly(handler) for route, handler in routes.items()})
        self.url, self._loop, self.stop = served.url, served.loop, served.stop
        weakref.finalize(self, served.end)

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.answers == 0:
            raise web.HTTPInternalServerError
        if self.answers is not None:
            self.answers -= 1
        self.generate_calls += 1
        self.asked.append(str(body.get("rid")))
        self._holds("engines")
        params = body["sampling_params"]
        noise = digest(self.weights, params.get("sampling_seed"), body["input_ids"])
        longest = min(self.longest, params["max_new_tokens"])
        length = self.length(str(body.get("rid")), len(body["input_ids"]), noise, longest)
        reason: dict[str, Any] = {"type": "stop", "matched": 2}
        if self.pace:
            length, ended = await self._take_time(str(body.get("rid")), length)
            reason = {"type": "abort"} if ended else reason
        ids = [int(noise[(2 * i) % 14 + 1 : (2 * i) % 14 + 3], 16) % self.vocabulary for i in range(length)]
        meta = {
            "id": body.get("rid"),
            "finish_reason": reason,
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": length,
            "cached_tokens": 0,
            "weight_version": self.label,
            "output_token_logprobs": [[-0.5 - (token % 7) / 10, token, None] for token in ids],
        }
        return web.json_response({"text": "", "output_ids": ids, "meta_info": meta})

    def length(self, rid: str, asked: int, noise: str, longest: int) -> int:
        """Tokens of a response, of at most ``longest``, to a request of ``asked`` tokens."""
        return longest if self.longest > 7 else 1 + int(noise[0], 16) % longest  # 7: what a digest has digits for

    async def _take_time(self, rid: str, length: int) -> tuple[int, bool]:
        """Tokens that are there at the end, and whether it was aborted before the last."""
        aborted = self._running[rid] = asyncio.Event()
        began = self._loop.time()
        waits = rid.startswith(self.until_aborted) and self._of_sample(rid) == 1
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(aborted.wait(), None if waits else self.pace * length)
        del self._running[rid]
        if not aborted.is_set():
            return length, False
        there = int((self._loop.time() - began) / self.pace)
        return min(length - 1, max(there, 3) if waits else there), True

    def _of_sample(self, rid: str) -> int:
        """How many requests there were for the sample."""
        sample = rid.rsplit(".", 2)[0]
        return sum(one.rsplit(".", 2)[0] == sample for one in self.asked)

    async def _abort(self, request: web.Request) -> web.Response:
        body = await request.json()
        for rid, aborted in self._running.items():
            if body.get("abort_all") or rid == body.get("rid"):
                aborted.set()
        return web.json_response({})

    def abort_all(self) -> None:
        """End what is running; from any thread."""
        for aborted in list(self._running.values()):
            self._loop.call_soon_threadsafe(aborted.set)

    async def _chat(self, request: web.Request) -> web.Response:
        """As a judge: always the same."""
        self._holds("judge")
        await request.json()
        return web.json_response({"choices": [{"message": {"content": "Fine. [[7]]"}, "finish_reason": "stop"}]})

    def _holds(self, who: str) -> None:
        """Requests come only while it has its memory and no trainer has any; this thread cannot fail the test."""
        if self.memory:
            wrong = [f"{name} holds {held}" for name, held in self.memory.held.items() if name in MODELS and held]
            whole = self.memory.held[who] >= {"weights", "kv_cache"}
            self.misplaced += wrong if whole else [*wrong, f"{who} hold {self.memory.held[who]}"]


class FakeEngines:
    """The ``EnginesPort`` of one ``FakeEngine``."""

    def __init__(self, engine: FakeEngine, memory: FakeMemory | None = None, name: str = "engines") -> None:
        self.engine, self.memory, self.name = engine, memory, name
        self.urls = [engine.url]

    def stale(self, label: str) -> bool:
        return self.engine.label != label

    def release(self, parts: Any) -> None:
        if self.memory and self.memory.give(self.name, parts) and "weights" in parts and self.name == "engines":
            self.engine.label, self.engine.weights = "released", "nothing"

    def resume(self, parts: Any) -> None:
        if self.memory:
            self.memory.take(self.name, parts)

    def abort_all(self) -> None:
        self.engine.events.append("abort_all")
        self.engine.abort_all()

    def check(self) -> None:
        pass


class FakeTrainer:
    """The ``TrainerPort`` without a model. ``applied`` lists every update that changed the weights, in order.

    Args:
        rests: of an actor, in the steps below which only the critic learns.
    """

    def __init__(
        self,
        engine: FakeEngine,
        name: str = "trainer",
        events: list[str] | None = None,
        memory: FakeMemory | None = None,
    ) -> None:
        self.engine, self.name, self.rests, self.memory = engine, name, 0, memory
        self.events: list[str] = [] if events is None else events
        self.applied: list[tuple[int, str]] = []
        self.initialise()

    def initialise(self) -> None:
        start = "start" if self.name == "trainer" else f"start of the {self.name}"
        self.version, self.weights, self.last, self.weights_id = 0, start, None, None
        self.result: dict[str, Any] = {}
        self.slices: list[list[str]] = []

    def status(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "last_batch_sha256": self.last,
            "weights_id": self.weights_id,
            "dirty": False,
        }

    def train(self, base: int, target: int, batch: TableRef, store_url: str, weights_id: str) -> dict[str, Any]:
        self._works()
        if self.version == target and self.last == batch.sha256:
            return self.result
        if self.version != base:
            raise VersionMismatch(base, self.version)
        self.events.append(f"{self.name} train {base}")
        self.slices = []
        self.version, self.last, self.weights_id = target, batch.sha256, weights_id
        if base < self.rests:
            self.result = {"metrics": {}, "optimizer_step": 0}
            return self.result
        self.weights = digest(self.weights, batch.sha256)
        self.applied.append((target, self.weights))
        self.result = {"metrics": {"loss": int(self.weights[:4], 16) / 65536}, "optimizer_step": target}
        return self.result

    def accumulate(self, version: int, rows: Any, number: int, weights_id: str = "") -> dict[str, Any]:
        """``slices`` lists the sample ids of each that is there."""
        if version != self.version or self.weights_id not in (None, weights_id):
            raise VersionMismatch(version, self.version)
        if number not in (0, len(self.slices)):
            raise SliceRefused(f"it is number {number}, and number {len(self.slices)} comes next")
        table = rows if isinstance(rows, pa.Table) else rows.open()
        self.slices = [*self.slices[:number], table["sample_id"].to_pylist()]
        self.events.append(f"{self.name} accumulate {version} {number}")
        return {"accumulated": len(self.slices), "seconds": 0.0}

    def forward(self, version: int, rollout: TableRef, store_url: str, columns: list[str], weights_id: str) -> pa.Table:
        if version != self.version or self.weights_id not in (None, weights_id):
            raise VersionMismatch(version, self.version)
        self._works()
        self.events.append(f"{self.name} forward {version}")
        table = RunStore(store_url).read_table(rollout)
        lengths = table["response_length"].to_pylist()
        found = {}
        for column in columns:
            noise = digest(self.weights, column)
            found[column] = [[-1.0 - int(noise[0], 16) / 16 - 0.1 * t for t in range(n)] for n in lengths]
        ids = {name: table[name] for name in ("sample_id", "group_id", "response_length")}
        return make_table(FORWARD, {**ids, **found})

    def save(self, url: str, iteration: int) -> dict[str, Any]:
        self._works(engines={"weights"})
        store, folder = RunStore(url), f"iter_{iteration:07d}"
        state = {"version": self.version, "weights": self.weights, "last": self.last, "weights_id": self.weights_id}
        store.write_json(f"{folder}/fake.json", state)
        marker = {"iteration": iteration, "weights_id": self.weights_id, "files": {}}
        store.write_json(f"{folder}/relax_state.json", marker)
        return {}

    def finish_save(self) -> dict[str, Any]:
        return {}

    def load(self, url: str, iteration: int) -> None:
        self._works()
        state = RunStore(url).read_json(f"iter_{iteration:07d}/fake.json")
        self.version, self.weights = state["version"], state["weights"]
        self.last, self.weights_id = state["last"], state["weights_id"]
        self.result, self.slices = {}, []

    def push_weights(self, version: int, urls: list[str], weights_id: str) -> dict[str, Any]:
        if version != self.version or self.weights_id not in (None, weights_id):
            raise VersionMismatch(version, self.version)
        if self.engine.label != (label := weight_label(version, weights_id)):
            self._works(engines={"weights"})
            if self.memory:
                self.memory.require("engines", {"weights"}, alone=False)
            self.engine.events.append(f"push {version}")
            self.engine.label, self.engine.weights = label, self.weights
        return {"seconds": 0.0}

    def _works(self, **others: set[str]) -> None:
        if self.memory:
            self.memory.require(self.name, {"state"}, alone=True, **others)

    def offload(self) -> int:
        return int(bool(self.memory and self.memory.give(self.name, {"state"})))

    def onload(self) -> int:
        return int(bool(self.memory and self.memory.take(self.name, {"state"})))

    def export_hf(self, folder: str) -> None:
        self._works(engines={"weights"})
        Path(folder).mkdir(parents=True, exist_ok=True)


class FakeBackend:
    """Trainer, critic and engine of one "machine"; ``lose_all`` is a power cut. ``events`` lists what the two models
    did, in order.

    Args:
        memory: its devices, which all share; None: a CPU.
    """

    timeline = NO_EVENTS
    reward_pool = RewardPool

    def __init__(self, memory: FakeMemory | None = None) -> None:
        self.memory: FakeMemory | None = memory
        self.device = "cuda" if memory else "cpu"
        self.engine = FakeEngine(memory=memory)
        self.events: list[str] = []
        self.trainer = FakeTrainer(self.engine, events=self.events, memory=memory)
        self.critic = FakeTrainer(self.engine, "critic", self.events, memory)
        self.ensured = self.critics = self.judges = 0
        self.ended: list[str] = []

    def connect(self) -> None:
        pass

    def ensure(self, critic: bool = False) -> tuple[FakeTrainer, FakeEngines]:
        self.ensured += 1
        return self.trainer, FakeEngines(self.engine, self.memory)

    def ensure_trainer(self, critic: bool = False) -> FakeTrainer:
        self.ensured += 1
        return self.trainer

    def ensure_critic(self) -> FakeTrainer:
        self.critics += 1
        return self.critic

    def ensure_rollout(self, weights_id: str) -> FakeEngines:
        self.engine.label = weight_label(0, weights_id)
        return FakeEngines(self.engine)

    def ensure_genrm(self) -> FakeEngines:
        self.judges += 1
        return FakeEngines(self.engine, self.memory, "judge")

    def end_engine(self, url: str) -> None:
        self.ended.append(url)

    def lose_all(self) -> None:
        self.engine.label, self.engine.weights = "default", "start"
        self.trainer, self.critic = _anew(self.trainer), _anew(self.critic)

    def lose_actor(self) -> None:
        """The trainer dies; the critic and the engine live."""
        self.trainer = _anew(self.trainer)

    def lose_critic(self) -> None:
        """The critic dies; the trainer and the engine live."""
        self.critic = _anew(self.critic)

    def release(self) -> None:
        pass

    def release_own(self) -> None:
        pass

    def close(self) -> None:
        pass


def _anew(lost: FakeTrainer) -> FakeTrainer:
    """A new process in its place, at version 0."""
    trainer = FakeTrainer(lost.engine, lost.name, lost.events, lost.memory)
    trainer.applied, trainer.rests = lost.applied, lost.rests
    return trainer


class Killed(BaseException):
    """Stands for a SIGKILL of the driver: nothing in the project catches it."""


class Stopper:
    """Kills the driver on entering or leaving one stage, once."""

    def __init__(self, monkeypatch: Any, step: int, stage: str, leave: bool = False) -> None:
        from relax_core.tracking.progress import Progress

        real = Progress.stage
        armed = [True]

        @contextlib.contextmanager
        def guarded(self: Progress, number: int, name: str) -> Iterator[None]:
            here = armed[0] and (number, name) == (step, stage)
            if here and not leave:
                armed.clear()
                armed.append(False)
                raise Killed
            with real(self, number, name):
                yield
            if here:
                armed.clear()
                armed.append(False)
                raise Killed

        monkeypatch.setattr(Progress, "stage", guarded)
