"""Samples that a function of the user makes, over an engine in this process."""

import asyncio
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.errors import UserError
from data.prompts import Prompt
from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig
from relax_core.engines.errors import EngineUnavailable
from relax_core.rollout.custom import custom_answer, engine
from relax_core.rollout.generate import Generated, generate
from relax_core.rollout.requests import Progress, SampleRequest, group_requests
from relax_core.rollout.sampling import Sampling
from relax_core.rollout.table import rollout_table


class Tokenizer:
    """A token for each character."""

    def encode(self, text: str, **options: Any) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, tokens: Any, **options: Any) -> str:
        return "".join(map(chr, tokens))

    def batch_decode(self, sequences: list[list[int]], **options: Any) -> list[str]:
        return [self.decode(sequence) for sequence in sequences]


@dataclass
class Engine:
    """Answers with ``x`` times the tokens it may make, at most three; keeps what it was asked."""

    url: str = "memory"
    dead: bool = False
    versions: list[str] = field(default_factory=list)
    asked: list[tuple[list[int], dict[str, Any], str]] = field(default_factory=list)
    in_flight: int = 0
    most: int = 0

    async def generate(self, input_ids: Any, sampling_params: dict[str, Any], rid: str) -> Any:
        if self.dead:
            raise EngineUnavailable(f"{self.url} is gone")
        self.asked.append((list(map(int, input_ids)), dict(sampling_params), rid))
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        await asyncio.sleep(0.001)
        self.in_flight -= 1
        count = min(3, sampling_params["max_new_tokens"])
        ids = np.full(count, ord("x"), np.int32)
        reason = {"type": "stop" if count == 3 else "length"}
        versions = (self.versions.pop(0),) if self.versions else ("2.ab",)
        return _Completion(ids, np.full(count, -0.5, np.float32), reason, versions)

    async def abort(self, rid: str) -> None:
        raise AssertionError("nothing is cut here")


@dataclass
class _Completion:
    output_ids: Any
    log_probs: Any
    finish_reason: dict[str, Any]
    weight_versions: tuple[str, ...] = ("2.ab",)
    cached_tokens: int = 1
    spans: tuple[tuple[str, int, int], ...] = ()


def requests(samples: int = 1, text: str = "hi") -> list[SampleRequest]:
    tokens = np.array([ord(character) for character in text], np.int32)
    prompt = Prompt("00000000", text, tokens, '"label"', {"deep": {"list": [1]}})
    return group_requests([prompt], prefix="000000", samples=samples, run_seed=1, step=0, first_group=0)


def run(
    tmp_path: Path, text: str, engines: list[Engine], samples: int = 1, context: int = 40, **options: Any
) -> list[Generated]:
    """The samples of one prompt through the function ``make`` of this text."""
    file = tmp_path / "mine.py"
    file.write_text("from relax_core.rollout.custom import engine\n" + text)
    evaluation, progress = options.pop("evaluation", False), options.pop("progress", None)
    config = with_options(RelaxConfig(), {"custom_args": {"turns": 2}, **options})
    answer = custom_answer(f"{file}:make", config, Tokenizer(), context=context, longest=10, evaluation=evaluation)
    sampling = Sampling(temperature=0.5, max_new_tokens=10)
    wanted = [replace(request, progress=progress) for request in requests(samples)]
    return asyncio.run(generate(wanted, engines, sampling, context=context, concurrency=2, answer=answer))


ONE_TURN = "async def make(args, sample, params):\n    sample.append(await engine().generate(sample.tokens, params))\n"


def test_a_function_of_one_turn_gives_what_the_engine_alone_would(tmp_path: Path) -> None:
    asked, plainly = Engine(), Engine()
    made = run(tmp_path, ONE_TURN + "    return sample\n", [asked], samples=3)
    sampling = Sampling(temperature=0.5, max_new_tokens=10)
    plain = asyncio.run(generate(requests(3), [plainly], sampling, context=40, concurrency=2))
    tables = [rollout_table(each, step=0, version=2, tokenizer=Tokenizer()) for each in (made, plain)]
    assert tables[0].equals(tables[1])
    assert [(ids, params) for ids, params, _ in asked.asked] == [(ids, params) for ids, params, _ in plainly.asked]


TWO_TURNS = """
async def make(args, sample, params):
    for turn in range(args.turns):
        sample.append(await engine().generate(sample.tokens, params))
        if turn + 1 < args.turns:
            sample.append_context(engine().tokenizer.encode("??"))
    sample.metadata["deep"]["list"].append(sample.index)
    sample.label = {"new": 1}
    sample.remove_sample = sample.index == 1
    return sample
"""


