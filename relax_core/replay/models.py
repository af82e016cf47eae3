"""The models that a replay asks, with the weights that the step began with.

Guarantee: the weights are those that the run's recorded updates made under the run's own options, whatever options the
replay sets: the newest checkpoint, and the stored batches after it, trained again; only then other options count. The
run directory is read and never written; what has to be saved on the way lies in a scratch folder.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from data.errors import UserError
from data.store import RunStore
from relax_core.config import RelaxConfig, stage_options
from relax_core.config.derived import ACTOR_FOLDER, CRITIC_FOLDER, needs_critic
from relax_core.replay.changes import one_process, pinned_length
from relax_core.run.ports import TrainerPort
from relax_core.run.records import StageRecords
from relax_core.run.recovery import History, bring_trainer_to
from relax_core.run.start import critic_start_id, pin_load, start_id
from relax_core.training.roles import Role

MakeTrainer = Callable[[RelaxConfig, Role], TrainerPort]
"""Makes a trainer at version 0."""


class Models:
    """Trainers at the version of a step, made when first asked for.

    Args:
        store: of the run.
        step: of the run; the weights are those before its update.
        base: the run's own options, with the place where the model is.
        new: the options of the replay.
        scratch: a local folder.
        make: see ``MakeTrainer``.
        say: is told what is done and why.
    """

    def __init__(
        self,
        store: RunStore,
        step: int,
        base: RelaxConfig,
        new: RelaxConfig,
        scratch: str,
        make: MakeTrainer,
        say: Callable[[str], None],
    ) -> None:
        self._store, self._step, self._base, self._new = store, step, base, new
        self._scratch, self._make, self._say = scratch, make, say
        self._trainers: dict[Role, TrainerPort] = {}

    def history(self, role: Role) -> History:
        """What the run says of the weights of one of its models.

        Raises:
            UserError: the run has no such model.
        """
        if role == "critic" and not needs_critic(self._base):
            estimator = self._new.algorithm.advantage_estimator
            raise UserError(f"--advantage-estimator {estimator} needs a critic, and the run has none.")
        config, options = self._pinned(self._base), self._base.checkpoint
        records = StageRecords(self._store)
        if role == "actor":
            url = options.save or self._store.uri(ACTOR_FOLDER)
            return History(self._store, records, url, start_id(config))
        url = options.critic_save or self._store.uri(CRITIC_FOLDER)
        first = critic_start_id(config)
        return History(self._store, records, url, first, stage="train_critic", entry="critic", name="critic")

    def at_step(self, role: Role) -> TrainerPort:
        """The trainer of a role, with the weights and the optimiser that the step began with.

        Raises:
            UserError: they cannot be had: no model folder, no checkpoint and a batch that is gone, options that do not
                fit the saved state.
        """
        if role not in self._trainers:
            history = self.history(role)
            self._trainers[role] = self._changed(role, history) if self._differ() else self._unchanged(role, history)
        return self._trainers[role]

    def _differ(self) -> bool:
        stages: Any = ("forward", "train_critic", "train")
        return any(stage_options(self._base, stage) != stage_options(self._new, stage) for stage in stages)

    def _unchanged(self, role: Role, history: History) -> TrainerPort:
        trainer = self._made(self._base, role)
        try:
            bring_trainer_to(self._step, trainer, history, self._say)
        except BaseException:
            _close(trainer)
            raise
        return trainer

    def _changed(self, role: Role, history: History) -> TrainerPort:
        """Under other options: from a checkpoint of the very version, made here where the run has none."""
        if self._step == 0:
            return self._made(self._new, role)
        url, before = history.checkpoints, self._step - 1
        if history.newest_checkpoint(self._step, warn=False) != before:
            url = f"{self._scratch}/checkpoints-{role}"
            own = self._unchanged(role, history)
            try:
                own.save(url, before)
                own.finish_save()
            finally:
                _close(own)  # two models may not fit
        trainer = self._made(self._new, role)
        try:
            trainer.load(url, before)
        except BaseException:
            _close(trainer)
            raise
        return trainer

    def _made(self, config: RelaxConfig, role: Role) -> TrainerPort:
        folder = str(config.checkpoint.hf_checkpoint)
        if not (Path(folder) / "config.json").is_file():
            raise UserError(
                f"--hf-checkpoint {folder}: there is no model: config.json is missing.",
                "Say with --model where it is now.",
            )
        self._say(f"starting the {'trainer' if role == 'actor' else role} on the CPU")
        return self._make(one_process(pinned_length(self._pinned(config), self._step)), role)

    def _pinned(self, config: RelaxConfig) -> RelaxConfig:
        return pin_load(config, self._store, keep=False)

    def close(self) -> None:
        """End the trainers."""
        for trainer in self._trainers.values():
            _close(trainer)
        self._trainers.clear()


def _close(trainer: TrainerPort) -> None:
    close = getattr(trainer, "close", None)
    if close is not None:
        close()
