"""The standard output of a flow run whose worker may die before it.

Guarantee: what is printed for a reader who is gone is dropped; it ends nothing.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class _Unbroken:
    """A stream that its reader cannot break."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """As the stream does it."""
        try:
            return int(self._stream.write(text))
        except BrokenPipeError:
            return len(text)

    def flush(self) -> None:
        """As the stream does it."""
        try:
            self._stream.flush()
        except BrokenPipeError:
            return

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def unbroken_output() -> Iterator[None]:
    """Standard output and standard error are such streams in the body."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _Unbroken(sys.stdout), _Unbroken(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
