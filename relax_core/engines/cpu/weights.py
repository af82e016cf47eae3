"""Comparison of an engine's weights on a CPU.

Guarantee: SGLang's own weight comparison (`/weights_checker`) does on a CPU what it does on a GPU: every element of
every tensor, bit by bit.
"""

from types import ModuleType


def compare_in_place(comparator: ModuleType) -> None:
    """SGLang moves each chunk to the GPU before it compares; on a CPU the chunk is where it should be."""
    raw = comparator.RawComparable
    chunk = comparator.CHUNK_NUMEL
    _ = raw.iter_chunks

    def iter_chunks(self):  # type: ignore[no-untyped-def]
        for part in self.tensor.reshape(-1).split(chunk):
            yield part, None

    raw.iter_chunks = iter_chunks


def snapshot_by_copy(checker: ModuleType) -> None:
    """Older versions take a snapshot by moving weights to the CPU, which there is no copy: the weights themselves."""
    cls = checker.WeightChecker
    take = cls._snapshot

    def snapshot(self):  # type: ignore[no-untyped-def]
        take(self)
        live = {tensor.data_ptr() for _, tensor in self._model_state()}
        for name, tensor in self._snapshot_tensors.items():
            if tensor.data_ptr() in live:
                self._snapshot_tensors[name] = tensor.clone()

    cls._snapshot = snapshot
