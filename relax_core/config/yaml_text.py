"""YAML text: plain types only.

Guarantee: what is read is what JSON could say: texts, numbers, true, false, null, lists and mappings. No text makes an
object of a class or runs code; a key that is given twice in one mapping is an error instead of the last one winning;
`1e-6` is a number, while a date, `010` and `1:30` stay the texts that they are. What ``dump_yaml`` writes,
``load_yaml`` reads back equal.
"""

import errno
import os
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

MAX_DEPTH = 50
"""Values are nested no deeper."""

MAX_VALUES = 1_000_000
"""A file has no more values, with every alias written out."""

_TAG = "tag:yaml.org,2002:"
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0b[01_]+|0o[0-7_]+|0x[0-9a-fA-F_]+)")
_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+"
    r"|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)"
)
_READ_AS = ("null", "bool", "merge")
"""What plain scalars may be beside numbers, by YAML 1.1's rules."""


class _Loader(yaml.SafeLoader):
    """Plain types, and no key twice in one mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == f"{_TAG}merge":
                continue
            key = self.construct_object(key_node, deep=True)  # type: ignore[no-untyped-call]
            if isinstance(key, Hashable):
                if key in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key} is given twice", key_node.start_mark)
                seen.add(key)
        return super().construct_mapping(node, deep)

    def number(self, node: yaml.ScalarNode) -> int | float:
        """A whole number in base 10, or behind 0x, 0o, 0b; or any other number."""
        text = str(self.construct_scalar(node)).replace("_", "")
        try:
            return int(text, 0) if node.tag == f"{_TAG}int" else float(_PYTHON.get(text.lower().lstrip("+"), text))
        except ValueError as error:
            problem = "a number has too many digits" if "limit" in str(error) else f"{text} is no number"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None

    def refuse(self, node: yaml.Node) -> Any:
        """A tag that stands for something else than a plain value."""
        tag = f"!!{node.tag.removeprefix(_TAG)}" if node.tag.startswith(_TAG) else node.tag
        problem = f"the tag {tag} is not read: values are texts, numbers, true, false, null, lists and mappings"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


_PYTHON = {".inf": "inf", "-.inf": "-inf", ".nan": "nan"}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.removeprefix(_TAG) in _READ_AS]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.yaml_constructors = {
    tag: construct
    for tag, construct in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.removeprefix(_TAG) in ("null", "bool", "int", "float", "str", "seq", "map")
}
_Loader.add_implicit_resolver(f"{_TAG}int", re.compile(f"^(?:{_INT.pattern})$"), list("-+0123456789"))
_Loader.add_implicit_resolver(f"{_TAG}float", re.compile(f"^(?:{_FLOAT.pattern})$"), list("-+0123456789."))
_Loader.add_constructor(f"{_TAG}int", _Loader.number)
_Loader.add_constructor(f"{_TAG}float", _Loader.number)
_Loader.add_constructor(None, _Loader.refuse)  # type: ignore[type-var]


class _TextLoader(_Loader):
    """The same, but that a number stays the text that it is written as."""


for _tag in ("int", "float"):
    _TextLoader.add_constructor(f"{_TAG}{_tag}", yaml.SafeLoader.construct_yaml_str)  # type: ignore[type-var]


class _Dumper(yaml.SafeDumper):
    """Plain types, with every text in a style that reads back the same, here and by YAML 1.1's rules."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # outside double quotes PyYAML writes these line breaks of Unicode as they are, and reads them back as others
    style = '"' if any(character in text for character in "\x85\u2028\u2029") else None
    return dumper.represent_scalar(f"{_TAG}str", text, style=style)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_implicit_resolver(f"{_TAG}int", re.compile(f"^(?:{_INT.pattern})$"), list("-+0123456789"))
_Dumper.add_implicit_resolver(f"{_TAG}float", re.compile(f"^(?:{_FLOAT.pattern})$"), list("-+0123456789."))


def load_yaml(text: str, *, numbers_as_text: bool = False) -> Any:
    """YAML's plain types.

    Args:
        numbers_as_text: `1.50` is the text `1.50`.

    Raises:
        yaml.YAMLError: the text is no YAML, gives a key twice, has a tag, contains itself, or is too deep or large.
    """
    loader = (_TextLoader if numbers_as_text else _Loader)(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _measure(node, {}, ())
        return loader.construct_document(node)  # type: ignore[no-untyped-call]
    except RecursionError:
        raise yaml.YAMLError(_TOO_DEEP) from None
    except (KeyError, TypeError, ValueError):
        raise yaml.YAMLError("a tag such as !!bool does not fit the value behind it") from None
    finally:
        loader.dispose()  # type: ignore[no-untyped-call]


def dump_yaml(value: Any) -> str:
    """Plain values as YAML, keys in their order."""
    return str(yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120))


_TOO_DEEP = f"it is nested more than {MAX_DEPTH} deep"


def _measure(node: yaml.Node, sizes: dict[int, int], above: tuple[int, ...]) -> int:
    """The number of values in a node.

    Raises:
        yaml.YAMLError: it contains itself, or is too deep or too large.
    """
    if id(node) in sizes:
        return sizes[id(node)]
    if id(node) in above:
        raise yaml.composer.ComposerError(None, None, "an alias stands inside its own anchor", node.start_mark)
    if len(above) > MAX_DEPTH:
        raise yaml.composer.ComposerError(None, None, _TOO_DEEP, node.start_mark)
    size = 1
    if isinstance(node, yaml.CollectionNode):
        parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        size += sum(_measure(part, sizes, (*above, id(node))) for part in parts)
    if size > MAX_VALUES:
        problem = f"its aliases stand for more than {MAX_VALUES} values"
        raise yaml.composer.ComposerError(None, None, problem, node.start_mark)
    sizes[id(node)] = size
    return size


def read_text(path: str) -> str:
    """The text of a local file, `~` at the beginning of its path being the home folder; a byte order mark is left out.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: it is no UTF-8 text.
    """
    try:
        return Path(os.path.expanduser(path)).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise
    except ValueError:
        raise OSError(errno.EINVAL, "no path has such characters") from None


def why_unreadable(error: OSError | UnicodeDecodeError | yaml.YAMLError) -> str:
    """Why a YAML file cannot be read, as the reason of a `Problem`."""
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}."
    if isinstance(error, UnicodeDecodeError):
        wide = error.object[:2] in (b"\xff\xfe", b"\xfe\xff")
        return f"cannot be read: is {'UTF-16' if wide else 'no UTF-8'} text. Save it as UTF-8."
    if isinstance(error, yaml.reader.ReaderError):
        return f"is no valid YAML: it has the character U+{_code(error.character):04X}, which no text has."
    mark = getattr(error, "problem_mark", None)
    line = f" in line {mark.line + 1}" if mark else ""
    problem = str(getattr(error, "problem", None) or error)
    context = getattr(error, "context", None)
    if problem.startswith("but ") and context:  # half a sentence
        problem = f"{context}, {problem}"
    if "'\\t'" in problem:
        problem = "a tab stands where only spaces may; indent with spaces"
    return f"is no valid YAML{line}: {problem}."


def _code(character: Any) -> int:
    return character if isinstance(character, int) else ord(character)
