"""Prompt sets: rows of a file as token ids.

Guarantee: a prompt's text and tokens depend only on its row and the options here; every row that cannot be used is an
error that names the row, except prompts that are too long, which are left out and counted. Token ids stay in one flat
array. ``fingerprint`` is the identity of everything that a run can read from the set.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from data.chat import Template, Tokenizer, renamed
from data.errors import UserError
from data.ragged import Ragged
from data.readers import Row, read_rows

logger = logging.getLogger(__name__)

_TOKENIZE_AT_ONCE = 1024


Convert: TypeAlias = Callable[[Any, dict[str, Any], str], Any]
"""``convert(prompt, row, where) -> prompt``; ``where`` names the row in messages."""


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Args:
        prompt_id: the row's number in the whole file, from 0, eight digits: the same whatever is sliced or left out.
        text: rendered.
        tokens: [P] int32, read-only.
        label: JSON text of the label; None when the set has none or it is null.
        metadata: the row's metadata; ``{}`` when it has none.
    """

    prompt_id: str
    text: str
    tokens: NDArray[np.int32]
    label: str | None
    metadata: dict[str, Any]


@dataclass(frozen=True, eq=False)
class PromptDataset:
    """Prompts in the order of their file.

    Args:
        prompt_ids, texts, labels, metadata: [N], as in ``Prompt``.
        tokens: N rows of int32.
        dropped: prompts left out because they are too long.
        source: where they came from.
    """

    prompt_ids: list[str]
    texts: list[str]
    tokens: Ragged
    labels: list[str | None]
    metadata: list[dict[str, Any]]
    dropped: int
    source: str
    fingerprint: str = field(init=False)
    """SHA-256 over ids, texts, tokens, labels and metadata of all prompts."""
    _rows: dict[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.tokens.values.flags.writeable = False
        object.__setattr__(self, "_rows", {prompt_id: row for row, prompt_id in enumerate(self.prompt_ids)})
        object.__setattr__(self, "fingerprint", self._fingerprint())

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, row: int) -> Prompt:
        return Prompt(self.prompt_ids[row], self.texts[row], self.tokens[row], self.labels[row], self.metadata[row])

    def index(self, prompt_id: str) -> int:
        """The position i of a prompt: ``dataset[i].prompt_id == prompt_id``.

        Raises:
            UserError: the set has no such prompt.
        """
        if prompt_id not in self._rows:
            raise UserError(
                f"{self.source} has no prompt {prompt_id}.",
                "Give the run the data and the length limits that it began with, or start a new run.",
            )
        return self._rows[prompt_id]

    def _fingerprint(self) -> str:
        digest = hashlib.sha256(self.tokens.offsets.tobytes())
        digest.update(np.ascontiguousarray(self.tokens.values).tobytes())
        for column in (self.prompt_ids, self.texts, self.labels, self.metadata):
            digest.update(json.dumps(column, sort_keys=True, default=str).encode())
        return digest.hexdigest()


