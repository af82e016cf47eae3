"""The options of Megatron-core and SGLang that are passed through, read from the snapshots beside this module.

Guarantee: every option of the packages that a command line can express is here, under the flag that the package itself
uses, and no two options share a spelling; reading needs neither package and takes milliseconds. ``docs/snapshots.py``
writes the snapshots from the installed packages.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

Kind = Literal["bool", "int", "float", "text", "choice", "list", "json"]
Role = Literal["passed", "shape", "owned"]

SECTIONS = ("megatron", "sglang")
PREFIX = {"megatron": "", "sglang": "sglang_"}
"""Section -> what its options' names begin with."""


@dataclass(frozen=True)
class PassThrough:
    """One option of another package.

    Attributes:
        name: name in a run file: the field's name in Megatron; ``sglang_`` and the argument's name in SGLang.
        section: ``megatron`` or ``sglang``.
        flag: Megatron's own flag; SGLang's with ``--sglang-`` before it.
        kind: how a value is written. A ``list`` is one or more words, ``json`` one word that may hold any JSON value, a
            ``choice`` is one of several texts.
        targets: the constructors that take it: ``transformer``, ``optimizer``, ``ddp``; or ``server``.
        field: the library's own name of it.
        default: the library's default; it counts where nothing is given.
        optional: None is a value.
        item: what a ``list`` holds: ``int``, ``float`` or ``text``; else empty.
        choices: all values of a choice; of a number or of a list's items too, where the library allows only some.
        aliases: further spellings of the flag.
        negation: the flag that turns a ``bool`` off; None for other kinds.
        negation_aliases: further spellings of the negation.
        role: ``passed``: handed over as given. ``shape``: describes the model, so that it must agree with the model's
            config.json. ``owned``: Relax decides it, and another value would break something or change nothing.
        agrees: of an owned option, the values that are what Relax does anyway; none where that depends on others.
        converts: how the constructor wants the value, where not as it is: see ``relax_core.training.introspect``.
        renamed: (target, name) where a constructor calls the field otherwise.
    """

    name: str
    section: str
    flag: str
    kind: Kind
    targets: tuple[str, ...]
    field: str
    default: Any = None
    optional: bool = True
    item: str = ""
    choices: tuple[Any, ...] = ()
    aliases: tuple[str, ...] = ()
    negation: str | None = None
    negation_aliases: tuple[str, ...] = ()
    role: Role = "passed"
    agrees: tuple[Any, ...] = ()
    converts: str = ""
    renamed: tuple[tuple[str, str], ...] = ()

    def field_of(self, target: str) -> str:
        """What a constructor calls the field."""
        return dict(self.renamed).get(target, self.field)

    def spellings(self) -> Iterator[tuple[str, bool]]:
        """Every flag of it, with False where it turns the option off."""
        yield self.flag, True
        yield from ((flag, True) for flag in self.aliases)
        if self.negation is not None:
            yield self.negation, False
        yield from ((flag, False) for flag in self.negation_aliases)


def pass_throughs() -> Mapping[str, PassThrough]:
    """Every option of both packages by its name, Megatron's first."""
    return _options()


def pass_through_flags() -> Mapping[str, tuple[PassThrough, bool]]:
    """Every spelling of every flag, with its option; False when the spelling turns the option off."""
    return _flags()


def snapshot_version(section: str) -> str:
    """The version of the package that a section's options were read from."""
    return read_snapshot(section).version


def server_words(option: PassThrough, value: Any) -> tuple[str, ...]:
    """What to write on SGLang's own command line for an option of it; nothing for None.

    Most of its switches can only be turned on: off is then no word at all.
    """
    flag = f"--{option.flag.removeprefix('--sglang-')}"
    if value is None:
        return ()
    if option.kind == "bool":
        if value:
            return (flag,)
        return (f"--no-{flag[2:]}",) if f"--sglang-no-{flag[2:]}" in option.negation_aliases else ()
    if option.kind == "json":
        return flag, json.dumps(value)
    return flag, *map(str, value if option.kind == "list" else [value])


