"""What an option changes in training: probes that need Megatron, for a process of their own (see ``ranks``).

Guarantee: as ``effect_probes``; weights, batches and Megatron's objects are real, of a tiny model.
"""

import dataclasses
import hashlib
import json
import tempfile
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from effect_probes import Inbox, watched
from ranks import meeting_file
from torch.utils._python_dispatch import TorchDispatchMode
from training_batches import batches, value_batch

from data.errors import UserError
from data.store import RunStore
from relax_core.config.options import with_options
from relax_core.config.passthrough import pass_throughs
from relax_core.config.sections import RelaxConfig
from relax_core.engines.errors import EngineUnavailable
from relax_core.training.megatron import DistributedDataParallelConfig, OptimizerConfig, TransformerConfig
from relax_core.training.model import ModelShape, transformer_config
from relax_core.training.optimizer import optimizer_config
from relax_core.training.roles import Role, role_config
from relax_core.training.schedule import build_schedule


def _fields(made: Any) -> dict[str, str]:
    return {field.name: repr(getattr(made, field.name)) for field in dataclasses.fields(made)}


def model_settings(config: RelaxConfig, work: str) -> Any:
    """Megatron's configuration of the model."""
    return _fields(transformer_config(ModelShape.from_hf(str(config.checkpoint.hf_checkpoint)), config))


def compiled_layers(config: RelaxConfig, work: str) -> Any:
    """Whether layers, and functions, are compiled on a GPU."""
    from relax_core.algorithms.compiled import wants_compiled
    from relax_core.training.fused_layer import LayerForward

    trainer = made(config)
    layers = trainer.model.module.decoder.layers
    return [isinstance(layer.forward, LayerForward) for layer in layers], wants_compiled()


def optimizer_settings(config: RelaxConfig, work: str) -> Any:
    """Megatron's configuration of the optimiser on a GPU, or why there is none."""
    try:
        return _fields(optimizer_config(config, torch.device("cuda")))
    except UserError as error:
        return str(error)


def rates(config: RelaxConfig, work: str) -> Any:
    """Learning rate and weight decay of ten optimiser steps."""
    optimizer = torch.optim.AdamW([torch.zeros(1)])
    schedule = build_schedule(config, optimizer)
    found = []
    for _ in range(10):
        found.append([optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["weight_decay"]])
        schedule.step(1)
    return found


class Joined(Exception):
    """Stands for the meeting of the ranks."""


def meeting(config: RelaxConfig, work: str) -> Any:
    """How ranks with GPUs meet."""
    from relax_core.training import distributed

    def meet(backend: str, **options: Any) -> None:
        raise Joined(backend, str(options["timeout"]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed.dist, "init_process_group", meet)
        patch.setattr(distributed.dist, "is_initialized", lambda: False)
        patch.setattr(torch.cuda, "set_device", lambda device: None)
        with pytest.raises(Joined) as joined:
            distributed.join(config, 0, 1, torch.device("cuda:0"), "env://")
    return list(joined.value.args)


def critics_rates(config: RelaxConfig, work: str) -> Any:
    """As ``rates``, of the critic."""
    return rates(role_config(config, "critic"), work)


def critic_trained(config: RelaxConfig, work: str) -> Any:
    """As ``trained``, of the critic."""
    store = RunStore(work)
    critic = made(config, "critic")
    steps = []
    for step in range(2):
        ref = value_batch(store, f"values-{step}", seed=step)
        steps.append(critic.train(step, step + 1, ref, store.url, f"c{step + 1}").metrics)
    return steps, _digest(critic)


def made(config: RelaxConfig, role: Role = "actor") -> Any:
    """A trainer of one rank at version 0."""
    from relax_core.training.trainer import Trainer

    trainer = Trainer(config, 0, 1, role=role)
    trainer.join(meeting_file())
    trainer.initialise()
    return trainer


def _digest(trainer: Any) -> str:
    content = hashlib.sha256()
    for parameter in trainer.model.parameters():
        content.update(parameter.detach().float().numpy().tobytes())
    return content.hexdigest()


def trained(config: RelaxConfig, work: str) -> Any:
    """Metrics and weights of two rollout steps."""
    store, refs = batches(work)
    trainer = made(config)
    steps = [trainer.train(step, step + 1, refs[step], store.url, f"w{step + 1}").metrics for step in range(2)]
    return steps, _digest(trainer)


def random_number(config: RelaxConfig, work: str) -> float:
    """What a function of the user would draw first in a trainer. (Nothing of Relax's own is drawn.)"""
    made(config)
    return torch.rand(1).item()


def wrapper_settings(config: RelaxConfig, work: str) -> Any:
    """Megatron's configuration of data parallelism."""
    return _fields(made(config).model.ddp_config)


def checkpoints(config: RelaxConfig, work: str) -> Any:
    """What is said of a checkpoint when it is saved, and what it holds in the end."""
    store, refs = batches(work)
    url = tempfile.mkdtemp(dir=work)
    trainer = made(config)
    trainer.train(0, 1, refs[0], store.url, "w1")
    said = sorted(trainer.save(url, 0))
    trainer.finish_save()
    return said, json.loads(Path(url, "iter_0000000/relax_state.json").read_text())["optimizer"]


def exported(config: RelaxConfig, work: str) -> Any:
    """The model folder that is written for the first weights."""
    folder = tempfile.mkdtemp(dir=work)
    made(config).export_hf(folder)
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in Path(folder).iterdir()}


