"""The weights that a run starts from.

Guarantee: they are the same on every start of the run, and have an identity that is cheap to find: no weight is read.
"""

import hashlib
from pathlib import Path

from data.files import FileStore
from data.store import RunStore
from relax_core.config import RelaxConfig, with_options
from relax_core.config.derived import needs_reference
from relax_core.run.records import fingerprint
from relax_core.training.checkpoint_index import MARKER, folder_name
from relax_core.training.origin import Origin, actor_origin, find_origin

_RECORD = "start.json"


def pin_load(config: RelaxConfig, store: RunStore, keep: bool = True) -> RelaxConfig:
    """A folder of checkpoints may get newer ones while this run goes on: it keeps those that it began with.

    Args:
        config: resolved: without --load the actor starts where --ref-load says.
        keep: write down which they are, for later starts.

    Raises:
        UserError: an option names a place without a model and without a complete checkpoint.
    """
    options = config.checkpoint
    places = {"load": options.load, "ref_load": options.ref_load if needs_reference(config) else None}
    found = store.read_json(_RECORD)
    known = found if isinstance(found, dict) else {}
    record: dict[str, str | int] = {}
    pinned: dict[str, str | int | None] = {}
    for name, place in places.items():
        if not place:
            continue
        if known.get(name) == place and isinstance(iteration := known.get(_iteration_key(name)), int):
            origin = Origin(place, iteration)
        else:
            step = options.ref_ckpt_step if name == "ref_load" else None
            origin = find_origin(f"--{name.replace('_', '-')}", place, step)
        if origin.iteration is not None and origin.path != place:
            record |= {name: place, _iteration_key(name): origin.iteration}
            pinned[name] = origin.path
    if keep and record and record != known:
        store.write_json(_RECORD, record)
    return with_options(config, pinned)


def _iteration_key(name: str) -> str:
    return {"load": "iteration", "ref_load": "ref_iteration"}[name]


def start_id(config: RelaxConfig) -> str:
    """Identity of the first weights: names, sizes and shapes, not the whole content (gigabytes) nor times.

    Raises:
        UserError: there are none.
    """
    origin = actor_origin(config)
    if origin.iteration is not None:
        folder = folder_name(origin.iteration)
        marker = FileStore(origin.url).read_bytes(f"{folder}/{MARKER}")
        return fingerprint({"checkpoint": hashlib.sha256(marker).hexdigest(), "config": folder})
    place = Path(origin.url)
    files = sorted((f.name, f.stat().st_size) for f in place.glob("*.safetensors"))
    return fingerprint({"files": files, "config": _digest(place / "config.json")})


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""
