"""Conversations: messages as the text that a tokenizer's chat template makes of them.

Guarantee: a message that cannot be rendered is an error that names the row; the text of a message is never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from data.errors import UserError


class Tokenizer(Protocol):
    """What prompts need of a Hugging Face tokenizer."""

    def __call__(self, text: list[str], *, add_special_tokens: bool) -> Mapping[str, Any]:
        """``["input_ids"]``: a list of token ids for each text."""

    def apply_chat_template(self, conversation: list[dict[str, Any]], **kwargs: Any) -> Any:
        """The rendered text with ``tokenize=False``."""


def renamed(message: Any, key_map: Mapping[str, str], where: str, key: str) -> Any:
    """A message with other names of its keys and, after that, of its role; anything else as it is.

    Raises:
        UserError: two keys would get one name.
    """
    if not isinstance(message, dict):
        return message
    named = {key_map.get(name, name): value for name, value in message.items()}
    if len(named) < len(message):
        raise UserError(
            f"{where}: --conversation-key-map gives two keys of a message of '{key}' one name: {', '.join(message)}.",
            "Change the map, or the row.",
        )
    role = named.get("role")
    return {**named, "role": key_map.get(role, role)} if isinstance(role, str) else named


class Template:
    """The tokenizer's chat template with the run's options."""

    def __init__(self, tokenizer: Tokenizer, kwargs: Mapping[str, Any] | None, system_prompt: str | None) -> None:
        if getattr(tokenizer, "chat_template", "") is None:
            raise UserError(
                "--apply-chat-template needs a chat template and the tokenizer has none.",
                "Use an instruction model's --hf-checkpoint, or leave the option out.",
            )
        taken = {"tokenize", "tools", "conversation"} & set(kwargs or {})
        if taken:
            raise UserError(
                f"--apply-chat-template-kwargs sets '{min(taken)}', which Relax sets itself.", "Leave it out."
            )
        self._apply = tokenizer.apply_chat_template
        self._kwargs = {"add_generation_prompt": True, **(kwargs or {}), "tokenize": False}
        self._system = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]

    def render(self, prompt: Any, tools: list[Any] | None, where: str, key: str) -> str:
        """The text of a prompt: a list of messages, or the text of a user's message.

        Args:
            tools: given to the template.
            where: the row, for messages.
            key: column of the prompt, for messages.

        Raises:
            UserError: the prompt is neither, or the template refuses it.
        """
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        if not isinstance(messages, list):
            raise UserError(f"{where}: '{key}' is {type(prompt).__name__}.", "It must be text or a list of messages.")
        for number, message in enumerate(messages):
            if not isinstance(message, dict) or not isinstance(message.get("role"), str):
                raise UserError(
                    f"{where}: message {number} of '{key}' is not an object with a 'role': {message!r}.",
                    'Write messages as {"role": "user", "content": "..."}.',
                )
        if not messages:
            raise UserError(f"{where}: '{key}' has no messages.", "Remove the row or fill its prompt.")
        if messages[0]["role"] != "system":
            messages = self._system + messages
        try:
            return self._apply(messages, tools=tools, **self._kwargs)
        except Exception as error:  # whatever a template's author raises
            raise UserError(
                f"{where}: the chat template refuses the prompt: {error}.",
                "Check the roles and their order, and --apply-chat-template-kwargs.",
            ) from error
