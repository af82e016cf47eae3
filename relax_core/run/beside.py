"""A run looked at from beside, while somebody else may drive it: its newest checkpoint, on an engine of one's own.

Guarantee: of the run nothing is claimed, asked or changed; one at a time looks so, and writes below
``<run>/evaluations``. The converted checkpoint is gone at the end; one that a killed look left goes with the next look.
"""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from data.files import FileStore
from data.store import RunStore, TableRef
from relax_core.cluster import services
from relax_core.cluster.beside import engines_beside
from relax_core.config import RelaxConfig, with_options
from relax_core.config.derived import ACTOR_FOLDER
from relax_core.config.environment import read_environment_file
from relax_core.config.problems import raise_problems
from relax_core.rewards.pool import RewardPool
from relax_core.rewards.pools import Pools, Services
from relax_core.rollout.evaluate import evaluate_set
from relax_core.rollout.hooks import log_evaluation
from relax_core.run.evaluations import FOLDER, Evaluations, evaluation_key
from relax_core.run.lock import Evaluated, EvaluationLock
from relax_core.run.prompts import RunPrompts
from relax_core.run.records import StageRecord, StageRecords
from relax_core.run.recovery import History
from relax_core.run.session import run_id
from relax_core.run.start import pin_load
from relax_core.tracking.progress import Progress
from relax_core.weights.convert import Checkpoints, convert
from relax_core.weights.convert_out import Converted

_MODEL = "model"
"""Name of the converted checkpoint."""

_here: set[str] = set()
"""Runs that this process evaluates."""


class RunBeside(RunPrompts):
    """A run that is only looked at.

    Args:
        config: resolved and validated, with ``run.run_dir``, which holds a run.
    """

    def __init__(self, config: RelaxConfig, progress: Progress) -> None:
        self.url, self.progress = str(config.run.run_dir), progress
        self.store, self.id = RunStore(self.url), run_id(self.url)
        self.config = pin_load(config, self.store, keep=False)
        self.evaluations = Evaluations(self.store)

    @cached_property
    def checkpoints(self) -> Checkpoints:
        """Those of the run's present history."""
        options = self.config.checkpoint
        folder = options.save or self.store.uri(ACTOR_FOLDER)
        history = History(self.store, StageRecords(self.store), folder, "")
        return Checkpoints(FileStore(folder), options.hf_checkpoint, history=history)

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Nobody else evaluates the run meanwhile.

        Raises:
            Evaluated: somebody does.
        """
        if self.id in _here:
            raise Evaluated(f"This process evaluates the run {self.url} already.", "Wait for it.")
        _here.add(self.id)
        try:
            lock = EvaluationLock(self.store, say=self.progress.note)
            try:
                self._tidy()
                yield
            finally:
                lock.release()
        finally:
            _here.discard(self.id)

    def key(self, version: int, weights_id: str | None) -> str:
        """Identity of an evaluation, see ``evaluation_key``."""
        return evaluation_key(version, weights_id or "", self.evaluation_sets, self.config)

    def _tidy(self) -> None:
        """Remove what a killed evaluation left."""
        for left in self._place().glob(f".*{_MODEL}*"):
            shutil.rmtree(left)

    def _place(self) -> Path:
        """Of the converted checkpoint: beside the run's files, which have room for it, where that is a disk."""
        local = self.store.local_path(FOLDER)
        return Path(local) if local else services.home() / FOLDER / self.id

    @contextlib.contextmanager
    def model(self) -> Iterator[Path]:
        """Where the converted checkpoint goes."""
        folder = self._place() / f".{_MODEL}"
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def convert(self, folder: Path) -> Converted:
        """The newest checkpoint as a Hugging Face folder.

        Raises:
            UserError: see ``relax_core.weights.convert.convert``.
        """
        with self.progress.stage(-1, "convert"):
            return convert(self.checkpoints, folder, self.progress.note)

    @contextlib.contextmanager
    def engines(self, model: Converted) -> Iterator[tuple[list[str], Services]]:
        """Addresses of an engine with these weights, and of what rewards may ask; see ``engines_beside``."""
        config = with_options(self.config, {"hf_checkpoint": model.out, "run_dir": f"{self.url.rstrip('/')}/{FOLDER}"})
        folder = self.store.local_path(f"{FOLDER}/logs")
        logs = Path(folder) if folder else services.home() / "logs" / f"{self.id}-evaluation"
        with engines_beside(config, f"{self.id}-evaluation", logs, model.version, model.weights_id or "") as found:
            yield found

    def score(self, version: int, key: str, urls: list[str], known: Services) -> StageRecord:
        """All sets, which are written down.

        Raises:
            UserError: an engine is lost, or an error of the reward.
        """
        metrics: dict[str, float] = {}
        tables: dict[str, pa.Table] = {}
        written: dict[str, TableRef] = {}
        with Pools(self.config, self._pool) as pools, self.progress.stage(version - 1, "evaluate"):
            for eval_set, prompts in self.evaluation_sets:
                table, scores = evaluate_set(
                    eval_set,
                    prompts,
                    urls,
                    self.config,
                    step=version - 1,
                    tokenizer=self.tokenizer,
                    progress=self.progress.update,
                    pools=pools,
                    services=known,
                )
                tables[eval_set.name] = table
                written[eval_set.name] = self.evaluations.write_table(version, eval_set.name, table)
                metrics.update(scores)
        replaced, extra = log_evaluation(tables, self.config, step=version - 1)
        metrics = extra if replaced else {**metrics, **extra}
        return self.evaluations.finish(version, key, written, metrics)

    def _pool(self, workers: int, seconds: float, variables: Mapping[str, str]) -> RewardPool:
        own, problems = read_environment_file(self.config.run.env_file)
        raise_problems(problems)
        return RewardPool(workers, seconds, {**own, **variables})
