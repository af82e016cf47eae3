"""Configurations for tests.

Guarantee: ``configs`` draws every option, in and out of its range, so that a property that holds for it holds for
what a person may type (no NUL, and whole numbers of 64 bits: what reads options refuses more); ``model_folder`` is a
model folder as far as the configuration looks at one, without weights.
"""

import json
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from relax_core.config.eval_sets import EvalSet
from relax_core.config.options import OPTIONS, Option, with_options
from relax_core.config.sections import RelaxConfig


def shown(value: object) -> str:
    """Name of a parameter in every process of the tests; the text of a set would change with the hash seed."""
    return f"{{{', '.join(map(repr, sorted(value)))}}}" if isinstance(value, (set, frozenset)) else str(value)


TINY_CONFIG: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
}


def model_folder(folder: Path, **changes: Any) -> Path:
    """A folder with a config.json (None takes a key out) and empty tokenizer and weight files."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {key: value for key, value in {**TINY_CONFIG, **changes}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def valid_config(folder: Path, **options: Any) -> RelaxConfig:
    """A small run over files in ``folder`` that passes every rule, with these options changed."""
    prompts = folder / "prompts.jsonl"
    prompts.write_text('{"input": "1+1=", "answer": "2"}\n')
    values: dict[str, Any] = {
        "hf_checkpoint": str(model_folder(folder / "model")),
        "prompt_data": str(prompts),
        "rollout_batch_size": 8,
        "n_samples_per_prompt": 4,
        "num_rollout": 3,
        "rollout_max_response_len": 64,
        "rm_type": "exact_number",
    }
    return with_options(RelaxConfig(), values | options)


_FREE_OF_NUL = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


def _values(option: Option) -> st.SearchStrategy[Any]:
    item = option.core_type.__args__[0] if option.kind == "list" else None
    text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)
    items: dict[Any, st.SearchStrategy[Any]] = {int: st.integers(-1, 600), float: st.floats(0, 1), str: text}
    number = st.integers(-(2**63) + 1, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    drawn: st.SearchStrategy[Any] = {
        "bool": st.booleans(),
        "int": st.integers(-3, 5000),
        "bytes": st.integers(-1, 2**40),
        "float": st.floats(allow_nan=False, allow_infinity=False),
        "text": _FREE_OF_NUL,
        "choice": st.sampled_from(option.choices or ("",)),
        "list": st.lists(items.get(item, text), max_size=3),
        "json": st.dictionaries(text, text if option.core_type == dict[str, str] else number | text, max_size=3),
    }[option.kind]
    if option.name == "resource":
        roles = st.sampled_from(["actor", "rollout", "critic"])
        drawn = st.dictionaries(roles, st.tuples(st.integers(-1, 3), st.integers(-1, 9)))
    if option.name == "eval_datasets":
        drawn = st.lists(st.builds(EvalSet, name=text, path=text, temperature=st.none() | st.floats(0, 2)), max_size=2)
    return st.none() | drawn if option.optional else drawn


_STRATEGIES = {name: _values(option) for name, option in OPTIONS.items()}
_ANY_OPTION = st.sampled_from(sorted(OPTIONS)).flatmap(lambda name: st.tuples(st.just(name), _STRATEGIES[name]))

configs: st.SearchStrategy[RelaxConfig] = st.lists(_ANY_OPTION, max_size=40).map(
    lambda pairs: with_options(RelaxConfig(), dict(pairs))
)
"""Configurations with any options set to any typed value, sensible or not."""

# a busy machine draws a hundred options slowly; that is no mistake
thorough = settings(
    deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
"""Settings of the tests that draw from ``configs``."""
