"""The content of a YAML or JSON file, and the references in it: `${oc.env:HOME}`, `${data.folder}`.

Guarantee: a text without `${` stays as it is; a reference that leads nowhere, in a circle, or to something that does
not fit is an error that says so. Nothing but the file and the environment is read.
"""

import os
import re
from typing import Any

import yaml

from data.nearest import nearest
from relax_core.config.plain import NotPlainError, read_json
from relax_core.config.yaml_text import load_yaml, read_text, why_unreadable


class BadFileError(ValueError):
    """A file that cannot be used; the text says why."""


class BadReferenceError(ValueError):
    """A reference that cannot be followed.

    Args:
        reason: why not.
        fix: what to do about it.
    """

    def __init__(self, reason: str, fix: str = "") -> None:
        super().__init__(reason)
        self.fix = fix


def load_file(path: str) -> Any:
    """The plain values of a file: JSON where its name says so, else YAML.

    Raises:
        BadFileError: it cannot be read, is neither, or gives a key twice.
    """
    try:
        text = read_text(path)
        # YAML takes most JSON, but no tabs before a key
        return read_json(text) if path.endswith(".json") else load_yaml(text)
    except NotPlainError as error:
        raise BadFileError(f"is no valid JSON: {error}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadFileError(why_unreadable(error)) from None


_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
Place = tuple[str, ...]


class References:
    """Follows the references of one file.

    Args:
        root: its content, where references begin.

    Attributes:
        used: every place that a reference led to or through, as keys from the root.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self.used: set[Place] = set()

    def resolve(self, value: Any, followed: tuple[Place, ...] = ()) -> Any:
        """A value with every reference in it replaced. A text that is one reference becomes what that leads to.

        Args:
            value: of the file.
            followed: the references that have led here.

        Raises:
            BadReferenceError: see the class.
        """
        if isinstance(value, dict):
            return {key: self.resolve(item, followed) for key, item in value.items()}
        if isinstance(value, list):
            return [self.resolve(item, followed) for item in value]
        if not isinstance(value, str):
            return value
        if "${" in _REFERENCE.sub("", value):
            raise BadReferenceError("has a `${` that does not end, or one inside another.", "Write ${a.b}.")
        whole = _REFERENCE.fullmatch(value)
        if whole:
            return self._target(whole[1].strip(), followed)
        return _REFERENCE.sub(lambda match: self._inside_text(match[1].strip(), followed), value)

    def _inside_text(self, reference: str, followed: tuple[Place, ...]) -> str:
        target = self._target(reference, followed)
        if target is None or isinstance(target, dict | list):
            raise BadReferenceError(f"${{{reference}}} is no text or number.")
        return str(target)

    def _target(self, reference: str, followed: tuple[Place, ...]) -> Any:
        resolver, colon, argument = reference.partition(":")
        if colon:
            if resolver.strip() != "oc.env":
                fix = "References are ${oc.env:VARIABLE}, ${oc.env:VARIABLE,default} and ${key.of.this.file}."
                raise BadReferenceError(f"has a reference of the kind {resolver!r}, which is not known.", fix)
            return _environment(argument)
        place = tuple(re.findall(r"[^.\[\]\s]+", reference))
        if not place or reference.startswith("."):
            raise BadReferenceError(f"has the reference ${{{reference}}}, which names no place.", "Begin at the root.")
        if place in followed:
            raise BadReferenceError(f"${{{reference}}} leads to itself.")
        target = self._root
        for depth, key in enumerate(place, 1):
            keys: dict[str, Any] = {}
            if isinstance(target, dict):
                keys = {str(name): item for name, item in target.items()}
            elif isinstance(target, list):
                keys = {str(index): item for index, item in enumerate(target)}
            if key not in keys:
                raise BadReferenceError(f"${{{reference}}} leads nowhere: no {key}.", nearest(key, keys))
            target = keys[key]
            self.used.add(place[:depth])
        return self.resolve(target, (*followed, place))


def _environment(argument: str) -> Any:
    name, comma, default = (part.strip() for part in argument.partition(","))
    value = os.environ.get(name)
    if value is not None:
        return value
    if not comma:
        raise BadReferenceError(
            f"needs the environment variable {name}, which is not set.", f"Set it, or write ${{oc.env:{name},default}}."
        )
    return None if default == "null" else default.strip("'\"")
