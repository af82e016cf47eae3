"""The weights that a run starts from.

Guarantee: they are the same on every start of the run, and have an identity that is cheap to find: no weight is read.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from data.files import FileStore
from data.store import RunStore
from relax_core.config import RelaxConfig, with_options
from relax_core.config.derived import needs_critic, needs_reference, needs_teacher
from relax_core.run.records import fingerprint
from relax_core.training.checkpoint_index import MARKER
from relax_core.training.checkpoint_names import folder_name
from relax_core.training.origin import (
    Origin,
    actor_origin,
    critic_origin,
    find_origin,
    reference_origin,
    teacher_origin,
)

_RECORD = "start.json"

_ITERATION_KEYS = {
    "load": "iteration",
    "ref_load": "ref_iteration",
    "opd_teacher_load": "teacher_iteration",
    "critic_load": "critic_iteration",
}
"""Option -> key of the record that holds which of its checkpoints is meant."""


def pin_load(config: RelaxConfig, store: RunStore, keep: bool = True) -> RelaxConfig:
    """A folder of checkpoints may get newer ones while this run goes on: it keeps those that it began with.

    Args:
        config: resolved: without --load the actor starts where --ref-load says.
        keep: write down which they are, for later starts.

    Raises:
        UserError: an option names a place without a model and without a complete checkpoint.
    """
    options = config.checkpoint
    places = {
        "load": options.load,
        "ref_load": options.ref_load if needs_reference(config) else None,
        "opd_teacher_load": config.opd.opd_teacher_load if needs_teacher(config) else None,
        "critic_load": options.critic_load if needs_critic(config) else None,
    }
    steps = {"ref_load": options.ref_ckpt_step, "opd_teacher_load": config.opd.opd_teacher_ckpt_step}
    found = store.read_json(_RECORD)
    known = found if isinstance(found, dict) else {}
    record: dict[str, str | int] = {}
    pinned: dict[str, str | int | None] = {}
    for name, place in places.items():
        if not place:
            continue
        if known.get(name) == place and isinstance(iteration := known.get(_ITERATION_KEYS[name]), int):
            origin = Origin(place, iteration)
        else:
            origin = find_origin(f"--{name.replace('_', '-')}", place, steps.get(name))
        if origin.iteration is not None and origin.path != place:
            record |= {name: place, _ITERATION_KEYS[name]: origin.iteration}
            pinned[name] = origin.path
    if keep and record and record != known:
        store.write_json(_RECORD, record)
    return with_options(config, pinned)


def start_id(config: RelaxConfig) -> str:
    """Identity of the first weights: names, sizes and shapes, not the whole content (gigabytes) nor times.

    Raises:
        UserError: there are none.
    """
    return fingerprint(_content(actor_origin(config)))


def critic_start_id(config: RelaxConfig) -> str:
    """The same of the critic's: with the seed of its head, unless that is in a critic's checkpoint.

    Raises:
        UserError: there are none.
    """
    origin = critic_origin(config)
    head = {} if is_critic(origin) else {"head": config.optimizer.seed}
    return fingerprint({"critic": _content(origin), **head})


def compared_weights(config: RelaxConfig, columns: Sequence[str]) -> dict[str, Any]:
    """Identities of the reference's and the teacher's weights, as far as columns of ``FORWARD`` are made with them.

    Raises:
        UserError: there are none.
    """
    origins = {"ref_log_probs": reference_origin, "teacher_log_probs": teacher_origin}
    return {name: fingerprint(_content(find(config))) for name, find in origins.items() if name in columns}


def is_critic(origin: Origin) -> bool:
    """Whether the weights are a critic's, with its head."""
    if origin.iteration is None:
        return False
    marker = FileStore(origin.url).read_json(f"{folder_name(origin.iteration)}/{MARKER}")
    return isinstance(marker, dict) and marker.get("role") == "critic"


def critic_start_text(config: RelaxConfig) -> str:
    """Where the critic begins, for the person watching.

    Raises:
        UserError: there are no weights.
    """
    origin = critic_origin(config)
    what = "the critic's checkpoint" if is_critic(origin) else "the actor's checkpoint"
    what = "the model" if origin.iteration is None else what
    return f"the critic starts from {what} {origin.path}{'' if is_critic(origin) else ', with a fresh value head'}"


def _content(origin: Origin) -> dict[str, Any]:
    """What tells these weights from others."""
    if origin.iteration is not None:
        folder = folder_name(origin.iteration)
        marker = FileStore(origin.url).read_bytes(f"{folder}/{MARKER}")
        return {"checkpoint": hashlib.sha256(marker).hexdigest(), "config": folder}
    place = Path(origin.url)
    files = sorted((f.name, f.stat().st_size) for f in place.glob("*.safetensors"))
    return {"files": files, "config": _digest(place / "config.json")}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""
