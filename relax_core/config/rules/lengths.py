"""Rules about lengths, in tokens.

Guarantee: a prompt and a response of at least one token fit into every context, and an engine's context holds them.
"""

from collections.abc import Iterator
from typing import Any

from relax_core.config.rules.base import Rule
from relax_core.config.values import Values

_TRAIN = ("rollout_max_prompt_len", "rollout_max_response_len")
_EVAL = ("eval_max_prompt_len", "eval_max_response_len")
_CONTEXTS = ("rollout_max_context_len", "eval_max_context_len")


def _no_room(v: Values) -> Iterator[dict[str, Any]]:
    same_context = v.eval_max_context_len == v.rollout_max_context_len
    for names, context in ((_TRAIN, v.rollout_max_context_len), (_EVAL, v.eval_max_context_len)):
        for name, followed in zip(names, _TRAIN, strict=True):
            # what an evaluation only takes over is told once, where it comes from
            copied = names is _EVAL and same_context and v[name] == v[followed]
            if context is not None and v[name] is not None and v[name] > context - 1 and not copied:
                other = "response" if "prompt" in name else "prompt"
                yield {"option": name, "other": other, "context": context, "most": context - 1}


def _beyond_the_engine(v: Values) -> Iterator[dict[str, Any]]:
    engine, lengths = v.sglang_context_length, [v[name] for name in _CONTEXTS]
    for number, (name, length) in enumerate(zip(_CONTEXTS, lengths, strict=True)):
        if None not in (engine, length) and engine < length and length not in lengths[:number]:
            yield {"flag": f"--{name.replace('_', '-')}", "length": length}


RULES: tuple[Rule, ...] = (
    Rule(
        name="context-has-room-for-both",
        option="rollout_max_prompt_len",
        reads=(*_TRAIN, *_EVAL, *_CONTEXTS),
        each=_no_room,
        message="leaves no room for a {other} in a context of {context} tokens.",
        fix="It can be at most {most}.",
    ),
    Rule(
        name="engines-hold-the-context",
        option="sglang_context_length",
        reads=("sglang_context_length", *_CONTEXTS),
        each=_beyond_the_engine,
        message="is below {flag} {length}: the engine would cut responses short.",
        fix="Make it {length} or more, or leave it out.",
    ),
    Rule(
        name="least-tokens-fit-the-response",
        option="eval_min_new_tokens",
        reads=("eval_min_new_tokens", "eval_max_response_len"),
        broken=lambda v: (
            None not in (v.eval_min_new_tokens, v.eval_max_response_len)
            and v.eval_min_new_tokens > v.eval_max_response_len
        ),
        message="is more than --eval-max-response-len {eval_max_response_len}.",
    ),
)