def test_several_turns_train_what_was_generated_and_nothing_else(tmp_path: Path) -> None:
    used = Engine()
    made = run(tmp_path, TWO_TURNS, [used], samples=2)
    table = rollout_table(made, step=0, version=2, tokenizer=Tokenizer())
    first = table.to_pylist()[0]
    assert first["tokens"] == [ord(character) for character in "hixxx??xxx"]
    assert (first["prompt_length"], first["response_length"], first["response"]) == (2, 8, "xxx??xxx")
    assert first["loss_mask"] == [1, 1, 1, 0, 0, 1, 1, 1]
    assert first["rollout_log_probs"] == [-0.5] * 3 + [0.0] * 2 + [-0.5] * 3
    assert (first["status"], first["finish_reason"], first["weight_versions"]) == ("completed", "stop", [2])
    # two requests, of 2 and of 7 tokens, with one cached token each
    assert json.loads(first["prefix_cache_info"]) == {"cached_tokens": 2, "prompt_tokens": 2 + 7}
    assert json.loads(first["label"]) == {"new": 1}
    # the samples of a group share the row's metadata, and each changes its own copy
    assert [json.loads(text)["deep"]["list"] for text in table["metadata"].to_pylist()] == [[1, 0], [1, 1]]
    assert table["remove_sample"].to_pylist() == [False, True]
    assert len({rid for _, _, rid in used.asked}) == 4


def test_tokens_of_turns_know_their_weights_and_context_has_none(tmp_path: Path) -> None:
    used = Engine(versions=["2", "3.ab"])
    [made] = run(tmp_path, TWO_TURNS, [used])
    assert made.token_versions.tolist() == [2, 2, 2, -1, -1, 3, 3, 3]
    assert made.weight_versions == (2, 3)


def test_tokens_that_a_function_sets_itself_may_be_as_old_as_the_oldest_weights_that_it_asked(tmp_path: Path) -> None:
    text = """
async def make(args, sample, params):
    for _ in range(2):
        response = await engine().generate(sample.tokens, params)
        sample.tokens = [*sample.tokens, *map(int, response.output_ids), 7]
        sample.response_length += 4
    sample.loss_mask, sample.rollout_log_probs = [1, 1, 1, 0] * 2, [-0.5] * 8
    return sample
"""
    [made] = run(tmp_path, text, [Engine(versions=["3", "2"])])
    assert made.token_versions.tolist() == [2, 2, 2, -1] * 2
    assert made.weight_versions == (3, 2)


def test_a_function_gets_what_an_earlier_step_made_and_goes_on(tmp_path: Path) -> None:
    # 4 tokens exist, one of them context: 6 of 10 are left, the engine makes 3.
    ids, mask = np.array([120, 120, 63, 120], np.int32), np.array([1, 1, 0, 1], np.uint8)
    progress = Progress(ids, np.full(4, -0.25, np.float32), np.array([1, 1, -1, 1], np.int32), mask, 1, 0)
    used = Engine()
    [made] = run(tmp_path, ONE_TURN + "    return sample\n", [used], progress=progress)
    [(asked, params, _)] = used.asked
    assert (asked, params["max_new_tokens"]) == ([*map(ord, "hi"), *ids.tolist()], 6)
    assert made.output_ids.tolist() == [*ids.tolist(), 120, 120, 120]
    assert made.loss_mask.tolist() == [1, 1, 0, 1, 1, 1, 1]
    assert made.token_versions.tolist() == [1, 1, -1, 1, 2, 2, 2]
    assert made.log_probs.tolist() == [-0.25, -0.25, 0, -0.25, -0.5, -0.5, -0.5]
    assert (made.weight_versions, made.abort_count, made.status) == ((1, 2), 1, "completed")


def test_the_budget_of_a_turn_is_what_the_response_and_the_context_have_left(tmp_path: Path) -> None:
    text = """
async def make(args, sample, params):
    before = dict(params)
    for _ in range(6):
        sample.append(await engine().generate(sample.tokens, params))
    assert params == before
    return sample
"""
    used = Engine()
    made = run(tmp_path, text, [used])
    # 10 tokens of response in threes: 3, 3, 3, 1, and then nothing is asked any more
    assert [params["max_new_tokens"] for _, params, _ in used.asked] == [10, 7, 4, 1]
    assert (len(made[0].output_ids), made[0].status, made[0].finish_reason) == (10, "truncated", "length")
    used = Engine()
    made = run(tmp_path, text, [used], context=7)  # prompt of 2: room for 5
    assert [params["max_new_tokens"] for _, params, _ in used.asked] == [5, 2]
    assert made[0].status == "truncated"


def test_an_end_that_does_not_fit_and_is_not_trained_on_is_cut_off(tmp_path: Path) -> None:
    text = """
async def make(args, sample, params):
    for _ in range(3):
        sample.append(await engine().generate(sample.tokens, params))
        sample.append_context(engine().tokenizer.encode("?????"))
    return sample
"""
    # 3 + 5 + 2 (10 are allowed) + 5 + 0 + 5 tokens: those after the tenth are context
    for context, kept in ((40, "xxx?????xx"), (9, "xxx????")):
        table = rollout_table(
            run(tmp_path, text, [Engine()], context=context), step=0, version=2, tokenizer=Tokenizer()
        )
        row = table.to_pylist()[0]
        assert (row["response"], row["status"]) == (kept, "truncated")
        assert row["loss_mask"] == [int(character == "x") for character in kept]


