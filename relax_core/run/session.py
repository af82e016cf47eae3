"""The open run: configuration, run directory, prompts, engines.

Guarantee: opening is cheap and checks everything that can be checked without an engine (configuration against the run
directory, model and data files, a writable store) before anything expensive starts; all that later steps need to know
is derived from the run directory, so that a second process goes on where the first one was killed.
"""

import hashlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from data.cursor import Cursor
from data.errors import UserError
from data.prompts import PromptDataset, load_prompts
from data.store import RunStore
from relax_core.config import RelaxConfig, Source, Stage, options_hash, run_file, stage_options, with_options
from relax_core.run.lock import DriverLock
from relax_core.run.ports import Backend, EnginesPort, TrainerPort
from relax_core.run.records import StageRecords, fingerprint
from relax_core.run.recovery import History
from relax_core.training.checkpoint_index import MARKER, complete_iterations, folder_name, iteration_of, newest_complete

log = logging.getLogger(__name__)


BackendFactory = Callable[[RelaxConfig, str], Backend]


def run_id(url: str) -> str:
    """Name of a run in Ray and Prefect: the last part of its folder and a hash of the whole address."""
    address = url if "://" in url else os.path.realpath(url)
    name = address.rstrip("/").rsplit("/", 1)[-1]
    safe = "".join(c if c.isalnum() or c in "-_" else "-" for c in name)[:40]
    return f"{safe}-{hashlib.sha256(address.encode()).hexdigest()[:8]}"


