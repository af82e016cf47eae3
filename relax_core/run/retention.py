"""Which checkpoints of a run are kept.

Guarantee: only folders named ``iter_NNNNNNN`` are deleted, and only those of finished steps of this very run, after a
newer checkpoint of it is complete and its step is committed; the newest one that the run can go on from stays, and so
does one that is still being written. A deletion that a kill interrupts leaves an incomplete checkpoint, which nothing
reads and the next deletion removes.
"""

from collections.abc import Sequence

from data.files import FileStore
from relax_core.config.sections.checkpoint import CheckpointSection
from relax_core.run.recovery import History
from relax_core.training.checkpoint_index import MARKER, complete_markers, iterations
from relax_core.training.checkpoint_names import folder_name


def to_keep(found: Sequence[int], options: CheckpointSection) -> list[int]:
    """The checkpoints to keep of complete ones.

    With --rotate-ckpt: the newest, and of those whose iteration is a multiple of --save-interval the newest
    --max-actor-ckpt-to-keep. Without: the newest --max-actor-ckpt-to-keep. No number keeps all of these.

    Args:
        found: their iterations, newest first.
    """
    most = options.max_actor_ckpt_to_keep
    if not options.rotate_ckpt:
        return list(found[:most])
    landmarks = [iteration for iteration in found if iteration % (options.save_interval or 1) == 0]
    return sorted({*found[:1], *landmarks[:most]}, reverse=True)


def prune(history: History, options: CheckpointSection, version: int | None = None) -> list[int]:
    """Delete what need not be kept. Call it when a step is committed.

    Args:
        history: of the run's model whose checkpoints they are.
        version: that engines which are started anew will need, where it may be older than the newest: the newest
            checkpoint that it can be made from stays too.

    Returns:
        The iterations that were deleted.

    Raises:
        UserError: the storage does not let them be deleted.
    """
    if not options.rotate_ckpt and options.max_actor_ckpt_to_keep is None:
        return []
    files = FileStore(history.checkpoints)
    own = {
        iteration: bool(marker.get("optimizer", True))
        for iteration, marker in complete_markers(files, warn=False)
        if history.finished_id(iteration) == marker.get("weights_id")
    }
    if not own:
        return []
    newest = max(own)
    keep = set(to_keep(list(own), options))
    resumable = [iteration for iteration, whole in own.items() if whole]
    keep |= set(resumable[:1])
    if version is not None:
        keep |= set([iteration for iteration in resumable if iteration < version][:1])
    doomed = [iteration for iteration in own if iteration not in keep]
    begun = options.async_save
    doomed += [i for i in iterations(files) if i < newest and i not in own and _is_remainder(history, files, i, begun)]
    for iteration in sorted(doomed):
        # the marker first: what is left of the checkpoint counts for nothing from then on
        files.delete(f"{folder_name(iteration)}/{MARKER}")
        files.delete(folder_name(iteration))
    return sorted(doomed)


def _is_remainder(history: History, files: FileStore, iteration: int, begun: bool) -> bool:
    """Whether this run has saved or begun a checkpoint that has no marker: its deletion, or its writing, was killed.

    Args:
        begun: a step may have begun one though its manifest names none: in the background, when none was complete.
    """
    own = history.saved(iteration) is not None or (begun and history.finished_id(iteration) is not None)
    return own and not files.exists(f"{folder_name(iteration)}/{MARKER}")