def test_requests_of_all_samples_wait_for_permits_one_by_one(tmp_path: Path) -> None:
    """Two permits for each engine: eight samples that wait for a slow tool hold none meanwhile."""
    text = """
import asyncio
WAITING = []
async def make(args, sample, params):
    sample.append(await engine().generate(sample.tokens, params))
    WAITING.append(1)
    while len(WAITING) < 8:  # until all samples are between their turns at once
        await asyncio.sleep(0.001)
    sample.append(await engine().generate(sample.tokens, params))
    return sample
"""
    used = Engine()
    assert len(run(tmp_path, text, [used], samples=8)) == 8
    assert (len(used.asked), used.most) == (16, 2)


def test_a_dead_engine_costs_no_sample(tmp_path: Path) -> None:
    alive = Engine("alive")
    made = run(tmp_path, TWO_TURNS, [Engine("dead", dead=True), alive], samples=4)
    assert [len(one.output_ids) for one in made] == [8] * 4
    with pytest.raises(UserError, match="No rollout engine is left; lost: dead"):
        run(tmp_path, TWO_TURNS, [Engine("dead", dead=True)])


def test_a_function_is_told_whether_it_evaluates(tmp_path: Path) -> None:
    text = ONE_TURN.replace("params)", "params, evaluation=None)", 1) + (
        "    sample.metadata['told'] = evaluation\n    return sample\n"
    )
    for evaluation in (True, False):
        made = run(tmp_path, text, [Engine()], evaluation=evaluation)
        assert made[0].own is not None
        assert json.loads(made[0].own.metadata)["told"] is evaluation


def test_slimes_way_of_filling_a_sample_works(tmp_path: Path) -> None:
    text = """
async def make(args, sample, sampling_params):
    answer = await engine().generate(sample.tokens, sampling_params)
    sample.tokens = sample.tokens + answer.output_ids.tolist()
    sample.response_length = len(answer.output_ids)
    sample.response = "said " + engine().tokenizer.decode(answer.output_ids)
    sample.rollout_log_probs = answer.log_probs
    sample.status = sample.Status.TRUNCATED
    return sample
"""
    table = rollout_table(run(tmp_path, text, [Engine()]), step=0, version=2, tokenizer=Tokenizer())
    row = table.to_pylist()[0]
    assert (row["response"], row["status"], row["loss_mask"]) == ("said xxx", "truncated", [1, 1, 1])


WRONG = [
    ("return None", "returned for sample 000000-0000-000: a NoneType, not the sample"),
    ("return [sample, sample]", "a list, not the sample"),
    ("return sample", "the status 'pending', not one of completed, truncated, aborted, failed"),
    ("sample.status = 'done'; return sample", "the status 'done'"),
    ("sample.reward = 1.0; return sample", "a reward, which only --custom-rm-path gives"),
    ("sample.response_length = 2; return sample", "response_length 2 of 2 tokens"),
    ("sample.tokens = ['a', 'b']; return sample", "no list of token ids"),
    ("sample.tokens += [-1]; sample.response_length = 1; return sample", "no list of token ids"),
    (
        "sample.tokens += [1] * 11; sample.response_length = 11; sample.rollout_log_probs = [-1] * 11; return sample",
        "11 response tokens after 2 of the prompt, of which 10 fit",
    ),
    (
        "sample.tokens = [1] * 42; sample.append_context([1]); return sample",
        "1 response tokens after 42 of the prompt, of which 0 fit",
    ),
    (
        "sample.status = 'completed'; sample.tokens += [1]; sample.response_length = 1; return sample",
        "no rollout_log_probs for tokens that are trained on",
    ),
    (
        "sample.append_context([1, 2]); sample.status = 'completed'; sample.loss_mask = [1]; return sample",
        "a loss_mask that is not 2 times 0 or 1",
    ),
    (
        "sample.append_context([1]); sample.status = 'completed'; sample.rollout_log_probs = [0, 0]; return sample",
        "rollout_log_probs that are not 1 numbers",
    ),
    (
        "sample.append_context([1]); sample.status = 'completed'; sample.metadata = {'x': object()}; return sample",
        "cannot be written as JSON",
    ),
    ("return sample.tokens[99]", "failed on sample 000000-0000-000: IndexError"),
    ("import asyncio; raise asyncio.CancelledError", "failed on sample 000000-0000-000: CancelledError"),
]


@pytest.mark.parametrize(("body", "message"), WRONG, ids=[body for body, _ in WRONG])
def test_a_wrong_sample_names_the_function_and_the_sample(tmp_path: Path, body: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        run(tmp_path, f"async def make(args, sample, params):\n    {body}\n", [Engine()])
    assert error.value.problem.startswith(f"--custom-generate-function-path {tmp_path}/mine.py:make ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def make(args, sample, params):\n    return sample\n", r"Define it as `async def generate\(args, sample,"),
        ("async def make(sample):\n    return sample\n", "cannot be called with three arguments"),
    ],
)
def test_a_function_that_cannot_be_used_says_what_is_expected(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        run(tmp_path, text, [Engine()])


def test_the_engines_are_there_inside_the_function_only() -> None:
    with pytest.raises(RuntimeError, match="inside a function given as --custom-generate-function-path"):
        engine()