class RunSession:
    """An open run.

    Args:
        config: resolved and validated configuration with ``run.run_dir`` set.
        sources: origin of each option, written to ``config.yaml``.
        make_backend: makes the way to engines from the final configuration and the run's name.
        progress: what is told of the stages (see ``relax_core.tracking.progress``).
        training: False for a look at a run: its ``config.yaml`` stays as it is.
    """

    def __init__(
        self,
        config: RelaxConfig,
        sources: Mapping[str, Source],
        make_backend: BackendFactory,
        progress: Any,
        training: bool = True,
    ) -> None:
        if config.run.run_dir is None:
            raise UserError("--run-dir is not set.", "Name a folder or an fsspec URL.")
        self.config = config
        self._make_backend = make_backend
        self._backend: Backend | None = None
        self.progress = progress
        self.store = RunStore(config.run.run_dir)
        self.id = run_id(config.run.run_dir)
        self.records = StageRecords(self.store)
        self.store.check_writable()
        self._lock = DriverLock(self.store)
        if training:
            self._keep_configuration(sources)
            self._pin_load()
            self.total_steps = self._total_steps()
            # The schedule of the learning rate, inside the trainer, needs the length of the run.
            self.config = with_options(self.config, {"num_rollout": self.total_steps})
        self.redone: list[int] = []
        self._next_step: int | None = None
        self.seconds: dict[str, float] = {}
        self._step_started = 0.0
        self._engines: tuple[TrainerPort, EnginesPort] | None = None

    def _keep_configuration(self, sources: Mapping[str, Source]) -> None:
        started = self.store.exists("steps") and self.store.exists("config.yaml")
        if self.store.exists("steps") and not started:
            log.warning(
                "%s has steps but no config.yaml: whether they fit these options is not checked", self.store.url
            )
        if started:
            old = self.store.read_bytes("config.yaml")
            run_file.refuse_other_configuration(run_file.load(old.decode())[0], self.config)
        self.store.write_bytes("config.yaml", run_file.dump(self.config, sources).encode())

    # Prompts

    @cached_property
    def tokenizer(self) -> Any:
        """Tokenizer of ``--hf-checkpoint``."""
        from transformers import AutoTokenizer  # here: it costs a second that a finished run does not need

        return AutoTokenizer.from_pretrained(str(self.config.checkpoint.hf_checkpoint))

    def _load_prompts(self, source: str, input_key: str, label_key: str | None) -> PromptDataset:
        options, rollout = self.config.data, self.config.rollout
        return load_prompts(
            source,
            tokenizer=self.tokenizer,
            input_key=input_key,
            label_key=label_key,
            metadata_key=options.metadata_key,
            tool_key=options.tool_key,
            apply_chat_template=options.apply_chat_template,
            template_kwargs=options.apply_chat_template_kwargs,
            system_prompt=options.system_prompt,
            max_prompt_len=rollout.rollout_max_prompt_len,
        )

    @cached_property
    def prompts(self) -> PromptDataset:
        """Training prompts."""
        options = self.config.data
        return self._load_prompts(str(options.prompt_data), options.input_key, options.label_key)

    @cached_property
    def evaluation_sets(self) -> dict[str, PromptDataset]:
        """Evaluation prompts by the name of their set."""
        options = self.config.eval
        pairs = options.eval_prompt_data or []
        return {
            name: self._load_prompts(
                path,
                options.eval_input_key or self.config.data.input_key,
                options.eval_label_key or self.config.data.label_key,
            )
            for name, path in zip(pairs[::2], pairs[1::2], strict=True)
        }

    def check_prompts(self) -> None:
        """Read all prompts now, so that a bad row is an error before an engine starts."""
        _ = self.prompts, self.evaluation_sets

    def evaluates_before(self, step: int) -> bool:
        """Whether the weights before ``step`` are scored: the first ones, unless that is switched off."""
        options = self.config.eval
        wanted = step == 0 and bool(options.eval_interval) and not options.skip_eval_before_train
        return wanted and bool(self.evaluation_sets)

    # Where the run is

    def _total_steps(self) -> int:
        rollout = self.config.rollout
        if rollout.num_rollout is not None:
            return rollout.num_rollout
        steps = len(self.prompts) * int(rollout.num_epoch or 0) // int(rollout.rollout_batch_size or 1)
        if steps == 0:
            raise UserError(
                f"--num-epoch {rollout.num_epoch} of {len(self.prompts)} prompts gives no whole step of "
                f"--rollout-batch-size {rollout.rollout_batch_size}.",
                "Lower --rollout-batch-size or raise --num-epoch.",
            )
        return steps

    def next_step(self) -> int:
        """First step that is not finished. Steps that a checkpoint covers need no tables any more, only manifests."""
        if self._next_step is None:
            self._next_step = self._find_next_step()
        return self._next_step

    def committed(self, step: int) -> None:
        """The manifest of ``step`` is written."""
        self._next_step = step + 1

    def _find_next_step(self) -> int:
        covered = -1
        for iteration, weights_id in complete_iterations(self.checkpoint_url):
            manifest = self.store.read_manifest(iteration)
            if manifest is not None and manifest["weights"]["id"] == weights_id:
                covered = iteration
                break
        last = self.store.last_complete_step(first=covered + 1)
        return (covered if last is None else last) + 1

    def cursor(self, step: int) -> Cursor:
        """Where the prompts of ``step`` begin."""
        if step == 0:
            return Cursor()
        manifest = self.store.read_manifest(step - 1)
        if manifest is None:
            raise UserError(
                f"The manifest of step {step - 1} is missing from {self.store.url}.", "Restore it, or start a new run."
            )
        return Cursor.from_json(manifest["cursor"])

    @cached_property
    def history(self) -> History:
        return History(self.store, self.records, self.checkpoint_url, self._start_id())

    @property
    def checkpoint_url(self) -> str:
        return self.config.checkpoint.save or self.store.uri("checkpoints")

    def _pin_load(self) -> None:
        """A Megatron ``--load`` may get newer checkpoints while this run goes on: it keeps the one it began with."""
        load = self.config.checkpoint.load
        if load is None or iteration_of(load) is not None or (Path(load) / "config.json").is_file():
            return
        start = self.store.read_json("start.json")
        if not isinstance(start, dict) or start.get("load") != load:
            iteration = newest_complete(load)
            if iteration is None:
                raise UserError(
                    f"--load {load} holds neither a model (config.json) nor a complete checkpoint (iter_*).",
                    "Give a Hugging Face folder or a checkpoint folder.",
                )
            start = {"load": load, "iteration": iteration}
            self.store.write_json("start.json", start)
        pinned = f"{load.rstrip('/')}/{folder_name(int(start['iteration']))}"
        self.config = with_options(self.config, {"load": pinned})

    def _start_id(self) -> str:
        """Identity of the first weights: names, sizes and shapes, not the whole content (gigabytes) nor times."""
        folder = Path(self.config.checkpoint.load or str(self.config.checkpoint.hf_checkpoint))
        if iteration_of(str(folder)) is not None:
            return fingerprint({"checkpoint": _digest(folder / MARKER), "config": folder.name})
        files = sorted((f.name, f.stat().st_size) for f in folder.glob("*.safetensors"))
        return fingerprint({"files": files, "config": _digest(folder / "config.json")})

    # Identity of stages

    def stage_key(self, stage: Stage, step: int, inputs: Mapping[str, Any]) -> str:
        """Identity of a stage: its options, its inputs, its place in the run."""
        options = options_hash(stage_options(self.config, stage))
        return fingerprint({"stage": stage, "step": step, "options": options, "inputs": dict(inputs)})

    # When

    def begin_step(self) -> None:
        """Start the clocks of a step: ``seconds`` by stage, as far as they ran in this process."""
        self.seconds, self._step_started = {}, time.perf_counter()

    def step_seconds(self) -> float:
        """Wall time since ``begin_step``."""
        return time.perf_counter() - self._step_started

    def checkpoint_due(self, step: int) -> bool:
        interval = self.config.checkpoint.save_interval
        return step + 1 == self.total_steps or bool(interval and (step + 1) % interval == 0)

    def evaluation_due(self, step: int) -> bool:
        interval = self.config.eval.eval_interval
        return bool(interval and (step + 1) % interval == 0)

    # Engines

    def ensure(self) -> None:
        """Live trainer and engines; starts what is missing."""
        self._engines = self.backend.ensure()

    def ensure_rollout(self) -> EnginesPort:
        """Live engines with the first weights, without a trainer."""
        return self.backend.ensure_rollout(self.history.weights_id(0))

    @property
    def backend(self) -> Backend:
        """Where engines come from; made when first needed."""
        if self._backend is None:
            self._backend = self._make_backend(self.config, self.id)
        return self._backend

    @property
    def engines_known(self) -> bool:
        """Whether this process has found its engines before."""
        return self._engines is not None

    @property
    def trainer(self) -> TrainerPort:
        return self._live()[0]

    @property
    def engines(self) -> EnginesPort:
        return self._live()[1]

    def _live(self) -> tuple[TrainerPort, EnginesPort]:
        if self._engines is None:
            self.ensure()
        assert self._engines is not None
        return self._engines

    def close(self) -> None:
        """End what this process owns, and let another driver in."""
        if self._backend is not None:
            self._backend.close()
        self._lock.release()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""
