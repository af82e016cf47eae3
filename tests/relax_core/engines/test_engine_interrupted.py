"""The real SGLang on a CPU: responses that are interrupted, cut and gone on with are those of one piece."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from data.prompts import Prompt
from relax_core.rollout.gate import Gate
from relax_core.rollout.generate import generate
from relax_core.rollout.generated import Generated
from relax_core.rollout.generation import Generation
from relax_core.rollout.requests import SampleRequest, group_requests
from relax_core.rollout.sampling import Sampling
from relax_core.weights.transport import push_weights

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(400)]

LENGTH = 700
GREEDY = Sampling(temperature=0.0, max_new_tokens=LENGTH, min_new_tokens=LENGTH)
SEEDED = Sampling(temperature=1.0, max_new_tokens=LENGTH, min_new_tokens=LENGTH)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def make_requests(count: int) -> list[SampleRequest]:
    tokens = [np.array([1, 87, 85, 71, 84, 40 + i, 7], np.int32) for i in range(count)]
    prompts = [Prompt(f"{i:08d}", "", each, None, {}) for i, each in enumerate(tokens)]
    return group_requests(prompts, prefix="000000", samples=1, run_seed=42, step=0, first_group=0)


async def in_flight(gate: Gate, count: int) -> None:
    async with asyncio.timeout(60):
        while gate.inside < count:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)  # some tokens


def same(one: Generated, other: Generated) -> None:
    assert one.output_ids.tolist() == other.output_ids.tolist()
    np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-3)


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_response_that_is_interrupted_twice_is_the_one_of_a_piece(sglang_engine, sampling):
    push_weights(weights(sglang_engine.folders[0]).items(), [sglang_engine.url], 3, 2**20)
    requests, gate = make_requests(3), Gate()

    def close() -> None:
        with gate.closed(sglang_engine.engine.abort_all):
            assert gate.inside == 0

    async def work() -> list[Generated]:
        task = asyncio.create_task(generate(requests, [sglang_engine.url], sampling, concurrency=3, gate=gate))
        for left in (3, 1):  # the engine may have finished others of them
            await in_flight(gate, left)
            await asyncio.to_thread(close)
        return await task

    interrupted = asyncio.run(work())
    whole = asyncio.run(generate(requests, [sglang_engine.url], sampling, concurrency=3))
    assert max(one.interrupted for one in interrupted) == 2
    for one, other in zip(interrupted, whole, strict=True):
        assert (one.interrupted > 0, one.status, len(one.output_ids)) == (True, "truncated", LENGTH)
        same(one, other)
        assert one.token_versions.tolist() == [3] * LENGTH


def test_new_weights_make_the_rest_of_an_interrupted_response(sglang_engine):
    push_weights(weights(sglang_engine.folders[0]).items(), [sglang_engine.url], 4, 2**20)
    [request], gate = make_requests(1), Gate()

    def sync() -> None:
        with gate.closed(sglang_engine.engine.abort_all):
            push_weights(weights(sglang_engine.folders[1]).items(), [sglang_engine.url], 5, 2**20)

    async def work() -> Generated:
        task = asyncio.create_task(generate([request], [sglang_engine.url], GREEDY, concurrency=1, gate=gate))
        await in_flight(gate, 1)
        await asyncio.to_thread(sync)
        [result] = await task
        return result

    mixed = asyncio.run(work())
    old = mixed.token_versions.tolist().count(4)
    assert 0 < old < LENGTH
    assert mixed.token_versions.tolist() == [4] * old + [5] * (LENGTH - old)
    assert mixed.weight_versions == (4, 5)
    # The second part is what the new weights make of the first one.
    progress = replace(
        mixed,
        output_ids=mixed.output_ids[:old],
        log_probs=mixed.log_probs[:old],
        token_versions=mixed.token_versions[:old],
        loss_mask=mixed.loss_mask[:old],
    ).left_over(0)
    [again] = asyncio.run(generate([replace(request, progress=progress)], [sglang_engine.url], GREEDY, concurrency=1))
    same(mixed, again)


def test_a_cut_ends_one_request_and_spares_another_and_what_is_left_goes_on(sglang_engine):
    push_weights(weights(sglang_engine.folders[0]).items(), [sglang_engine.url], 6, 2**20)
    requests, gate = make_requests(2), Gate()

    async def work() -> list[Generated]:
        async with Generation([sglang_engine.url], SEEDED, concurrency=2, gate=gate) as generation:
            tasks = [asyncio.create_task(generation.sample(request)) for request in requests]
            await in_flight(gate, 2)
            await generation.cut(lambda request: request is requests[1])
            return await asyncio.gather(*tasks)

    cut, spared = asyncio.run(work())
    whole = asyncio.run(generate(requests, [sglang_engine.url], SEEDED, concurrency=2))
    same(spared, whole[1])
    assert (cut.status, cut.abort_count) == ("aborted", 1)
    assert 0 < len(cut.output_ids) < LENGTH
    rest = replace(requests[0], progress=cut.left_over(0))
    [later] = asyncio.run(generate([rest], [sglang_engine.url], SEEDED, concurrency=1))
    same(later, whole[0])
    assert later.status == whole[0].status


def test_a_stop_string_that_lies_across_a_piece_ends_the_response_as_in_one_piece(sglang_engine):
    push_weights(weights(sglang_engine.folders[0]).items(), [sglang_engine.url], 7, 2**20)
    tokenizer = AutoTokenizer.from_pretrained(sglang_engine.folders[0])
    [request] = make_requests(1)
    [plain] = asyncio.run(
        generate(
            [request],
            [sglang_engine.url],
            Sampling(temperature=1.0, max_new_tokens=40, min_new_tokens=40),
            concurrency=1,
        )
    )
    # A stop string of the text of three tokens that decode to themselves wherever they are cut.
    ids = plain.output_ids.tolist()
    place = next(
        i for i in range(8, 36) if "\ufffd" not in (text := tokenizer.decode(ids[i : i + 3])) and len(text.strip()) > 2
    )
    stop = tokenizer.decode(ids[place : place + 3])
    sampling = Sampling(temperature=1.0, max_new_tokens=40, min_new_tokens=40, stop=(stop,))
    [whole] = asyncio.run(generate([request], [sglang_engine.url], sampling, concurrency=1))
    assert (whole.status, len(whole.output_ids) <= place + 3) == ("completed", True)
    end = len(whole.output_ids)
    for left in (1, 2):  # tokens of the stop string that are missing
        part = replace(
            whole,
            output_ids=whole.output_ids[: end - left],
            log_probs=whole.log_probs[: end - left],
            token_versions=whole.token_versions[: end - left],
            loss_mask=whole.loss_mask[: end - left],
        )
        rest = replace(request, progress=part.left_over(0))
        [later] = asyncio.run(generate([rest], [sglang_engine.url], sampling, concurrency=1, tokenizer=tokenizer))
        same(later, whole)
        assert (later.status, later.finish_reason) == ("completed", "stop")
        [unseen] = asyncio.run(generate([rest], [sglang_engine.url], sampling, concurrency=1))
        assert len(unseen.output_ids) > end  # without a tokenizer nobody sees it
