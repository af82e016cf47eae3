"""Megatron-core's options, read from the configuration classes of the installed version, and handed to them.

Guarantee: every field of the classes is an option or is left out with a reason; a kind of field that is not known here
is left out and stops nothing. Importing this module does not import Megatron: only ``megatron_options`` and
``constructor_arguments`` do, which change torch for the whole process (``relax_core.training.megatron``).

What Megatron's training script calls a field is not in the installed package, which is Megatron-core alone: a field
says so itself, or ``relax_core.training.introspect_tables`` does.
"""

import dataclasses
import enum
import inspect
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch

from relax_core.config.passthrough import Kind, PassThrough, Snapshot, flag_of, pass_throughs, spelling_clashes
from relax_core.training.introspect_tables import CHOICES, FLAGS, MORE_FLAGS, NEGATIONS, OWNED, SAME, SHAPE

PACKAGE = "megatron-core"

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.uint8}
"""Megatron's words for types; its 8-bit optimiser states are kept as bytes."""


@dataclass(frozen=True)
class Written:
    """How values of a type are written; see ``PassThrough``."""

    kind: Kind
    item: str = ""
    choices: tuple[Any, ...] = ()
    converts: str = ""
    optional: bool = False


_SIMPLE: dict[Any, Kind] = {bool: "bool", int: "int", float: "float", str: "text"}


def written(annotation: Any) -> Written | None:
    """How values of an annotated type are written; None for what a command line cannot express."""
    members = _members(annotation)
    kinds = [member for member in members if member is not type(None)]
    found = _union(kinds) if len(kinds) > 1 else _single(kinds[0]) if kinds else None
    return replace(found, optional=True) if found and len(kinds) < len(members) else found


