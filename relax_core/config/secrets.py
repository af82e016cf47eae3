"""What must not be shown of a value.

Guarantee: no user and password of a URL, no secret in its query, no notification address and no value whose name is a
secret's (`HF_TOKEN`, `api_key`, `Authorization`, but not `input_key` or `max_tokens`) passes ``redact`` or
``redact_text``, whether it stands in JSON, in Python's spelling or behind `NAME=`; everything else is unchanged.
"""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

HIDDEN = "***"

_ENVIRONMENT = re.compile(r"KEY|TOKEN(?!IZ)|SECRET|PASS|PWD|CREDENTIAL|AUTH|(?:^|_)PAT(?:_|$)")
"""In capitals, as environment variables are written, a part of the name tells."""

_ALWAYS = re.compile(
    r"^(?:secrets?|passwords?|passwd|passphrase|pwd|credentials?|authorization|apikeys?|signature|sig)$"
)
_BEFORE = {
    "token": "access|api|auth|bearer|github|gitlab|hf|huggingface|id|oauth|personal|refresh|secret|session|user|wandb",
    "key": "access|account|admin|api|auth|encryption|hf|license|openai|private|secret|signing|ssh|storage|wandb",
}
"""A last word that names a secret where one of these stands before it, or, for a token, nothing does."""

_NOT_SECRET = ("PWD", "OLDPWD")
_SIGNATURES = ("custom_rm_signature",)
"""Those of functions."""

_USER = re.compile(
    r"(?<=://)(?:[^/\s\"'@:]+:(?!\d+(?:/|$))[^\s\"'@]{0,500}(?:@(?!\[)[^/\s\"'@]{0,99}){0,9}|[^/\s\"']+)(?=@(?!\[))"
)  # `@[0:10]` is a slice of rows
_LONE_USER = re.compile(r"(?<![\w/:.@+-])[\w.+-]+:[^\s/:@\"',]+(?=@[\w.-])")
_QUERY = re.compile(r"(?<=[?&;])([\w.-]+)=([^&\s\"'#;]+)")
_NAME = re.compile(r"""(?<![\w-])(["']?)([A-Za-z][\w-]*)(["']?)(\s*:\s*|=)""")
_VALUE = re.compile(
    r"""(")(?:[^"\\]|\\.)*"?|(')(?:[^'\\]|\\.)*'?|\[[^\]]*\]?|\{[^}]*\}?|(?:Bearer|Basic)\s+\S+"""
    r"""|[^\s,;}\])]+?(?=:?(?:[\s,;}\])]|$))"""
)
_ADDRESS = re.compile(r"(?:\b([A-Za-z][A-Za-z0-9+.-]*)://)?[^\s,]+")
_ADDRESSES = {"notify_urls", "notify_url"}
"""Options whose addresses are secrets from end to end."""


def redact(name: str, value: Any) -> Any:
    """The value of an option as it may be shown."""
    if value is None or isinstance(value, bool):
        return value
    if is_secret_name(name):
        return HIDDEN
    if name in _ADDRESSES:
        return _ADDRESS.sub(_address, " ".join(map(str, value)) if isinstance(value, list) else str(value))
    return _redact(value)


def redact_text(text: str) -> str:
    """A text with the user and password of every URL in it hidden, and the values whose names are those of secrets."""
    text = _LONE_USER.sub(HIDDEN, _USER.sub(HIDDEN, text))
    text = _QUERY.sub(lambda match: f"{match[1]}={HIDDEN}" if is_secret_name(match[1]) else match[0], text)
    return _without_named(text)


def is_secret_name(name: str) -> bool:
    """Whether a variable, a key or an option is named like a secret.

    `input_key` and `max_tokens` name data, `API_KEY`, `api_key` and `HF_TOKEN` name secrets.
    """
    if name.isupper():
        return name not in _NOT_SECRET and bool(_ENVIRONMENT.search(name))
    spelt = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().replace("-", "_")
    if spelt in _SIGNATURES:
        return False
    words = spelt.split("_")
    if any(_ALWAYS.match(word) for word in words):
        return True
    last = words[-1].removesuffix("s") if words[-1] == "keys" else words[-1]
    before = words[-2] if len(words) > 1 else ""
    if last == "token" and not before:
        return True
    return last in _BEFORE and before in _BEFORE[last].split("|")


def _address(match: re.Match[str]) -> str:
    return f"{match[1]}://{HIDDEN}" if match[1] else HIDDEN


def _without_named(text: str) -> str:
    """A text with the values of `"API_KEY": "..."`, `{'api_key': [...]}`, `API_KEY: ...` and `API_KEY=...` hidden."""
    parts: list[str] = []
    done = 0
    for match in _NAME.finditer(text):
        quoted, name, sign = match[1] and match[3], match[2], match[4]
        value = _VALUE.match(text, match.end()) if match.end() >= done and is_secret_name(name) else None
        if value is None:
            continue
        # `no secret: because` is a sentence
        meant = sign == "=" or quoted or name.isupper() or value[0][0] in "\"'[{"
        if meant and value[0] not in ("null", "None", "true", "false", "True", "False"):
            quote = value[1] or value[2] or ""
            parts += [text[done : match.end()], quote, HIDDEN, quote]
            done = value.end()
    return "".join([*parts, text[done:]])


def _redact(value: Any) -> Any:
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, BaseModel):
        return _redact(value.model_dump(mode="json"))
    if isinstance(value, Mapping):
        return {key: HIDDEN if _is_hidden(str(key), item) else _redact(item) for key, item in value.items()}
    return [_redact(item) for item in value] if isinstance(value, list | tuple) else value


def _is_hidden(name: str, value: Any) -> bool:
    return value not in (None, "", [], {}) and not isinstance(value, bool) and is_secret_name(name)
