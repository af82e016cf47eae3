"""What the ranks of test_trainer_offload.py run."""

import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from trainers import PLAIN, make_config, make_trainer, same, weights
from training_batches import batches

from relax_core.training.offload import CHUNK_BYTES

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
    take = trainer._offload._host.take
    pieces = [0]

    def fails(size: int) -> Any:
        pieces[0] += 1
        if pieces[0] == 2:
            raise torch.OutOfMemoryError("no room")
        return take(size)

    trainer._offload._host.take = fails
    with pytest.raises(torch.OutOfMemoryError):
        trainer.onload()
    assert trainer.status()["offloaded"]
    trainer._offload._host.take = take
    assert trainer.onload() == freed
    assert trainer.onload() == 0
    assert same(before, weights(trainer))
    assert torch.equal(view, kept)
    with pytest.raises(Exception, match="version"):
        trainer.push_weights(7, [], "")
    trainer.offload()
    trainer.initialise()  # new weights: what was away is forgotten
    assert trainer.onload() == 0
    assert not same(before, weights(trainer))


def two_ranks(model: str, work: str) -> bool:
    """Two ranks that share Adam's state, with overlapping reductions: the same bits with and without."""
    options = {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True}
    options |= {"resource": {"actor": (1, 2), "rollout": (1, 1)}, "micro_batch_size": 1, **PLAIN}
    plain, moved = (_run(model, work, {**options}, offloads) for offloads in (False, True))
    return same(plain["weights"], moved["weights"]) and plain["rows"] == moved["rows"]