def _members(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _single(annotation: Any) -> Written | None:
    if annotation in _SIMPLE:
        return Written(_SIMPLE[annotation])
    if annotation is torch.dtype:
        return Written("choice", choices=tuple(DTYPES)[:3], converts="dtype")
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return Written("choice", choices=tuple(annotation.__members__), converts="enum")
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return _literal(arguments)
    if origin in (list, tuple) and len({*arguments} - {...}) == 1:
        item = _single(arguments[0])
        if item and item.kind in ("int", "float", "text"):
            return Written("list", item=item.kind, converts="tuple" if origin is tuple else "")
    return Written("json") if annotation is dict or origin is dict else None


def _literal(values: tuple[Any, ...]) -> Written | None:
    given = tuple(value for value in values if value is not None)
    types_ = {type(value) for value in given}
    if types_ not in ({str}, {int}):
        return None
    return Written("choice" if types_ == {str} else "int", choices=given, optional=len(given) < len(values))


def _union(members: list[Any]) -> Written | None:
    """Of several types: a number or text or a list of them, else text where text is one of them."""
    for item in (str, float, int):
        if item in members and any(get_origin(one) is list and get_args(one) == (item,) for one in members):
            # one whole number and a list of one mean different things: a period, and a pattern of layers
            return Written("json") if item is int else Written("list", item=_SIMPLE[item], converts="one")
    return Written("text") if str in members else None


def megatron_options() -> Snapshot:
    """The options of the installed version."""
    classes = _classes()
    return Snapshot(PACKAGE, version(PACKAGE), *options_of((t, cls) for t, found in classes.items() for cls in found))


def options_of(classes: Iterable[tuple[str, type]]) -> tuple[tuple[PassThrough, ...], dict[str, str]]:
    """The options of dataclasses, given with their targets, and what is left out with the reasons.

    A field that several classes have is one option: as the first class has it, for all of them.

    Raises:
        ValueError: two options share a spelling, so that a table must change.
    """
    classes = list(classes)
    there = {field.name for _, cls in classes for field in dataclasses.fields(cls)}
    options: dict[str, PassThrough] = {}
    left_out: dict[str, str] = {}
    for target, cls in classes:
        hints = _hints(cls)
        for field in dataclasses.fields(cls):
            name = SAME[field.name] if SAME.get(field.name) in there else field.name
            if field.name in left_out or (name in options and target in options[name].targets):
                continue
            option = _option(field, name, hints.get(field.name, field.type), target)
            if isinstance(option, str):
                left_out[field.name] = option
            else:
                options[name] = _joined(options[name], option) if name in options else option
    clashes = spelling_clashes(options.values())
    if clashes:
        raise ValueError(f"flags with more than one meaning: {clashes}")
    return tuple(options.values()), left_out


def _option(field: "dataclasses.Field[Any]", name: str, annotation: Any, target: str) -> PassThrough | str:
    """The option of a field, or why there is none."""
    if field.name.startswith("_") or not field.init:
        return "internal"
    form = written(annotation)
    if form is None:
        return _reason(annotation)
    default = field.default_factory() if callable(field.default_factory) else field.default
    default = None if default is dataclasses.MISSING else _plain(default, form)
    flag, aliases, off = _spellings(field, name, default is True, target)
    negations = dict.fromkeys([*off, f"--no-{flag[2:]}", f"--no-{flag_of(name)[2:]}"]) if form.kind == "bool" else {}
    return PassThrough(
        name=name,
        section="megatron",
        flag=flag,
        kind="choice" if field.name in CHOICES and form.kind == "text" else form.kind,
        targets=(target,),
        field=name,
        default=default,
        optional=form.optional or default is None,
        item=form.item,
        choices=CHOICES.get(field.name, form.choices),
        aliases=aliases,
        negation=next(iter(negations), None),
        negation_aliases=tuple(negations)[1:],
        role="shape" if name in SHAPE else "owned" if name in OWNED else "passed",
        agrees=OWNED.get(name, ()),
        converts=form.converts,
        renamed=((target, field.name),) if field.name != name else (),
    )


def _spellings(
    field: "dataclasses.Field[Any]", name: str, on: bool, target: str
) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The flag, its aliases and the script's negations. Of a switch that is on the script has the negations only."""
    own = tuple(field.metadata.get("argparse_meta", {}).get("arg_names", ()))
    plain = flag_of(name)
    off = NEGATIONS.get(name, ())
    if on:
        usual = (f"--no-{plain[2:]}", f"--disable-{plain[2:]}") if target == "transformer" else ()
        off, own = (*off, *own) or usual, ()
    flag, *others = dict.fromkeys((*own, *([FLAGS[name]] if name in FLAGS else []), plain))
    return flag, (*others, *MORE_FLAGS.get(name, ()), *([flag_of(field.name)] if field.name != name else [])), off


def _joined(option: PassThrough, other: PassThrough) -> PassThrough:
    """One option for a further constructor too; a target that is there already may call the field otherwise."""
    targets = tuple(dict.fromkeys(option.targets + other.targets))
    return replace(option, targets=targets, renamed=option.renamed + other.renamed)


def _plain(default: Any, form: Written) -> Any:
    """A default as JSON has it."""
    if form.converts == "dtype":
        return next((word for word, dtype in DTYPES.items() if dtype is default), None)
    if isinstance(default, enum.Enum):
        return default.name
    if form.converts == "one" and default is not None and not isinstance(default, list):
        return [default]
    if form.kind == "float" and default is not None:
        return float(default)
    return default if isinstance(default, bool | int | float | str | list | dict) else None


def _reason(annotation: Any) -> str:
    members = [member for member in _members(annotation) if member is not type(None)]
    if any("Callable" in str(member) for member in members):
        return "a function"
    return f"an object: {' | '.join(getattr(member, '__name__', str(member)) for member in members)}"


def _hints(cls: type) -> dict[str, Any]:
    try:
        return get_type_hints(cls)
    except (NameError, TypeError):  # annotations that only a type checker can read: the fields' own are left
        return {}


def _classes() -> dict[str, list[type]]:
    """Constructor -> the classes that make it; that of latent attention takes all that the plain one does."""
    from relax_core.training.megatron import DistributedDataParallelConfig, OptimizerConfig, TransformerConfig

    latent = getattr(inspect.getmodule(TransformerConfig), "MLATransformerConfig", None)
    return {
        "transformer": [cls for cls in (TransformerConfig, latent) if cls is not None],
        "optimizer": [OptimizerConfig],
        "ddp": [DistributedDataParallelConfig],
    }


def constructor_arguments(target: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of one of Megatron's constructors, from options that are passed through.

    Args:
        target: ``transformer``, ``optimizer`` or ``ddp``.
        values: option name -> value as ``PassThrough.kind`` says. What another constructor takes, what describes the
            model and what Relax decides is left aside.
    """
    chosen = [option for name in values if (option := pass_throughs()[name]).role == "passed"]
    hints = _hints(_classes()[target][-1])
    return {
        (field := option.field_of(target)): _converted(option, values[option.name], hints.get(field))
        for option in chosen
        if target in option.targets
    }


def _converted(option: PassThrough, value: Any, annotation: Any) -> Any:
    """A value as the constructor wants it: `dtype`, `enum` (a member by its name), `tuple`, `one` (of a lone item)."""
    if value is None:
        return None
    if option.converts == "dtype":
        return DTYPES[value]
    if option.converts == "enum":
        members = next(one for one in _members(annotation) if isinstance(one, type) and issubclass(one, enum.Enum))
        return members[value]
    if option.converts == "tuple":
        return tuple(value)
    return value[0] if option.converts == "one" and len(value) == 1 else value