def load_prompts(
    source: str,
    *,
    tokenizer: Tokenizer,
    input_key: str = "input",
    label_key: str | None = None,
    metadata_key: str = "metadata",
    tool_key: str = "tools",
    apply_chat_template: bool = False,
    template_kwargs: Mapping[str, Any] | None = None,
    system_prompt: str | None = None,
    max_prompt_len: int | None = None,
    skip_bad_lines: bool = False,
    convert: Convert | None = None,
    key_map: Mapping[str, str] | None = None,
) -> PromptDataset:
    """Reads a prompt file.

    Args:
        source: JSONL or Parquet, any fsspec URL, with an optional row slice ``@[a:b]``.
        tokenizer: with the chat template's text, no special tokens are added to what the template renders; plain text
            gets the tokenizer's own special tokens.
        input_key: column of the prompt: text, or a list of messages (needs the chat template).
        label_key: column of the label, any JSON value. A row without the key is an error, a null label is None.
        metadata_key: column of an object, or of JSON text of one.
        tool_key: column of the tools for the template: a list, or JSON text of one.
        apply_chat_template: render through the tokenizer's template, with a generation prompt; text becomes a user
            message.
        template_kwargs: further arguments of the template.
        system_prompt: put before the messages unless they begin with a system message.
        max_prompt_len: prompts with more tokens are left out.
        skip_bad_lines: leave out JSONL lines that are not JSON objects instead of failing.
        convert: makes the prompt of a row, before everything else, out of what the column holds and of all columns.
        key_map: new names for the keys of each message, and for the value of its role (after that); the text stays.

    Raises:
        UserError: see the options above; or no row is left.
    """
    template = Template(tokenizer, template_kwargs, system_prompt) if apply_chat_template else None
    if template is None and system_prompt is not None:
        raise UserError("--system-prompt has no effect on plain text.", "Add --apply-chat-template.")
    required = [input_key] if label_key is None else [input_key, label_key]
    rows = read_rows(
        source,
        columns=[*required, metadata_key, tool_key],
        required=required,
        skip_bad_lines=skip_bad_lines,
        further=convert is not None,  # the function may want any column
    )
    texts: list[str] = []
    labels: list[str | None] = []
    metadata: list[dict[str, Any]] = []
    for row in rows:
        where = f"{source}, {row.place}"
        prompt = _get(row, input_key, where, "--input-key")
        if convert is not None:
            prompt = convert(prompt, dict(row.data), where)
        if key_map and isinstance(prompt, list):
            prompt = [renamed(message, key_map, where, input_key) for message in prompt]
        if template is not None:
            texts.append(template.render(prompt, _tools(row.data.get(tool_key), where, tool_key), where, input_key))
        elif isinstance(prompt, str):
            texts.append(prompt)
        else:
            kind = "a list of messages" if isinstance(prompt, list) else f"{type(prompt).__name__}, not text"
            raise UserError(f"{where}: '{input_key}' is {kind}.", "Add --apply-chat-template for lists of messages.")
        labels.append(None if label_key is None else _label(_get(row, label_key, where, "--label-key")))
        metadata.append(_metadata(row.data.get(metadata_key), where, metadata_key))
    tokens = _tokenize(tokenizer, texts, add_special_tokens=template is None)
    if not tokens.lengths.all():
        raise UserError(
            f"{source}, {rows[int(np.argmin(tokens.lengths))].place}: the prompt is empty.",
            "Remove the row or fill its prompt.",
        )
    keep = np.flatnonzero(tokens.lengths <= (np.inf if max_prompt_len is None else max_prompt_len))
    if len(keep) == 0:
        raise UserError(
            f"None of the {len(rows)} prompts of {source} has at most {max_prompt_len} tokens; "
            f"the shortest has {tokens.lengths.min()}.",
            "Raise --rollout-max-prompt-len (or the context), or give shorter prompts.",
        )
    dropped = len(rows) - len(keep)
    if dropped:
        logger.warning("%s: %d of %d prompts have over %s tokens.", source, dropped, len(rows), max_prompt_len)
    return PromptDataset(
        prompt_ids=[f"{rows[i].number:08d}" for i in keep],
        texts=[texts[i] for i in keep],
        tokens=tokens.take(keep) if dropped else tokens,
        labels=[labels[i] for i in keep],
        metadata=[metadata[i] for i in keep],
        dropped=dropped,
        source=source,
    )


def _get(row: Row, key: str, where: str, option: str) -> Any:
    if key not in row.data:
        raise UserError(f"{where}: no key '{key}' ({option}).", f"Its keys: {', '.join(row.data) or 'none'}.")
    return row.data[key]


def _label(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False)


def _metadata(value: Any, where: str, key: str) -> dict[str, Any]:
    value = {} if value is None else _parsed(value, where, key)
    if not isinstance(value, dict):
        raise UserError(f"{where}: '{key}' is {type(value).__name__}.", "Metadata must be an object.")
    return value


def _tools(value: Any, where: str, key: str) -> list[Any] | None:
    """Tools as a list of objects; None (no tools) for null, an empty list and empty text."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    tools = _parsed(value, where, key)
    if not isinstance(tools, list):
        raise UserError(f"{where}: '{key}' is {type(tools).__name__}.", "Tools must be a list of objects.")
    tools = [_parsed(tool, where, key) for tool in tools]
    for tool in tools:
        if not isinstance(tool, dict):
            raise UserError(f"{where}: '{key}' holds {type(tool).__name__}.", "Tools must be a list of objects.")
    return tools or None


def _parsed(value: Any, where: str, key: str) -> Any:
    """JSON text as its value; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise UserError(f"{where}: '{key}' is text that is not JSON: {error}.", "Correct the row.") from error


def _tokenize(tokenizer: Tokenizer, texts: Sequence[str], *, add_special_tokens: bool) -> Ragged:
    """N texts as N rows of int32, in batches: a call per row costs more than its tokens."""
    parts = []
    for start in range(0, len(texts), _TOKENIZE_AT_ONCE):
        batch = list(texts[start : start + _TOKENIZE_AT_ONCE])
        parts.append(Ragged.from_list(tokenizer(batch, add_special_tokens=add_special_tokens)["input_ids"], np.int32))
    return Ragged.concat(parts) if parts else Ragged.from_list([], np.int32)
