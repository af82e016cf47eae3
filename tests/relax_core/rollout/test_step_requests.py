"""The requests of a step and of an evaluation."""

import numpy as np

from data.cursor import Cursor
from data.prompts import PromptDataset
from data.ragged import Ragged
from relax_core.config.sections import RelaxConfig
from relax_core.rollout.requests import evaluation_requests, step_requests
from relax_core.rollout.sampling import sample_seed


def prompts(n: int, first_row: int = 0) -> PromptDataset:
    return PromptDataset(
        prompt_ids=[f"{first_row + i:08d}" for i in range(n)],
        texts=[f"p{i}" for i in range(n)],
        tokens=Ragged.from_list([[i, i + 1] for i in range(n)], np.int32),
        labels=[str(i) for i in range(n)],
        metadata=[{} for _ in range(n)],
        dropped=0,
        source="test",
    )


def settings(batch: int, samples: int, **data) -> RelaxConfig:
    return RelaxConfig.model_validate(
        {"rollout": {"rollout_batch_size": batch, "n_samples_per_prompt": samples}, "data": data}
    )


def test_groups_ids_and_indices():
    requests, cursor = step_requests(prompts(5), Cursor(0, 2, 12), 6, settings(2, 3))
    assert [request.sample_id for request in requests] == [
        "000006-0000-000",
        "000006-0000-001",
        "000006-0000-002",
        "000006-0001-000",
        "000006-0001-001",
        "000006-0001-002",
    ]
    assert [request.group_id for request in requests] == ["000006-0000"] * 3 + ["000006-0001"] * 3
    assert [request.prompt.prompt_id for request in requests] == ["00000002"] * 3 + ["00000003"] * 3
    assert [request.group_index for request in requests] == [12] * 3 + [13] * 3
    assert [request.index for request in requests] == [36, 37, 38, 39, 40, 41]  # 12 groups of 3 came before
    assert [request.k for request in requests] == [0, 1, 2] * 2
    assert cursor == Cursor(0, 4, 14)


def test_a_step_that_is_drawn_again_is_the_same_step():
    config = settings(3, 2, rollout_shuffle=True)
    first, after = step_requests(prompts(10), Cursor(1, 4, 14), 7, config)
    again, _ = step_requests(prompts(10), Cursor(1, 4, 14), 7, config)
    assert [(r.sample_id, r.seed, r.prompt.prompt_id) for r in first] == [
        (r.sample_id, r.seed, r.prompt.prompt_id) for r in again
    ]
    following, _ = step_requests(prompts(10), after, 8, config)
    assert {r.prompt.prompt_id for r in first}.isdisjoint(r.prompt.prompt_id for r in following)


def test_a_set_smaller_than_the_batch_gives_all_groups_and_no_copies():
    requests, cursor = step_requests(prompts(2), Cursor(), 0, settings(5, 2))
    assert [r.prompt.prompt_id for r in requests[::2]] == [f"{row:08d}" for row in (0, 1, 0, 1, 0)]
    assert cursor == Cursor(2, 1, 5)
    assert len({r.group_id for r in requests}) == 5
    # The same prompt has 6 samples in this step: they must not be sampled alike.
    assert len({r.seed for r in requests}) == 10
    assert requests[4].seed == sample_seed(42, 0, "00000000", 2)


def test_seeds_follow_run_seed_and_step():
    def seeds(step: int, run_seed: int) -> list[int]:
        requests, _ = step_requests(prompts(3), Cursor(), step, settings(3, 2, rollout_seed=run_seed))
        return [request.seed for request in requests]

    assert len({*seeds(0, 42), *seeds(1, 42), *seeds(0, 43)}) == 18


def test_evaluation_asks_every_prompt_and_names_rows_of_the_file():
    requests = evaluation_requests("gsm", prompts(2, first_row=40), 2, run_seed=42)
    assert [r.sample_id for r in requests] == [
        "eval-gsm-000040-000",
        "eval-gsm-000040-001",
        "eval-gsm-000041-000",
        "eval-gsm-000041-001",
    ]
    assert [r.group_index for r in requests] == [0, 0, 1, 1]
    assert [r.index for r in requests] == [0, 1, 2, 3]
    others = evaluation_requests("other", prompts(2, first_row=40), 2, run_seed=42)
    assert len({r.seed for r in requests + others}) == 8
