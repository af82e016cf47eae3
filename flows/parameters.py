"""Configurations as parameters of flows, which Prefect keeps and its interface shows.

Guarantee: what Prefect stores of ``shown(config)`` has no secret in it; the flow itself gets every value.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer

from relax_core.config import RelaxConfig, Source
from relax_core.config.secrets import redact, redact_text


class _Shown(RelaxConfig):
    """A configuration that is written without its secrets."""

    @model_serializer(mode="wrap")
    def _without_secrets(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        sections: dict[str, dict[str, Any]] = write(self)
        return {
            section: {name: redact(name, value) for name, value in options.items()}
            for section, options in sections.items()
        }


def shown(config: RelaxConfig) -> RelaxConfig:
    """The same configuration, for a flow that Prefect tells of."""
    return _Shown.model_construct(**dict(config))


def shown_sources(sources: Mapping[str, Source]) -> dict[str, Source]:
    """The sources of options, without the passwords of addresses."""
    return {name: redact_text(source) for name, source in sources.items()}
