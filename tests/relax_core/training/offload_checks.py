"""What the ranks of test_trainer_offload.py run."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from trainers import PLAIN, make_config, make_trainer, same, weights
from training_batches import batches

from relax_core.training import build, offload
from relax_core.training import trainer as trainer_module
from relax_core.training.host_memory import CHUNK_BYTES

KINDS: dict[str, dict[str, Any]] = {
    "float32": {},
    "sharded": {"use_distributed_optimizer": True},
    "bfloat16": {"bf16": True, "use_distributed_optimizer": True},
    "bfloat16 whole": {"bf16": True},
}


def everything(model: str, work: str) -> dict[str, Any]:
    """For each kind of optimiser: a run that offloads between all calls against one that never does."""
    found = {}
    for name, options in KINDS.items():
        plain = _run(model, work, {**PLAIN, **options}, offloads=False)
        moved = _run(model, work, {**PLAIN, **options}, offloads=True)
        assert same(plain.pop("weights"), moved.pop("weights")), name
        found[name] = {"same": plain.pop("rows") == moved.pop("rows"), **moved}
    out_and_in(model, work)
    on_its_way(model, work)
    return found


def _run(model: str, work: str, options: dict[str, Any], offloads: bool) -> dict[str, Any]:
    store, refs = batches(work)
    others = _bytes()
    trainer = make_trainer(make_config(model, options))
    rows, freed, left = [], [], []

    def leave() -> None:
        if not offloads:
            return
        freed.append(trainer.offload())
        left.append(_bytes() - others)
        assert trainer.offload() == 0  # a repeated call does nothing
        assert trainer.status()["offloaded"]

    leave()  # before there is a state of the optimiser
    for step in range(3):
        rows.append(trainer.train(step, step + 1, refs[step], store.url, f"w{step}").metrics)
        leave()
    folder = str(Path(work, f"offload-{offloads}-{sorted(options)}"))
    trainer.save(folder, 2)  # brings the weights back by itself
    assert not trainer.status()["offloaded"]
    leave()
    trainer.load(folder, 2)
    leave()
    rows.append(trainer.log_probs(refs[0], store.url).values.tolist())
    return {"rows": rows, "weights": weights(trainer), "freed": freed, "left": left}


def _bytes() -> int:
    """Bytes of all tensors of the process but the host's copies, each storage once, as the collector sees them."""
    gc.collect()
    found = {}
    for item in gc.get_objects():
        if isinstance(item, torch.Tensor) and item.layout == torch.strided:
            storage = item.untyped_storage()
            if storage.nbytes() != CHUNK_BYTES:
                found[storage._cdata] = storage.nbytes()
    return sum(found.values())


def out_and_in(model: str, work: str) -> None:
    """Views stay valid, ``onload`` is as good as a call that needs the weights, a failed return can be repeated."""
    store, refs = batches(work)
    trainer = make_trainer(make_config(model, {**PLAIN, "use_distributed_optimizer": True}))
    trainer.train(0, 1, refs[0], store.url, "w")
    before = weights(trainer)
    parameter = next(trainer.model.parameters())
    view = parameter.data.view(-1)[1:3]
    address, kept = parameter.data_ptr(), view.clone()
    freed = trainer.offload()
    assert address != 0
    assert parameter.untyped_storage().nbytes() == 0
    with _room_for(1):
        with pytest.raises(torch.OutOfMemoryError):
            trainer.onload()
        assert trainer.status()["offloaded"]
    assert trainer.onload() >= freed  # what is in one storage now begins at multiples of 512 bytes in it
    assert trainer.onload() == 0
    assert same(before, weights(trainer))
    assert torch.equal(view, kept)
    with pytest.raises(Exception, match="version"):
        trainer.push_weights(7, [], "")
    trainer.offload()
    trainer.initialise()  # new weights: what was away is forgotten
    assert trainer.onload() == 0
    assert not same(before, weights(trainer))


