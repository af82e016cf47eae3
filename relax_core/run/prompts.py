"""The prompts of a run, and the tokenizer that makes them.

Guarantee: nothing is read before it is needed, and nothing twice; a bad row is a ``UserError`` that names it.
"""

from dataclasses import replace
from functools import cached_property
from typing import Any

from data.prompts import PromptDataset, load_prompts
from relax_core.config import RelaxConfig
from relax_core.config.eval_set import EvalSet
from relax_core.config.sections.data import DataSection
from relax_core.rollout.hooks import prompt_converter


class RunPrompts:
    """The part of a run that knows its prompts.

    Attributes:
        config: resolved.
    """

    config: RelaxConfig

    @cached_property
    def tokenizer(self) -> Any:
        """Tokenizer of ``--hf-checkpoint``."""
        from transformers import AutoTokenizer  # here: it costs a second that a finished run does not need

        return AutoTokenizer.from_pretrained(str(self.config.checkpoint.hf_checkpoint))

    def _load_prompts(self, source: str, keys: DataSection | EvalSet, max_prompt_len: int | None) -> PromptDataset:
        options = self.config.data
        return load_prompts(
            source,
            tokenizer=self.tokenizer,
            input_key=str(keys.input_key),
            label_key=keys.label_key or None,
            metadata_key=str(keys.metadata_key),
            tool_key=str(keys.tool_key),
            apply_chat_template=options.apply_chat_template,
            template_kwargs=options.apply_chat_template_kwargs,
            system_prompt=options.system_prompt,
            max_prompt_len=max_prompt_len,
            convert=prompt_converter(self.config),
            # with a label the column holds a prompt, without one a whole conversation
            key_map=None if keys.label_key else options.conversation_key_map,
        )

    @cached_property
    def prompts(self) -> PromptDataset:
        """Training prompts."""
        options = self.config.data
        return self._load_prompts(str(options.prompt_data), options, self.config.rollout.rollout_max_prompt_len)

    @cached_property
    def evaluation_sets(self) -> list[tuple[EvalSet, PromptDataset]]:
        """Evaluation sets and their prompts, with the metadata that a set adds to its rows."""
        sets = []
        for eval_set in self.config.eval.eval_datasets or []:
            prompts = self._load_prompts(eval_set.path, eval_set, eval_set.max_prompt_len)
            metadata = [{**row, **eval_set.added_metadata} for row in prompts.metadata]
            sets.append((eval_set, replace(prompts, metadata=metadata)))
        return sets
