"""SGLang's server arguments, read from the argument parser of the installed version.

Guarantee: every argument of the server is an option or is left out with a reason; one that SGLang reads in a way not
known here is a text, which SGLang then reads. Importing this module does not import SGLang: only ``sglang_options``
does.
"""

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import version
from types import NoneType
from typing import Any, get_args, get_type_hints

from relax_core.config.passthrough import Kind, PassThrough, Snapshot, spelling_clashes

PACKAGE = "sglang"

OWNED: dict[str, tuple[Any, ...]] = {
    # one server process on one machine; devices, address and ports are given to it
    "model_path": (),
    "device": (),
    "host": (),
    "port": (),
    "tp_size": (),
    "pp_size": (1,),
    "nnodes": (1,),
    "node_rank": (0,),
    "dist_init_addr": (None,),
    "base_gpu_id": (0,),
    "use_ray": (False,),
    "random_seed": (),
    # reached by plain HTTP, without a key
    "api_key": (None,),
    "admin_api_key": (None,),
    "fastapi_root_path": ("",),
    "ssl_certfile": (None,),
    "ssl_keyfile": (None,),
    "ssl_keyfile_password": (None,),
    "ssl_ca_certs": (None,),
    "enable_ssl_refresh": (False,),
    "grpc_mode": (False,),
    "smg_grpc_mode": (False,),
    # a whole engine that generates text, and has its weights when it starts
    "skip_tokenizer_init": (False,),
    "is_embedding": (False,),
    "disaggregation_mode": ("null",),
    "encoder_only": (False,),
    "language_only": (False,),
    "checkpoint_engine_wait_weights_before_ready": (False,),
    # says which policy version the engine holds
    "weight_version": (),
}
"""Fields that Relax decides -> the values that are what it does anyway."""

_JSON = {"loads", "json_list_type", "parse_cuda_graph_config_arg"}
"""Names of the functions by which SGLang reads an argument that is JSON."""
_NUMBERS: dict[str, Kind] = {"int": "int", "human_readable_int": "int", "float": "float"}
"""Names of the functions by which it reads numbers."""


def sglang_options() -> Snapshot:
    """The options of the installed version."""
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(add_help=False)
    ServerArgs.add_cli_args(parser)
    options, left_out = options_of(parser._actions, get_type_hints(ServerArgs))
    return Snapshot(PACKAGE, version(PACKAGE), options, left_out)


def options_of(
    actions: Iterable[argparse.Action], fields: Mapping[str, Any]
) -> tuple[tuple[PassThrough, ...], dict[str, str]]:
    """The options of a parser's arguments, and what is left out with the reasons.

    Args:
        actions: the arguments.
        fields: the server's fields with their types; an argument without a field is left out, and so is the opposite.

    Raises:
        ValueError: two options share a spelling.
    """
    options: dict[str, PassThrough] = {}
    left_out: dict[str, str] = {}
    for action in actions:
        option = _option(action, fields.get(action.dest, NoneType)) if action.dest in fields else "no field of its own"
        if isinstance(option, str):
            left_out[action.option_strings[0] if action.option_strings else action.dest] = option
        elif action.dest not in options:
            options[action.dest] = option
        elif options[action.dest].kind == option.kind:  # an older spelling, as an argument of its own
            first = options[action.dest]
            options[action.dest] = replace(first, aliases=(*first.aliases, option.flag, *option.aliases))
        else:
            left_out[action.option_strings[0]] = f"another way to set {options[action.dest].flag}"
    for name in fields:
        if name not in options and not any(action.dest == name for action in actions):
            left_out[name] = "no argument of the command line"
    clashes = spelling_clashes(options.values())
    if clashes:
        raise ValueError(f"flags with more than one meaning: {clashes}")
    return tuple(options.values()), left_out


def _option(action: argparse.Action, annotation: Any) -> PassThrough | str:
    """The option of an argument, or why there is none."""
    own = [text for text in action.option_strings if text.startswith("--")]
    if not own:
        return "no flag"
    kind, item = _kind(action)
    if kind is None:
        return f"stands for one value, {action.const!r}"
    on = [text for text in own if not (kind == "bool" and _turns_off(text, own))]
    flag, *aliases = (f"--sglang-{text[2:]}" for text in on)
    default = _plain(action.default, kind)
    choices = action.choices or ()
    return PassThrough(
        name=flag[2:].replace("-", "_"),
        section="sglang",
        flag=flag,
        kind="choice" if kind == "text" and choices else kind,
        targets=("server",),
        field=action.dest,
        default=default,
        optional=NoneType in get_args(annotation) or (default is None and not action.required),
        item=item,
        choices=tuple(sorted(choices) if isinstance(choices, set | frozenset) else choices),
        aliases=tuple(aliases),
        negation=f"--no-{flag[2:]}" if kind == "bool" else None,
        negation_aliases=tuple(f"--sglang-{text[2:]}" for text in own if text not in on),
        role="owned" if action.dest in OWNED else "passed",
        agrees=OWNED.get(action.dest, ()),
    )


def _turns_off(text: str, own: list[str]) -> bool:
    """`--no-x` beside `--x`."""
    return text.startswith("--no-") and f"--{text[5:]}" in own


def _kind(action: argparse.Action) -> tuple[Kind | None, str]:
    """How values are written, and what a list holds."""
    if action.nargs == 0:
        return ("bool" if action.const in (True, None) else None), ""
    reader = str(getattr(action.type, "__name__", ""))
    if reader in _JSON:
        return "json", ""
    kind = _NUMBERS.get(reader, "text")
    return ("list", kind) if isinstance(action.nargs, int) or action.nargs in ("+", "*") else (kind, "")


def _plain(default: Any, kind: Kind) -> Any:
    """A default as JSON has it."""
    if kind == "float" and isinstance(default, int):
        return float(default)
    fits = {"text": str, "int": int, "list": list}.get(kind, bool | int | float | str | list | dict)
    return default if isinstance(default, fits) else None
