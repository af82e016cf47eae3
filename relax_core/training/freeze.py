"""Which parameters are trained.

Guarantee: a pattern sees the names that parameters have in the whole model, layers counted through, whatever the
pipeline; so every layout freezes the same parameters. A pattern that is found in no name, or a choice that leaves
nothing to train, is an error on every rank.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from data.errors import UserError
from data.nearest import nearest
from relax_core.config.sections import RelaxConfig
from relax_core.training.distributed import gather_objects
from relax_core.training.model import PolicyModel

_LAYER = re.compile(r"(?<=^decoder\.layers\.)\d+")
TIED = ("embedding.word_embeddings.weight", "output_layer.weight")
"""Names of the one parameter that a model with tied embeddings has for both."""


def freezes(config: RelaxConfig) -> bool:
    """Whether the options leave any parameter out."""
    return bool(config.freeze.only_train_params_name_list or config.freeze.freeze_params_name_list)


def freeze(config: RelaxConfig, policy: PolicyModel) -> None:
    """Take the gradient from what the options freeze. Collective; before Megatron's data-parallel wrapper is made.

    Raises:
        UserError: a pattern that is no regular expression or is found in no name; or nothing is left to train.
    """
    options = config.freeze
    only, frozen = options.only_train_params_name_list, options.freeze_params_name_list
    if not freezes(config):
        return
    own = {name: names_in_model(policy, name) for name, _ in policy.named_parameters()}
    parameters = {names for rank in gather_objects(list(own.values())) for names in rank}
    every = sorted({name for names in parameters for name in names})
    wanted = _patterns("--only-train-params-name-list", only, every)
    unwanted = _patterns("--freeze-params-name-list", frozen, every)

    def trains(names: Iterable[str]) -> bool:
        return (not only or _found(wanted, names)) and not _found(unwanted, names)

    if not any(trains(names) for names in parameters):
        flag = "--only-train-params-name-list" if only else "--freeze-params-name-list"
        raise UserError(f"{flag} {' '.join(only or frozen or [])}: leaves nothing to train.", "Freeze less.")
    for name, parameter in policy.named_parameters():
        parameter.requires_grad_(trains(own[name]))
    _lead_gradients_through(policy)


def _lead_gradients_through(policy: PolicyModel) -> None:
    """Layers that are recomputed get a gradient only if their input wants one, which that of a frozen embedding does
    not."""
    recomputes = policy.pre_process and policy.config.recompute_granularity == "full"
    if recomputes and any(parameter.requires_grad for parameter in policy.decoder.parameters()):
        policy.embedding.register_forward_hook(_want_gradient)


def _want_gradient(module: torch.nn.Module, arguments: Any, output: torch.Tensor) -> None:
    if torch.is_grad_enabled() and not output.requires_grad:
        output.requires_grad_()


def names_in_model(policy: PolicyModel, name: str) -> tuple[str, ...]:
    """A parameter's names in the whole model, from its name in this pipeline stage."""
    if policy.shape.tie and name in TIED:
        return TIED
    found = _LAYER.search(name)
    if found is None:
        return (name,)
    number = policy.decoder.layers[int(found[0])].layer_number - 1  # Megatron counts from 1
    return (_LAYER.sub(str(number), name),)


def _patterns(flag: str, texts: Sequence[str] | None, names: Sequence[str]) -> list[re.Pattern[str]]:
    patterns = []
    for text in texts or ():
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise UserError(f"{flag} {text}: is no regular expression: {error}.", "A dot is written `\\.`.") from None
        if not _found([pattern], names):
            parts = sorted({part for name in names for part in name.split(".") if not part.isdigit()})
            hint = nearest(text, parts) or f"Names are made of {', '.join(parts)}."
            raise UserError(f"{flag} {text}: is found in no parameter's name, such as {names[0]}.", hint)
        patterns.append(pattern)
    return patterns


def _found(patterns: Iterable[re.Pattern[str]], names: Iterable[str]) -> bool:
    return any(pattern.search(name) for pattern in patterns for name in names)
