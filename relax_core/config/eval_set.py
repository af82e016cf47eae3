"""One evaluation set: its fields, and what each may be by itself.

Guarantee: a value that passes ``typed`` is what the field has; every number and every list has its range.
"""

from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, JsonValue

from relax_core.config.plain import check_size
from relax_core.config.ranges import COUNT, NOT_NEGATIVE, OFF_OR_COUNT, PROBABILITY, Range

MAX_STOP_STRINGS = 32
"""SGLang refuses more stop strings than this."""


def _no_bool(value: Any) -> Any:
    """Pydantic alone would read true as the number 1."""
    if isinstance(value, bool):
        raise ValueError("true and false are no numbers")
    return value


def _sized(value: int) -> int:
    check_size(value)
    return value


def _alone(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


Whole = Annotated[int, BeforeValidator(_no_bool), AfterValidator(_sized)]
Number = Annotated[float, BeforeValidator(_no_bool)]
Texts = Annotated[list[str], BeforeValidator(_alone)]
TokenIds = Annotated[list[Whole], BeforeValidator(_alone)]


class EvalSet(BaseModel):
    """One evaluation set. None: not given; ``complete_sets`` leaves it only where nothing is given anywhere."""

    model_config = ConfigDict(
        extra="forbid",
        use_attribute_docstrings=True,
        validate_assignment=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
    )

    name: str
    """Name of the set in metrics and files: letters, digits, `-`, `_`, `.`."""
    path: str
    """JSONL or Parquet file, or an fsspec URL, with an optional row slice `@[a:b]`."""
    rm_type: str | None = None
    """Reward of all rows, whatever their metadata names."""
    default_rm_type: str | None = None
    """Reward of the rows whose metadata names none."""
    custom_rm_path: str | None = None
    """Reward function in place of every `rm_type`. A set with an `rm_type` takes none from the options."""
    reward_key: str | None = None
    """Key of the score where the reward returns a dict. Empty: the reward returns a number."""
    input_key: str | None = None
    """Column of the prompt."""
    label_key: str | None = None
    """Column of the label. Empty: the set has no labels."""
    tool_key: str | None = None
    """Column of the tools for the chat template."""
    metadata_key: str | None = None
    """Column of the metadata."""
    n_samples_per_eval_prompt: Whole | None = None
    """Responses to each prompt."""
    temperature: Number | None = None
    """Sampling temperature; 0 is greedy."""
    top_p: Number | None = None
    """Probability mass that is sampled from."""
    top_k: Whole | None = None
    """Number of tokens that are sampled from; -1: all."""
    max_response_len: Whole | None = None
    """Most tokens of a response."""
    max_prompt_len: Whole | None = None
    """Prompts with more tokens are left out."""
    max_context_len: Whole | None = None
    """Most tokens of prompt and response together."""
    min_new_tokens: Whole | None = None
    """Tokens of a response before a token may end it, as far as there is room; a `stop` text may end it sooner."""
    stop: Texts | None = None
    """Texts that end a response. An empty list: none."""
    stop_token_ids: TokenIds | None = None
    """Tokens that end a response, beside the model's own. An empty list: none."""
    custom_generate_function_path: str | None = None
    """Function that generates a sample in place of one request to the engine."""
    metadata_overrides: dict[str, JsonValue] | None = None
    """Entries that every row's metadata gets; they win over the row's own."""

    @property
    def added_metadata(self) -> dict[str, Any]:
        """What every row's metadata gets: ``rm_type`` and the overrides, which win."""
        reward = {} if self.rm_type is None else {"rm_type": self.rm_type}
        return {**reward, **(self.metadata_overrides or {})}


FIELDS = tuple(EvalSet.model_fields)

_STOP = Range(
    lambda stop: len(stop) <= MAX_STOP_STRINGS and all(stop), f"at most {MAX_STOP_STRINGS} texts, none of them empty"
)
RANGES: dict[str, Range] = {
    "n_samples_per_eval_prompt": COUNT,
    "temperature": NOT_NEGATIVE,
    "top_p": PROBABILITY,
    "top_k": OFF_OR_COUNT,
    "max_response_len": COUNT,
    "max_prompt_len": COUNT,
    "max_context_len": COUNT,
    "min_new_tokens": NOT_NEGATIVE,
    "stop": _STOP,
    "stop_token_ids": Range(lambda ids: all(token >= 0 for token in ids), "token ids, 0 or more"),
}
"""Field -> the values that it may have by itself."""


def typed(name: str, value: Any) -> Any:
    """A value as its field has it.

    Raises:
        ValueError: the field does not take it.
    """
    return getattr(EvalSet.model_validate({"name": "-", "path": "-", name: value}), name)


def expected(name: str) -> str:
    """What a value of a field looks like, for an error."""
    words: dict[Any, str] = {str: "text", Whole: "a whole number", Number: "a finite number"}
    lists = {"stop": "a list of texts", "stop_token_ids": "a list of whole numbers"}
    kind = next(iter(get_args(EvalSet.model_fields[name].annotation)), str)
    return lists.get(name) or words.get(kind, "keys and plain values below it")
