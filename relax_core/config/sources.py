"""Where a value comes from.

Guarantee: a source is one line that a person understands; the kinds that stand for what a person gave are told from
those that Relax filled in by ``is_given`` alone.
"""

Source = str
"""`default`, `derived`, `corrected`, `command line`, `environment RELAX_X`, `file run.yaml`, `custom config x.yaml`,
`parameters`."""

DEFAULT = "default"
DERIVED = "derived"
CORRECTED = "corrected"
COMMAND_LINE = "command line"
ENVIRONMENT = "environment"
FILE = "file"
CUSTOM = "custom config"
PYTHON = "Python"
PARAMETERS = "parameters"

_KINDS = (DEFAULT, DERIVED, CORRECTED, COMMAND_LINE, ENVIRONMENT, FILE, CUSTOM, PYTHON, PARAMETERS)


def is_given(source: Source) -> bool:
    """Whether a person gave the value."""
    return source not in (DEFAULT, DERIVED, CORRECTED)


def is_source(text: object) -> bool:
    """Whether a text read from a file is a source."""
    return isinstance(text, str) and any(text == kind or text.startswith(f"{kind} ") for kind in _KINDS)
