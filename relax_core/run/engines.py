"""The engines of an open run: found or started when first needed, looked at again when asked.

Guarantee: nothing is started by a look at what is known; what a run does not have (a critic, a judge, engines of a run
that only trains) is never started. Where steps overlap, threads that look for engines wait for each other.
"""

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import Literal, TypeAlias

from relax_core.config import RelaxConfig
from relax_core.engines.judge import has_judge
from relax_core.rollout.gate import Gate
from relax_core.rollout.generation import Generation
from relax_core.run.ports import Backend, EnginesPort, TrainerPort
from relax_core.run.recovery import History
from relax_core.tracking.events import EventLog
from relax_core.training.roles import Role

BackendFactory: TypeAlias = Callable[[RelaxConfig, str], Backend]

Mode: TypeAlias = Literal["whole", "rollout", "train"]
"""What a run does: all of it, --debug-rollout-only, or --debug-train-only (on --load-debug-rollout-data)."""


class RunEngines(ABC):
    """The part of an open run that knows its engines.

    Args:
        make_backend: makes the way to engines from the final configuration and the run's name.
    """

    config: RelaxConfig
    id: str
    events: EventLog

    def __init__(self, make_backend: BackendFactory) -> None:
        self._make_backend = make_backend
        self._backend: Backend | None = None
        self._trainer: TrainerPort | None = None
        self._critic: TrainerPort | None = None
        self._engines: EnginesPort | None = None
        self._judge: EnginesPort | None = None
        self._looking = threading.RLock()
        self.gate = Gate()
        """Closed while the engines' weights change under a generation."""
        self.generations: weakref.WeakSet[Generation] = weakref.WeakSet()
        """Those that are under way."""
        self.pushing = threading.Condition()
        """Held by whoever brings the engines to a version; told when ``pushed`` changes."""
        self.pushed = 0
        """The version that this process brought the engines to last."""
        self.learning = threading.Lock()
        """Held by whoever needs the trainer to stay at a version over several calls, where steps overlap."""
        self.giving: Future[None] | None = None
        """What engines give up beside what else happens, see ``relax_core.run.turns``."""
        self.ended = threading.Event()
        """Set when the run is closed: what waits in a thread of its own then ends."""

    @property
    @abstractmethod
    def mode(self) -> Mode:
        """How much of the loop this run has."""

    @property
    @abstractmethod
    def has_critic(self) -> bool:
        """Whether this run trains a critic beside the policy."""

    @property
    @abstractmethod
    def history(self) -> History:
        """What the run directory knows about the policy's weights."""

    def ensure(self) -> None:
        """Live trainer, critic and engines, as far as this run has them; starts what is missing."""
        with self._looking:
            if self.mode == "train":
                self._trainer = self.backend.ensure_trainer(self.has_critic)
            elif self.mode == "rollout":
                self.ensure_rollout()
            else:
                self._trainer, self._engines = self.backend.ensure(self.has_critic)
            if self.has_critic:
                self._critic = self.backend.ensure_critic()
            if self.mode != "train":
                self.services()  # now, so that a judge that cannot start is known before anything is generated

    def ensure_rollout(self) -> EnginesPort:
        """Live engines with the first weights, without a trainer."""
        self._engines = self.backend.ensure_rollout(self.history.weights_id(0))
        return self._engines

    def lose_engine(self, url: str, reason: str) -> None:
        """Take a dead engine out of what is generated, and end it; ``ensure`` starts another one. From any thread."""
        with self._looking:  # whoever looks for engines meanwhile would find it
            for generation in list(self.generations):
                generation.lose(url, reason)
            self.backend.end_engine(url)

    def services(self) -> dict[str, list[str]]:
        """Addresses of what rewards may ask: ``genrm``, the judge's live engines, started where they are missing."""
        with self._looking:
            self._judge = self.backend.ensure_genrm() if has_judge(self.config) else None
            return self.known_services

    @property
    def known_services(self) -> dict[str, list[str]]:
        """``services`` as they were when they were last looked at."""
        return {} if self._judge is None else {"genrm": list(self._judge.urls)}

    @property
    def backend(self) -> Backend:
        """Where engines come from; made when first needed."""
        if self._backend is None:
            self._backend = self._make_backend(self.config, self.id)
            self._backend.timeline = self.events
        return self._backend

    @property
    def engines_known(self) -> bool:
        """Whether this process has found its engines before."""
        return self._trainer is not None or self._engines is not None

    @property
    def known_trainers(self) -> dict[Role, TrainerPort]:
        """The models' trainers that this process has found."""
        found: dict[Role, TrainerPort | None] = {"actor": self._trainer, "critic": self._critic}
        return {role: trainer for role, trainer in found.items() if trainer is not None}

    @property
    def known_engines(self) -> EnginesPort | None:
        """The rollout engines, if this process has found them."""
        return self._engines

    @property
    def known_judge(self) -> EnginesPort | None:
        """The judge's engines, if this process has found them."""
        return self._judge

    @property
    def judge(self) -> EnginesPort | None:
        """The judge's engines, started where they are missing; None in a run without a judge."""
        if self._judge is None:
            self.services()
        return self._judge

    @property
    def trainer(self) -> TrainerPort:
        """The trainer; a run of --debug-rollout-only has none."""
        if self._trainer is None:
            self.ensure()
        assert self._trainer is not None
        return self._trainer

    @property
    def critic(self) -> TrainerPort:
        """The critic's trainer; a run without a critic has none."""
        if self._critic is None:
            self.ensure()
        assert self._critic is not None
        return self._critic

    @property
    def engines(self) -> EnginesPort:
        """The rollout engines; a run of --debug-train-only has none."""
        if self._engines is None:
            self.ensure()
        assert self._engines is not None
        return self._engines
