"""The transport that a run asks for.

Guarantee: TransferQueue is imported, and its actors are started, only where --data-transport says so; none of the
options changes what a rank gets, only the way there.
"""

from dataclasses import asdict, dataclass

from relax_core.config import RelaxConfig
from relax_core.run.transport.base import Transport


@dataclass(frozen=True)
class QueueSettings:
    """What a queue is started with: see ``QueueTransport``."""

    units: int
    capacity: int
    polling: bool
    per_rank: bool


def queue_settings(config: RelaxConfig) -> QueueSettings | None:
    """Of the queue of a run; None where it has none.

    It holds the samples of all steps that may be unfinished at once.
    """
    cluster, rollout = config.cluster, config.rollout
    if cluster.data_transport != "transfer_queue":
        return None
    samples = (rollout.rollout_batch_size or 1) * rollout.n_samples_per_prompt
    return QueueSettings(
        units=cluster.num_data_storage_units,
        capacity=samples * (cluster.max_staleness + 1),
        polling=cluster.polling_mode,
        per_rank=cluster.per_rank_fetch,
    )


def open_transport(config: RelaxConfig, run_id: str) -> Transport:
    """Start what --data-transport names; Ray is connected.

    Raises:
        UserError: it did not start.
    """
    settings = queue_settings(config)
    if settings is None:
        from relax_core.run.transport.ray_objects import RayTransport  # Ray costs half a second

        return RayTransport()
    from relax_core.run.transport.transfer_queue import QueueTransport

    return QueueTransport(run_id, **asdict(settings), timeout=config.run.engine_start_timeout)
