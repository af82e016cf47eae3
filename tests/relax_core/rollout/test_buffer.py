"""What a step leaves for the next one, as a table and back."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from results import STEP, made, requests, rows

from data.store import RunStore
from relax_core.rollout.buffer import (
    buffer_table,
    carried_groups,
    finished_rows,
    new_groups,
    produced,
    stopped_rows,
    trained_rows,
    unbegun,
)
from relax_core.rollout.requests import Progress
from relax_core.rollout.sampling import Sampling, response_budget


def carried(*parts: pa.Table) -> Any:
    table = buffer_table(parts)
    assert table is not None
    return carried_groups(table)


def test_a_group_is_the_same_group_in_the_next_step() -> None:
    """The first sample is finished, the second was stopped after three tokens."""
    first, second = requests(1)
    left = stopped_rows(rows(made(first, [7]), made(second, [8, 9, 8], "aborted")), STEP)
    [group] = carried(left)
    assert (group.group_id, group.group_index, group.sample_ids) == (
        "000005-0000",
        10,
        ["000005-0000-000", "000005-0000-001"],
    )
    assert group.finished == {"000005-0000-000"}
    again = group.requests[1]
    for name in ("sample_id", "group_id", "seed", "k", "index", "group_index"):
        assert getattr(again, name) == getattr(second, name), name
    assert again.prompt.tokens.tolist() == [0, 0]
    assert (again.prompt.prompt_id, again.prompt.text, again.prompt.label) == ("00000000", "p0", '"0"')
    assert again.prompt.metadata == {"n": 0, "start_rollout_id": STEP}
    progress = again.progress
    assert progress is not None
    assert progress.output_ids.tolist() == [8, 9, 8]
    assert progress.log_probs.tolist() == [-1.0, -2.0, -3.0]
    assert progress.token_versions.tolist() == [STEP] * 3
    assert progress.loss_mask.tolist() == [1, 1, 1]
    assert (progress.abort_count, progress.start_step) == (1, STEP)
    assert finished_rows([group])["response"].to_pylist() == ["7"]
    assert produced([group]) == {"000005-0000-000": 1, "000005-0000-001": 3}


def test_a_response_that_was_stopped_twice_keeps_all_tokens_and_its_first_step() -> None:
    [request] = requests(1, 1)
    [group] = carried(stopped_rows(rows(made(request, [1, 2], "aborted")), STEP))
    second = made(group.requests[0], [3], "aborted", version=STEP + 1)
    [group] = carried(stopped_rows(rows(second, step=STEP + 1), STEP + 1))
    progress = group.requests[0].progress
    assert progress is not None
    assert progress.output_ids.tolist() == [1, 2, 3]
    assert progress.token_versions.tolist() == [STEP, STEP, STEP + 1]
    assert (progress.abort_count, progress.start_step) == (2, STEP)
    assert group.requests[0].prompt.metadata["start_rollout_id"] == STEP


def test_the_step_that_first_stopped_a_group_is_told_of_every_sample_and_only_once() -> None:
    first, second = requests(1)
    second = replace(second, prompt=replace(second.prompt, metadata={"start_rollout_id": 2}))
    left = stopped_rows(rows(made(first, [7]), made(second, [8], "aborted")), STEP)
    assert [json.loads(text)["start_rollout_id"] for text in left["metadata"].to_pylist()] == [STEP, 2]


def test_a_sample_that_waited_for_an_engine_counts_as_stopped_and_has_nothing() -> None:
    [request] = requests(1, 1)
    [group] = carried(rows(made(request, [], "aborted")))
    progress = group.requests[0].progress
    assert progress is not None
    assert (len(progress.output_ids), progress.abort_count) == (0, 1)


def test_a_group_that_was_given_up_begins_anew_with_its_ids_and_seeds() -> None:
    [request] = requests(1, 1)
    progress = Progress(*(np.ones(4, kind) for kind in (np.int32, np.float32, np.int32, np.uint8)), 0, 1)
    [group] = carried(rows(unbegun(replace(request, progress=progress))))
    again = group.requests[0]
    assert again.progress is None
    assert (again.sample_id, again.seed, again.prompt.metadata) == (request.sample_id, request.seed, {"n": 0})
    assert group.finished == set()


def test_the_order_is_that_of_the_indices_whatever_came_first() -> None:
    older, newer = requests(2, 1), requests(1, 1, step=STEP + 1)
    newer = [replace(one, index=30, group_index=30) for one in newer]
    table = buffer_table([rows(made(newer[0], [1])), rows(*(made(one, [1]) for one in reversed(older)))])
    assert table is not None
    assert table["sample_id"].to_pylist() == ["000005-0000-000", "000005-0001-000", "000006-0000-000"]
    assert [group.group_index for group in carried_groups(table)] == [10, 11, 30]
    assert buffer_table([]) is None
    assert buffer_table([table.slice(0, 0)]) is None


def test_a_stored_buffer_is_the_same_whatever_its_parts(tmp_path: Any) -> None:
    store = RunStore(str(tmp_path))
    one, two = (rows(made(request, [1])) for request in requests(2, 1))
    first, second = buffer_table([one, two]), buffer_table([two, one])
    assert first is not None
    assert second is not None
    assert store.write_table("a.parquet", first).sha256 == store.write_table("b.parquet", second).sha256
    assert [group.group_id for group in carried_groups(store.read_table("a.parquet"))] == ["000005-0000", "000005-0001"]


def test_the_rest_of_the_budget_is_asked_for_and_the_callers_parameters_stay() -> None:
    """T29: 100 at most, 40 are there."""
    assert response_budget(10, 100, 1000, produced=40) == 60
    from relax_core.rollout.pieces import reduced

    params = Sampling(max_new_tokens=100).params(1, 100)
    asked = reduced(params, 40)
    assert (asked["max_new_tokens"], params["max_new_tokens"]) == (60, 100)


def test_only_the_tokens_of_this_step_are_trained_on_where_older_ones_are_masked() -> None:
    """T30: 40 tokens of an earlier step and 60 of this one."""
    [request] = requests(1, 1)
    [group] = carried(stopped_rows(rows(made(request, [1] * 40, "aborted")), STEP))
    whole = rows(made(group.requests[0], [2] * 60, version=STEP + 1), step=STEP + 1)
    masked = trained_rows(whole, STEP + 1, produced([group]))
    assert masked["loss_mask"].to_pylist() == [[0] * 40 + [1] * 60]
    assert masked["token_versions"].to_pylist() == [[STEP] * 40 + [STEP + 1] * 60]
    assert whole["loss_mask"].to_pylist() == [[1] * 100]
    assert trained_rows(whole, STEP + 1, {}).equals(whole)


def test_a_finished_sample_of_an_earlier_step_is_of_the_step_that_trains_on_it() -> None:
    """And wholly masked where tokens of earlier steps are; what is new beside it is not."""
    first, second = requests(1)
    [group] = carried(rows(made(first, [1, 2]), made(second, [], "aborted")))
    whole = pa.concat_tables([finished_rows([group]), rows(made(group.requests[1], [3]), step=STEP + 1)])
    trained = trained_rows(whole, STEP + 1, produced([group]))
    assert trained["step"].to_pylist() == [STEP + 1] * 2
    assert trained["loss_mask"].to_pylist() == [[0, 0], [1]]


def test_requests_form_their_groups() -> None:
    groups = new_groups(requests(2, 2))
    assert [(group.group_id, len(group.requests), group.rows) for group in groups] == [
        ("000005-0000", 2, None),
        ("000005-0001", 2, None),
    ]


@pytest.mark.parametrize("status", ["completed", "aborted"])
def test_a_prompt_that_a_function_changed_stays_changed(status: str) -> None:
    [request] = requests(1, 1)
    changed = replace(request, prompt=replace(request.prompt, tokens=np.array([5], np.int32), label='"x"'))
    [group] = carried(rows(made(changed, [1], status)))
    assert (group.requests[0].prompt.tokens.tolist(), group.requests[0].prompt.label) == ([5], '"x"')
