"""The stream of a step's rewards where a filter may wait for scores.

Guarantee: it is the step's, whose scores the reward stage takes; where the step has scores already, so that it needs no
stream, there is one for the filter alone.
"""

from functools import partial

import pyarrow as pa

from relax_core.rewards.choice import training_choice
from relax_core.rewards.scored import calls_of_step
from relax_core.rewards.stream import RewardStream
from relax_core.rollout.scores import GroupScores
from relax_core.run.session import RunSession


class GroupStream:
    """Takes rows of finished groups.

    Args:
        needed: somebody waits for scores.
    """

    def __init__(self, run: RunSession, step: int, needed: bool) -> None:
        self._own: RewardStream | None = None
        add, stream = run.stream_rewards(step, pa.concat_tables), run.reward_stream(step)
        if add is None and needed:
            choice, kept = training_choice(run.config), partial(calls_of_step, run.store, step)
            services = run.known_services
            self._own = stream = RewardStream(choice, run.config, run.reward_pools, services, pa.concat_tables, kept)
        self._stream = stream

    def add(self, rows: pa.Table) -> None:
        """Score rows."""
        if self._stream is not None:
            self._stream.add(rows)

    def tell(self, scores: GroupScores) -> None:
        """Tell of what is found."""
        if self._stream is not None:
            self._stream.watch(scores.scored)

    def end(self) -> None:
        """End what nobody else knows of."""
        if self._own is not None:
            self._own.close()
