"""A configuration as the rules see it: every option by its name, and the sizes that follow.

Guarantee: reading an option is recorded, so that a test can hold a rule to the options that it says it reads.
"""

from typing import Any

from relax_core.config import derived
from relax_core.config.options import OPTIONS, find_option, get_option
from relax_core.config.sections import RelaxConfig
from relax_core.training.shape import ModelShape

SIZES = {
    "samples": derived.samples_per_step,
    "world": derived.trainer_world_size,
    "replicas": derived.data_parallel_size,
    "model_parallel": derived.model_parallel_size,
    "longest_sample": derived.longest_sample,
}
"""Name of a derived size -> what computes it."""

SIZE_READS: dict[str, tuple[str, ...]] = {
    "samples": ("rollout_batch_size", "n_samples_per_prompt"),
    "world": ("resource",),
    "replicas": ("resource", *derived.MODEL_PARALLEL),
    "model_parallel": derived.MODEL_PARALLEL,
    "longest_sample": ("rollout_max_context_len", "rollout_max_prompt_len", "rollout_max_response_len"),
}
"""Name of a derived size -> the options that it is computed from."""


class Values:
    """The options of one configuration as attributes (`values.lr`), and as the fields of a format text.

    Args:
        config: resolved.
        model: the shape of the model; None when it is not known.
        given: names of the options that a person gave a value other than the default or set on purpose.
    """

    def __init__(self, config: RelaxConfig, model: ModelShape | None = None, given: frozenset[str] | None = None):
        self.config = config
        self.model = model
        self._given = given
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name in SIZES:
            self.read.update(SIZE_READS[name])
            return SIZES[name](self.config)
        if name.startswith("_") or find_option(name) is None:
            raise AttributeError(name)
        self.read.add(name)
        return get_option(self.config, name)

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self, name)
        except AttributeError:
            raise KeyError(name) from None

    def is_given(self, name: str) -> bool:
        """Whether a person gave the option, even with the value that it has by default."""
        self.read.add(name)
        if self._given is not None:
            return name in self._given
        value = get_option(self.config, name)
        return value != OPTIONS[name].default if name in OPTIONS else value is not None

    def devices(self, role: str) -> int:
        """Devices of a role in ``--resource``."""
        self.read.add("resource")
        return derived.role_devices(self.config, role)
