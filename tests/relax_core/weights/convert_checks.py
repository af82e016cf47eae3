"""What a rank of ``test_convert.py`` does: train, save, export."""

import os
from typing import Any

from ranks import meeting_file
from trainers import follow, make_config
from training_batches import value_batch

from data.store import RunStore


def saved_and_exported(work: str, policies: dict[str, dict[str, Any]], critic: str) -> None:
    """A step of each policy and of a critic: checkpoint below ``<work>/<name>-saved``, export ``<work>/<name>``.

    Args:
        policies: name to its model and options.
        critic: the critic's model.
    """
    for name, (model, options) in policies.items():
        follow(model, work, name, options, stop=1, save=(f"{work}/{name}-saved", 0))
    from relax_core.training.trainer import Trainer

    config = make_config(critic, {"advantage_estimator": "ppo", "use_kl_loss": False, "kl_loss_coef": 0.0})
    trainer = Trainer(config, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "cpu", "critic")
    trainer.join(meeting_file())
    trainer.initialise()
    store = RunStore(work)
    trainer.train(0, 1, value_batch(store, "values"), store.url, "c1")
    trainer.save(f"{work}/critic-saved", 0)
    trainer.export_hf(f"{work}/critic")
