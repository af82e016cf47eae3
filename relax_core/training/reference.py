"""The reference policy: a copy of weights that takes the model's place for one pass.

Guarantee: after the ``with`` block the model has its own weights again, by pointer, whatever happened inside; nothing
is copied on the device that holds the copy. The copy lives in host memory.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class WeightCopy:
    """A copy, in host memory, of what a model's parameters hold now."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.take(model)

    def take(self, model: torch.nn.Module) -> None:
        """Copy what a model's parameters hold now, in place of what was copied before."""
        self._values = [parameter.detach().to("cpu", copy=True) for parameter in model.parameters()]

    @contextmanager
    def in_place_of(self, model: torch.nn.Module) -> Iterator[None]:
        """Let the model compute with the copied weights.

        Args:
            model: with the parameters of the copied one.
        """
        parameters = list(model.parameters())
        own = [parameter.data for parameter in parameters]
        try:
            for parameter, value in zip(parameters, self._values, strict=True):
                parameter.data = value.to(parameter.device, non_blocking=True)
            yield
        finally:
            for parameter, data in zip(parameters, own, strict=True):
                parameter.data = data