class Products(TorchDispatchMode):
    """Counts products of matrices."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten.mm.default
        return func(*args, **(kwargs or {}))


def products(config: RelaxConfig, work: str) -> int:
    """Products of matrices in a rollout step: more where logits are made in parts, or anew for the backward pass."""
    store, refs = batches(work)
    trainer = made(config)
    with Products() as products:
        trainer.train(0, 1, refs[0], store.url, "w1")
    return products.count


class Engine(Inbox):
    """An engine as far as weights go. Its comparison finds random weights until it gets others."""

    def __init__(self) -> None:
        super().__init__()
        self.version, self.random = "default", False

    def answer(self, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        if path == "/init_weights_update_group":
            return 400, {"message": "no groups here"}
        if path == "/update_weight_version":
            self.version = body["new_version"]
        if path == "/update_weights_from_tensor":
            self.random = False
        if path == "/weights_checker":
            self.random = self.random or body["action"] == "reset_tensors"
            if body["action"] == "compare" and self.random:
                return 400, {"message": "name=weight differs"}
        return 200, {"success": True, "weight_version": self.version}


def pushed(config: RelaxConfig, work: str) -> Any:
    """What an engine is told when it gets new weights."""
    engine = Engine()
    try:
        report = made(config).push_weights(0, [f"http://{engine.address}"])
    except EngineUnavailable as error:
        report = {"checked": "no groups here" if "no groups here" in str(error) else repr(error)}
    return [path for path, _ in engine.calls], report["checked"]


# What runs in the process of its own


def answers(work: str, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What each case's probe returns (``value``), and the modules that read the option, or why it failed (``error``).

    Args:
        work: folder of the stored batches.
        cases: ``probe``, a name of this module, ``config``, and ``name``, the option that is looked at, if any.
    """
    known: dict[str, list[dict[str, Any]]] = {}
    found = []
    for case in cases:
        # many share the configuration that is not changed: it is asked twice, to see that it always answers the same
        answers = known.setdefault(json.dumps(case, sort_keys=True), [])
        if len(answers) < 2:
            answers.append(_answer(work, **case))
        found.append(answers[-1])
    return found


def _answer(work: str, probe: str, config: dict[str, Any], name: str | None) -> dict[str, Any]:
    torch.manual_seed(0)
    made, modules = RelaxConfig.model_validate(config), set[str]()
    if name is not None:
        made, modules = watched(made, name)
    try:
        return {"value": globals()[probe](made, work), "modules": sorted(modules), "error": ""}
    except Exception:
        return {"value": None, "modules": [], "error": traceback.format_exc()}


def constructed(values: dict[str, Any]) -> dict[str, dict[str, str]]:
    """What each constructor of Megatron gets when one option is passed through.

    Args:
        values: option -> value.

    Returns:
        Option -> constructor -> what it is given beside Relax's own fields, as text.
    """
    from relax_core.training.megatron_config import megatron_object

    kinds = {"transformer": TransformerConfig, "optimizer": OptimizerConfig, "ddp": DistributedDataParallelConfig}
    found: dict[str, dict[str, str]] = {}
    for name, value in values.items():
        config = with_options(RelaxConfig(), {name: value})
        found[name] = {}
        for target in pass_throughs()[name].targets:
            # the constructor as it is, but for what it does with what it gets
            watched: Any = type("Watched", (kinds[target],), {"__init__": _keep})
            try:
                found[name][target] = repr(megatron_object(watched, target, config, {}).given)
            except UserError as error:
                found[name][target] = str(error)
    return found


def _keep(self: Any, **fields: Any) -> None:
    self.given = fields


def everything(work: str) -> dict[str, Any]:
    """Both of the above, for what ``asked.json`` in the folder asks."""
    asked = json.loads(Path(work, "asked.json").read_text())
    return {"answers": answers(work, asked["cases"]), "constructed": constructed(asked["values"])}