@dataclass(frozen=True)
class Snapshot:
    """The options of one package as one version of it has them.

    Attributes:
        package: its name where it is installed from.
        left_out: what no command line can express, with the reason.
    """

    package: str
    version: str
    options: tuple[PassThrough, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """The file: JSON, an option a line, without what follows from the rest."""
        lines = [json.dumps(_row(option), ensure_ascii=False) for option in self.options]
        reasons = [f"{json.dumps(name)}: {json.dumps(reason)}" for name, reason in self.left_out.items()]
        head = f'"package": {json.dumps(self.package)},\n"version": {json.dumps(self.version)}'
        return f'{{\n{head},\n"options": [\n{_block(lines)}\n],\n"left_out": {{\n{_block(reasons)}\n}}\n}}\n'


def _block(lines: Iterable[str]) -> str:
    return ",\n".join(f"  {line}" for line in lines)


def snapshot_path(section: str) -> Path:
    """The file of a section."""
    return Path(__file__).parent / "snapshots" / f"{section}.json"


@cache
def read_snapshot(section: str) -> Snapshot:
    """The snapshot that comes with Relax."""
    return parse_snapshot(section, snapshot_path(section).read_text(encoding="utf-8"))


def parse_snapshot(section: str, text: str) -> Snapshot:
    """The inverse of ``Snapshot.text``."""
    content = json.loads(text)
    options = tuple(_option(section, row) for row in content["options"])
    return Snapshot(content["package"], content["version"], options, content["left_out"])


def flag_of(name: str) -> str:
    """`norm_epsilon` -> `--norm-epsilon`."""
    return f"--{name.replace('_', '-')}"


def spelling_clashes(options: Iterable[PassThrough]) -> dict[str, list[str]]:
    """Spellings that more than one option has, with the options' names."""
    owners: dict[str, list[str]] = {}
    for option in options:
        for flag, _ in option.spellings():
            owners.setdefault(flag, []).append(option.name)
    return {flag: names for flag, names in owners.items() if len(names) > 1}


@cache
def _options() -> Mapping[str, PassThrough]:
    return MappingProxyType({option.name: option for section in SECTIONS for option in read_snapshot(section).options})


@cache
def _flags() -> Mapping[str, tuple[PassThrough, bool]]:
    return MappingProxyType({flag: (option, on) for option in _options().values() for flag, on in option.spellings()})


def _implied(row: Mapping[str, Any], section: str) -> dict[str, Any]:
    """What a row of the file need not say, from what it says."""
    name, flag = row["name"], row.get("flag", flag_of(row["name"]))
    return {
        "flag": flag,
        "field": name.removeprefix(PREFIX[section]),
        "targets": ("server",) if section == "sglang" else ("transformer",),
        "optional": row.get("default") is None,
        "negation": f"--no-{flag[2:]}" if row["kind"] == "bool" else None,
    }


def _option(section: str, row: dict[str, Any]) -> PassThrough:
    values = _implied(row, section) | row
    for name in _TUPLES & values.keys():
        values[name] = tuple(values[name])
    if "renamed" in values:
        values["renamed"] = tuple(values["renamed"].items())
    return PassThrough(section=section, **values)


def _row(option: PassThrough) -> dict[str, Any]:
    """The line of an option: the inverse of ``_option``."""
    row: dict[str, Any] = {"name": option.name, "kind": option.kind}
    values = {name: getattr(option, name) for name in _NAMES}
    if values["default"] is not None:
        row["default"] = values["default"]
    if option.flag != flag_of(option.name):
        row["flag"] = option.flag
    usual = _USUAL | _implied(row, option.section)
    row |= {name: value for name, value in values.items() if name not in row and value != usual[name]}
    return row | ({"renamed": dict(option.renamed)} if option.renamed else {})


_TUPLES = {"targets", "choices", "aliases", "negation_aliases", "agrees"}
_USUAL = {one.name: one.default for one in dataclasses.fields(PassThrough) if one.default is not dataclasses.MISSING}
_NAMES = [one.name for one in dataclasses.fields(PassThrough) if one.name not in ("section", "name", "kind")]
