"""Options of slime's launch scripts that the specification does not have.

Guarantee: such an option is translated, or met with a warning or an error that says what Relax does instead; none is
left out in silence, and none is taken for another option.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from relax_core.config.problems import Problem, Severity

NODE_DEVICES = 8
"""Devices of a node where a script gives only the number of nodes: slime's default."""

_ROLES = {
    "actor": ("--actor-num-nodes", "--actor-num-gpus-per-node"),
    "critic": ("--critic-num-nodes", "--critic-num-gpus-per-node"),
}


@dataclass(frozen=True)
class Foreign:
    """How an option of another system is met.

    Args:
        text: what Relax does instead, as the reason of a `Problem`.
        severity: an error where going on would do something else than what was asked for.
        takes: how many words the option takes.
    """

    text: str
    severity: Severity = "warning"
    takes: Literal["no value", "one value", "values"] = "one value"


_PLACED = Foreign("is read as a part of --resource.")
_WANDB = Foreign("has no effect: there is no Weights & Biases tracker. Metrics are in <run>/metrics.jsonl.")
_WANDB_SWITCH = Foreign(_WANDB.text, takes="no value")
_ROUTER = Foreign("has no effect: requests go to the engines directly, without a router.")
_CI = Foreign("has no effect: a switch of slime's own tests.", takes="no value")
_HOOK = Foreign("is not supported: Relax has no such hook.", "error")

FOREIGN: Mapping[str, Foreign] = {
    "--actor-num-nodes": _PLACED,
    "--actor-num-gpus-per-node": _PLACED,
    "--critic-num-nodes": _PLACED,
    "--critic-num-gpus-per-node": _PLACED,
    "--rollout-num-gpus": _PLACED,
    "--rollout-global-dataset": Foreign("is what Relax always does.", takes="no value"),
    "--disable-rollout-global-dataset": Foreign(
        "is not supported: prompts always come from --prompt-data.", "error", takes="no value"
    ),
    "--rollout-num-process": Foreign("has no effect: one process keeps all requests in flight."),
    "--data-pad-size-multiplier": Foreign("has no effect: packed sequences are not padded."),
    "--loss-mask-type": Foreign("has no effect: the mask comes from the chat template itself."),
    "--enable-mtp-training": Foreign("is not supported: multi-token prediction heads.", "error", takes="no value"),
    "--prefill-num-servers": Foreign("is not supported: prefill and decode run in the same engine.", "error"),
    "--use-wandb": _WANDB_SWITCH,
    "--disable-wandb-random-suffix": _WANDB_SWITCH,
    "--wandb-always-use-train-step": _WANDB_SWITCH,
    **{
        f"--wandb-{name}": _WANDB
        for name in ("mode", "dir", "key", "host", "team", "group", "project", "run-id", "name", "entity", "exp-name")
    },
    "--sglang-router-ip": _ROUTER,
    "--sglang-router-port": _ROUTER,
    "--sglang-router-policy": _ROUTER,
    "--sglang-router-request-timeout-secs": _ROUTER,
    "--custom-megatron-init-path": _HOOK,
    "--custom-megatron-before-log-prob-hook-path": _HOOK,
    "--custom-megatron-before-train-step-hook-path": _HOOK,
    "--ci-test": _CI,
    "--ci-disable-kl-checker": _CI,
    "--ci-save-grad-norm": Foreign(_CI.text),
    "--ci-load-grad-norm": Foreign(_CI.text),
    "--rollout-data-transport": Foreign("has no effect: stages exchange Parquet files."),
    "--update-weight-mode": Foreign("has no effect: each sync sends all weights, in buckets."),
    "--update-weight-transport": Foreign("has no effect: the way of the weights follows from the devices."),
    "--sglang-config": Foreign(
        "is not supported: give SGLang's arguments as --sglang-... or in the run file.", "error"
    ),
    "--megatron-config-path": Foreign("is not supported: give Megatron's arguments as they are.", "error"),
    "--use-stateless-adam": Foreign("is not supported: the optimiser is Adam with its state.", "error", "no value"),
}
"""Flag -> how it is met."""


RENAMED: Mapping[str, str] = {
    "--override-opt_param-scheduler": "override_opt_param_scheduler",
    "--use-checkpoint-opt_param-scheduler": "use_checkpoint_opt_param_scheduler",
    "--sglang-cuda-graph-max-bs": "sglang_cuda_graph_max_bs_decode",
    "--sglang-cuda-graph-bs": "sglang_cuda_graph_bs_decode",
}
"""Spellings of Megatron and of older SGLang versions -> the option's name."""


def translate(foreign: Mapping[str, list[str]], given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """The options of Relax that foreign ones stand for, and what the person should know of each.

    Args:
        foreign: flag -> the words behind it.
        given: the options of Relax on the same command line; they win.
    """
    problems = [problem for flag, words in foreign.items() if (problem := _wrong_words(flag, words))]
    wrong = {problem.option for problem in problems}
    sizes = {flag: int(words[0]) for flag, words in foreign.items() if FOREIGN[flag] is _PLACED and flag not in wrong}
    values: dict[str, Any] = {}
    note = ""
    if sizes and not wrong:
        if "resource" in given:
            note = "has no effect beside --resource, which says the same."
        else:
            resource = _resource(sizes.get, bool(given.get("colocate")))
            values["resource"] = resource
            shown = ", ".join(f'"{role}":[1,{devices}]' for role, (_, devices) in resource.items())
            note = f"is read as a part of --resource '{{{shown}}}'."
    for flag, words in foreign.items():
        if flag not in wrong:
            met = FOREIGN[flag]
            text = note if met is _PLACED else met.text
            problems.append(Problem(flag, _shown(flag, words), text, severity=met.severity))
    return values, problems


def _shown(flag: str, words: list[str]) -> list[str] | None:
    return ["***"] if "key" in flag and words else words or None


def _wrong_words(flag: str, words: list[str]) -> Problem | None:
    met = FOREIGN[flag]
    if met is _PLACED and (len(words) != 1 or not re.fullmatch("0*[1-9][0-9]{0,8}", words[0])):
        return Problem(flag, words or None, "expects a whole number, 1 or more.")
    wanted = {"no value": len(words) == 0, "one value": len(words) == 1, "values": bool(words)}
    return None if wanted[met.takes] else Problem(flag, _shown(flag, words), f"takes {met.takes}.")


def _resource(size: Callable[[str], int | None], colocate: bool) -> dict[str, tuple[int, int]]:
    resource: dict[str, tuple[int, int]] = {}
    usual = NODE_DEVICES
    for role, (nodes, devices) in _ROLES.items():
        if size(nodes) or size(devices):
            # slime: a critic that says nothing of its nodes has such as the actor
            usual = size(devices) or usual
            resource[role] = (1, (size(nodes) or 1) * usual)
    actor = resource.setdefault("actor", (1, 1))
    # slime: without --rollout-num-gpus, engines share the actor's devices when colocated
    rollout = size("--rollout-num-gpus") or (actor[1] if colocate else 1)
    resource["rollout"] = (1, rollout)
    return resource
