"""A trainer that leaves its device between all calls trains as one that never does, bit by bit, and empties it.

Storages are emptied and filled on a CPU as on a GPU, so the test is real without one.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run_ranks
from tiny import make_tiny
from training_batches import write_batches

from relax_core.training import offload
from relax_core.training.offload import HostMemory, Offload

CHECKS = "relax_core.training.offload_checks"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    work = tmp_path_factory.mktemp("offload")
    write_batches(str(work))
    return {"model": str(make_tiny(work / "model", tie=True)), "work": str(work)}


@pytest.mark.megatron
def test_offloading_between_all_calls_changes_no_bit_and_leaves_nothing(place: dict[str, Any]) -> None:
    found = run_ranks(1, f"{CHECKS}:everything", place)[0]
    for kind in ("float32", "sharded", "bfloat16", "bfloat16 whole"):
        assert found[kind]["same"], kind
        # states of random numbers, 5,056 bytes each, and the frequencies of the rotary embedding
        assert max(found[kind]["left"]) < 20_000, found[kind]
        assert min(found[kind]["freed"]) > 400_000


@pytest.mark.megatron
def test_several_ranks_offload_too(place: dict[str, Any]) -> None:
    assert run_ranks(2, f"{CHECKS}:two_ranks", place) == [True, True]


def test_tensors_that_share_a_storage_leave_once_and_larger_ones_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offload, "CHUNK_BYTES", 64)
    whole, gradient, alone = torch.arange(40, dtype=torch.float32), torch.ones(5), torch.arange(3)
    parts = [whole[:10], whole[10:]]
    moved = Offload(torch.device("cpu"))
    # 40 x 4 + 3 x 8 bytes are kept, 5 x 4 are emptied; the view among the emptied ones belongs to what is kept
    assert moved.leave([*parts, alone], [gradient, whole[3:5]]) == 160 + 24 + 20
    assert [tensor.untyped_storage().nbytes() for tensor in (whole, gradient, alone)] == [0, 0, 0]
    assert moved.come_back() == 204
    assert torch.equal(parts[1], torch.arange(10.0, 40.0))
    assert torch.equal(alone, torch.arange(3))
    assert torch.equal(gradient, torch.zeros(5))


def test_host_memory_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offload, "CHUNK_BYTES", 8)
    host = HostMemory(pinned=False)
    first = [len(piece) for piece in host.take(20)]
    assert first == [8, 8, 4]
    places = [piece.data_ptr() for piece in host.take(4)]
    host.rewind()
    assert [piece.data_ptr() for piece in host.take(20)][2] + 4 == places[0]
