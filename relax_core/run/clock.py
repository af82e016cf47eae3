"""What the stages of a step took.

Guarantee: a stage that ran in this process since ``begin`` is there once, in the order of the ends; nothing else is.
"""

import time
from dataclasses import dataclass, field

from relax_core.tracking.timeline import Span


@dataclass
class StepClock:
    """The clock of one step.

    Attributes:
        spans: when stages ran.
    """

    spans: list[Span] = field(default_factory=list)
    _started: float = 0.0

    def begin(self) -> None:
        """A step begins."""
        self.spans, self._started = [], time.perf_counter()

    def ran(self, stage: str, started: float) -> float:
        """Note that a stage has run since ``started`` (of ``time.perf_counter``).

        Returns:
            Its seconds.
        """
        seconds = time.perf_counter() - started
        self.spans = [span for span in self.spans if span.stage != stage]
        self.spans.append(Span(stage, time.time() - seconds, seconds))
        return seconds

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by stage, in the order in which they ended."""
        return {span.stage: span.seconds for span in self.spans}

    @property
    def elapsed(self) -> float:
        """Wall time since the step began."""
        return time.perf_counter() - self._started
