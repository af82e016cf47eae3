"""Metrics for TensorBoard.

Guarantee: with --use-tensorboard every finished step's numbers are in an events file when its manifest is; a process
that goes on with a run tells TensorBoard to forget the steps that it makes anew. Neither torch nor TensorFlow is
needed. A missing package is an error before anything starts.
"""

import math
import os
import time
from collections.abc import Mapping
from importlib.util import find_spec

from data.errors import UserError
from relax_core.config.environment import read_environment_file
from relax_core.config.sections import RelaxConfig


def check_board(config: RelaxConfig) -> None:
    """Find out now what would be missing at the first step.

    Raises:
        UserError: the package is not there.
    """
    if config.tracking.use_tensorboard and find_spec("tensorboard") is None:
        raise UserError(
            "--use-tensorboard: the package tensorboard is not installed.", "pip install 'relax-rl[tensorboard]'"
        )


class TensorBoard:
    """An open events file.

    Args:
        folder: where it is made.
        first_step: steps from here on that are in older files of the folder are made anew.
    """

    def __init__(self, folder: str, first_step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.folder = folder
        self._event, self._summary = Event, Summary
        self._writer = EventFileWriter(folder)
        start = Event(step=first_step, wall_time=time.time())
        start.session_log.status = SessionLog.START
        self._writer.add_event(start)

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step; what is not finite is left out."""
        values = [
            self._summary.Value(tag=name, simple_value=value)
            for name, value in metrics.items()
            if value is not None and math.isfinite(value)
        ]
        self._writer.add_event(
            self._event(step=step, wall_time=time.time(), summary=self._summary(value=values))  # type: ignore[arg-type]
        )
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


def open_board(config: RelaxConfig, name: str, first_step: int) -> TensorBoard | None:
    """The events file of a run, if one is asked for: in a folder of its own, since runs may share the one above.

    Args:
        name: of the run; --tb-experiment-name takes its place.
    """
    options = config.tracking
    if not options.use_tensorboard or config.debug.load_debug_rollout_data:  # those samples are no steps of this run
        return None
    from_file, _ = read_environment_file(config.run.env_file)
    shared = options.tb_project_name or os.environ.get("TENSORBOARD_DIR") or from_file.get("TENSORBOARD_DIR")
    return TensorBoard(f"{shared or '.'}/{options.tb_experiment_name or name}", first_step)
