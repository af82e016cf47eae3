"""JSON as the run directory holds it.

Guarantee: the text is valid JSON for every reader (DuckDB, jq, browsers): NumPy numbers are numbers, NaN and infinity,
which JSON has not, are null.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np


def dumps(obj: Any, indent: int | None = None) -> str:
    """JSON text of ``obj``, which may hold NumPy values, paths and objects with ``to_json()``.

    Raises:
        TypeError: a value has no JSON form.
    """
    try:
        return json.dumps(obj, ensure_ascii=False, indent=indent, default=_plain, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(obj), ensure_ascii=False, indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if hasattr(value, "to_json"):
        return value.to_json()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON: {value!r}")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value if value is None or isinstance(value, str | int) else _finite(_plain(value))
