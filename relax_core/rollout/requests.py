"""What one step asks the engines: the prompts that are next, each as a group of samples.

Guarantee: ids, indices and seeds follow from the cursor, the step and the options; drawing the same step twice gives
the same requests.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data.cursor import Cursor
from data.prompts import Prompt, PromptDataset
from relax_core.config.sections import RelaxConfig
from relax_core.rollout.sampling import EVAL_STEP, sample_seed


@dataclass(frozen=True, eq=False)
class Progress:
    """A response that exists in part; D tokens.

    Attributes:
        output_ids: [D] int32.
        log_probs: [D] float32.
        token_versions: [D] int32, versions of the weights that made the tokens; -1: no engine made it.
        loss_mask: [D] uint8, 1: trained on.
        abort_count: how often it was ended and put back.
        start_step: rollout step that began it.
    """

    output_ids: NDArray[np.int32]
    log_probs: NDArray[np.float32]
    token_versions: NDArray[np.int32]
    loss_mask: NDArray[np.uint8]
    abort_count: int
    start_step: int

    def __post_init__(self) -> None:
        lengths = {len(one) for one in (self.output_ids, self.log_probs, self.token_versions, self.loss_mask)}
        if len(lengths) != 1:
            raise ValueError(f"the parts of a response differ in length: {sorted(lengths)}")


@dataclass(frozen=True)
class SampleRequest:
    """One response to generate.

    Attributes:
        sample_id: unique in the run.
        group_id: of the samples of one prompt that are compared with each other.
        prompt: what is answered.
        seed: sampling seed.
        k: number of the sample in its group.
        index: of the sample over the whole run; ``group_index * n_samples_per_prompt + k``.
        group_index: of the group over the whole run.
        progress: what exists of the response; None: nothing.
    """

    sample_id: str
    group_id: str
    prompt: Prompt
    seed: int
    k: int
    index: int
    group_index: int
    progress: Progress | None = None


def step_requests(
    prompts: PromptDataset, cursor: Cursor, step: int, config: RelaxConfig
) -> tuple[list[SampleRequest], Cursor]:
    """The requests of a rollout step.

    Args:
        prompts: training prompts.
        cursor: where the step begins.
        step: rollout step, 0-based.
        config: ``rollout_batch_size`` groups of ``n_samples_per_prompt`` samples.

    Returns:
        The requests, group by group, and the cursor of the next step.
    """
    options = config.data
    groups = int(config.rollout.rollout_batch_size or 1)
    rows, after = cursor.take(groups, len(prompts), options.rollout_seed, options.rollout_shuffle)
    return group_requests(
        [prompts[row] for row in rows],
        prefix=f"{step:06d}",
        samples=config.rollout.n_samples_per_prompt,
        run_seed=options.rollout_seed,
        step=step,
        first_group=cursor.groups,
    ), after


def group_requests(
    prompts: Sequence[Prompt], *, prefix: str, samples: int, run_seed: int, step: int, first_group: int
) -> list[SampleRequest]:
    """``samples`` requests for each prompt. Group ids are ``<prefix>-0000``, ...; sample ids ``<group id>-000``, ...

    A prompt that occurs again in the same step (a set smaller than the batch) gets seeds of its own: it counts its
    samples on, so that the second group is not a copy of the first.
    """
    seen: Counter[str] = Counter()
    requests = []
    for number, prompt in enumerate(prompts):
        group_id, group_index = f"{prefix}-{number:04d}", first_group + number
        for k in range(samples):
            requests.append(
                SampleRequest(
                    sample_id=f"{group_id}-{k:03d}",
                    group_id=group_id,
                    prompt=prompt,
                    seed=sample_seed(run_seed, step, prompt.prompt_id, seen[prompt.prompt_id] + k),
                    k=k,
                    index=group_index * samples + k,
                    group_index=group_index,
                )
            )
        seen[prompt.prompt_id] += samples
    return requests


def evaluation_requests(name: str, prompts: PromptDataset, samples: int, run_seed: int) -> list[SampleRequest]:
    """``samples`` requests for every prompt of an evaluation set, with ids ``eval-<set>-<row>-<k>``.

    Seeds depend on the set's name and not on the step: two evaluations of a run differ by the weights only.
    """
    requests = []
    for row in range(len(prompts)):
        prompt = prompts[row]
        group_id = f"eval-{name}-{int(prompt.prompt_id):06d}"
        for k in range(samples):
            seed = sample_seed(run_seed, EVAL_STEP, f"{name}/{prompt.prompt_id}", k)
            requests.append(
                SampleRequest(
                    f"{group_id}-{k:03d}", group_id, prompt, seed, k, index=row * samples + k, group_index=row
                )
            )
    return requests