@contextmanager
def _room_for(storages: int) -> Iterator[None]:
    """The device has room for so many more storages."""
    content, asked = offload._bytes, [0]

    def fails(storage: torch.UntypedStorage, size: int) -> torch.Tensor:
        asked[0] += 1
        if asked[0] > storages:
            raise torch.OutOfMemoryError("no room")
        return content(storage, size)

    with patch.object(offload, "_bytes", fails):
        yield


def on_its_way(model: str, work: str) -> None:
    """What each call does while the state of the optimiser, or its copy, is still on its way."""
    store, refs = batches(work)
    options = {**PLAIN, "bf16": True, "use_distributed_optimizer": True}
    plain, moved = (make_trainer(make_config(model, options)) for _ in range(2))
    for trainer in (plain, moved):
        trainer.train(0, 1, refs[0], store.url, "w")
    main = moved._parts.optimizer.chained_optimizers[0].optimizer.param_groups[0]["params"]
    moved.offload()
    moved.onload()
    assert all(torch.isnan(one).all() for one in main)  # on a CPU it comes at the last moment
    assert len({one.untyped_storage()._cdata for one in main}) == 1  # side by side
    assert same(weights(plain), weights(moved))
    assert plain.log_probs(refs[0], store.url).values.tolist() == moved.log_probs(refs[0], store.url).values.tolist()
    assert all(torch.isnan(one).all() for one in main)  # neither needed it

    before = moved.status()["moved"]["out_bytes"]
    moved.offload()  # nothing has changed, so that nothing is copied
    assert moved.status()["moved"]["out_bytes"] == before
    folder = str(Path(work, "on-its-way"))
    moved.save(folder, 0)  # needs it, and leaves the copy valid
    assert not any(torch.isnan(one).any() for one in main)
    for step in (1, 2):  # the copy that an update begins is of no use to the next one
        for trainer in (plain, moved):
            trainer.train(step, step + 1, refs[step], store.url, f"w{step}")
    moved.offload()
    rows = [trainer.train(3, 4, refs[0], store.url, "w3").metrics for trainer in (plain, moved)]
    assert rows[0] == rows[1]
    assert same(weights(plain), weights(moved))

    moved.offload()
    moved.onload()
    moved.load(folder, 0)  # over a state that is still on its way, and then the copy of before is of no use
    moved.offload()
    plain.load(folder, 0)
    rows = [trainer.train(1, 2, refs[1], store.url, "w1").metrics for trainer in (plain, moved)]
    assert rows[0] == rows[1]
    assert same(weights(plain), weights(moved))

    main = moved._parts.optimizer.chained_optimizers[0].optimizer.param_groups[0]["params"]
    moved.offload()
    moved.onload()
    assert all(torch.isnan(one).all() for one in main)
    old = weakref.ref(next(moved.model.parameters()))

    def build_parts(*arguments: Any) -> Any:
        assert old() is None  # there is room for the new model
        return build.build_parts(*arguments)

    with patch.object(trainer_module, "build_parts", build_parts):
        moved.initialise()
    assert not any(torch.isnan(one).any() for one in main)  # it came before its memory was somebody else's
    forgets(model, work)


def forgets(model: str, work: str) -> None:
    """An optimiser that begins each update afresh forgets a state that is on its way too."""
    store, refs = batches(work)
    options = {**PLAIN, "reset_optimizer_states": True}
    plain, moved = (make_trainer(make_config(model, options)) for _ in range(2))
    for step in range(2):
        for trainer in (plain, moved):
            trainer.train(step, step + 1, refs[step], store.url, f"w{step}")
        moved.offload()
        moved.onload()
    assert same(weights(plain), weights(moved))


def two_ranks(model: str, work: str) -> bool:
    """Two ranks that share Adam's state, with overlapping reductions: the same bits with and without."""
    options = {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True}
    options |= {"resource": {"actor": (1, 2), "rollout": (1, 1)}, "micro_batch_size": 1, **PLAIN}
    plain, moved = (_run(model, work, {**options}, offloads) for offloads in (False, True))
    return same(plain["weights"], moved["weights"]) and plain["rows"] == moved["rows"]
