"""The teacher's client against a small server that answers as SGLang does, or as it is told to."""

import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from teachers import VOCABULARY, Server, log_prob, teacher_server

from data.errors import UserError
from relax_core.engines import teacher
from relax_core.engines.teacher import Scored, address, meet, request_of, score, scores_of


def letters(text: str) -> list[int]:
    return [ord(letter) % 30 for letter in text]


class Student:
    """A tokenizer."""

    def encode(self, text: str, **options: Any) -> list[int]:
        assert options == {"add_special_tokens": False}
        return letters(text)


@pytest.fixture
def server() -> Iterator[Server]:
    with teacher_server() as made:
        made.words = letters
        yield made


def sample(name: str, tokens: list[int], response: int) -> Scored:
    return Scored(name, np.array(tokens, np.int32), response)


def answer(*entries: Any) -> dict[str, Any]:
    return {"meta_info": {"input_token_logprobs": list(entries)}}


def test_of_five_log_probs_after_a_prompt_of_three_the_last_two_are_the_responses() -> None:
    """The first one is empty: nothing predicts the first token."""
    whole = answer([None, 7, None], [-0.1, 8, None], [-0.2, 9, None], [-0.3, 5, None], [-0.4, 6, None])
    assert scores_of(whole, sample("a", [7, 8, 9, 5, 6], 2)).tolist() == pytest.approx([-0.3, -0.4])
    from_the_response = answer([None, 9, None], [-0.3, 5, None], [-0.4, 6, None])
    assert scores_of(from_the_response, sample("a", [7, 8, 9, 5, 6], 2)).tolist() == pytest.approx([-0.3, -0.4])


def test_the_last_token_of_the_vocabulary_is_called_0() -> None:
    assert scores_of(answer([None, 7, None], [-0.3, 0, None]), sample("a", [7, 511], 1)).tolist() == [np.float32(-0.3)]


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ([[None, 9, None], [-0.3, 5, None]], "1 log-probs of 2 response tokens"),
        ([[None, 9, None]], "0 log-probs"),
        ([], "0 log-probs"),
        ([[None, 1, None]] * 6, "5 log-probs"),
        ([[None, 9, None], [-0.3, 5, None], [-0.4, 7, None]], "token 7 in place of 6, its response token 1"),
        ([[None, 9, None], [None, 5, None], [-0.4, 6, None]], "log-prob None of token 5, its response token 0"),
        ([[None, 9, None], [float("-inf"), 5, None], [-0.4, 6, None]], "log-prob -inf of token 5"),
        ([[None, 9, None], [float("nan"), 5, None], [-0.4, 6, None]], "log-prob nan of token 5"),
        ([[None, 9, None], 3, 4], "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_what_is_no_score_of_each_response_token_is_an_error(entries: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        scores_of({"meta_info": {"input_token_logprobs": entries}}, sample("a", [7, 8, 9, 5, 6], 2))


def test_the_request_is_scored_at_the_rollout_temperature_and_generates_nothing() -> None:
    body = request_of(sample("a", [7, 8, 9, 5, 6], 2), 0.7)
    assert body["input_ids"] == [7, 8, 9, 5, 6]
    assert body["sampling_params"] == {"temperature": 0.7, "max_new_tokens": 0}
    assert (body["return_logprob"], body["logprob_start_len"]) == (True, 2)
    assert body["input_logprob_temperature"] == 0.7
    assert "input_logprob_temperature" not in request_of(sample("a", [7, 8], 1), 1.0)


@pytest.mark.parametrize("url", ["http://a:1", "http://a:1/", "http://a:1/generate", "http://a:1/generate/"])
def test_the_address_may_end_in_the_route(url: str) -> None:
    assert address(url) == "http://a:1"


def test_every_sample_is_scored_by_its_own_request_and_no_more_than_allowed_at_once(server: Server) -> None:
    known = meet(f"{server.url}/generate", Student(), 1.0)
    assert (known.url, known.vocabulary, known.longest) == (server.url, VOCABULARY, 100)
    samples = [sample(f"s{i}", [3 + i, 4, 5 + i, 6], i % 3) for i in range(9)]
    told: list[tuple[int, int, int]] = []
    found = score(known, samples, 1.0, concurrency=2, progress=lambda *counts: told.append(counts))
    for one, values in zip(samples, found, strict=True):
        tokens, length = one.tokens.tolist(), one.response_length
        assert values.tolist() == pytest.approx([log_prob(tokens, 4 - length + t, 1.0) for t in range(length)])
    assert server.most <= 2
    assert told[-1] == (9, 9, 9)  # 0 + 1 + 2, three times


def test_a_response_without_tokens_is_not_sent(server: Server) -> None:
    known = meet(server.url, Student(), 1.0)
    server.asked.clear()
    assert [values.tolist() for values in score(known, [sample("a", [3], 0)], 1.0, 4)] == [[]]
    assert server.asked == []


def test_a_lost_connection_and_a_server_that_is_not_ready_are_asked_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher, "LONGEST_PAUSE", 0.1)
    known = meet(server.url, Student(), 1.0)
    server.fail = [0, 503]
    [found] = score(known, [sample("a", [3, 4], 1)], 1.0, 4)
    assert found.tolist() == pytest.approx([log_prob([3, 4], 1, 1.0)])
    assert server.fail == []


def test_a_server_that_is_gone_names_the_sample_and_the_option(
    server: Server, unused_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teacher, "PATIENCE", 0.0)
    known = meet(server.url, Student(), 1.0)
    gone = teacher.Teacher(f"http://127.0.0.1:{unused_port}", known.vocabulary, known.longest)
    with pytest.raises(UserError, match=rf"Sample s7 at the teacher's server {gone.url} \(--rm-url\): .*/generate"):
        score(gone, [sample("s7", [3, 4], 1)], 1.0, 4)
    server.fail = [400]
    with pytest.raises(UserError, match=r"Sample s7 at .*: status 400"):
        score(known, [sample("s7", [3, 4], 1)], 1.0, 4)
    server.spoil = lambda entries: entries[:-1]
    with pytest.raises(UserError, match=r"Sample s7 at .* answered with 0 log-probs of 1 response tokens"):
        score(known, [sample("s7", [3, 4], 1)], 1.0, 4)


def test_a_token_that_the_teacher_does_not_know_is_never_sent(server: Server) -> None:
    """It would end the server: SGLang does not look at the tokens that it gets."""
    known = meet(server.url, Student(), 1.0)
    server.asked.clear()
    with pytest.raises(UserError, match=f"Sample s1 has token {VOCABULARY}, and the teacher at .* knows {VOCABULARY}"):
        score(known, [sample("s1", [3, VOCABULARY], 1)], 1.0, 4)
    assert server.asked == []


def test_a_teacher_with_another_tokenizer_is_refused_and_gets_none_of_its_tokens(server: Server) -> None:
    server.words = lambda text: [ord(letter) % 29 for letter in text]
    with pytest.raises(UserError, match=f"--rm-url {server.url}: the teacher has another tokenizer"):
        meet(server.url, Student(), 1.0)
    server.words, server.vocabulary = letters, 20
    with pytest.raises(UserError, match="another tokenizer"):
        meet(server.url, Student(), 1.0)
    assert [body for body in server.asked if len(body["input_ids"]) > 1] == []


def test_a_server_that_scores_at_temperature_1_alone_is_refused_for_another_one(server: Server) -> None:
    with pytest.raises(UserError, match=r"scores given tokens at temperature 1, not at --rollout-temperature 0\.8"):
        meet(server.url, Student(), 0.8)
    server.scales = True
    known = meet(server.url, Student(), 0.8)
    [found] = score(known, [sample("a", [3, 4], 1)], 0.8, 4)
    assert found.tolist() == pytest.approx([log_prob([3, 4], 1, 0.8)])


def test_samples_that_are_too_long_for_the_teacher_are_told_at_the_start(server: Server) -> None:
    assert meet(server.url, Student(), 1.0, longest=100).longest == 100
    with pytest.raises(UserError, match="takes samples of up to 100 tokens, and a prompt with its response may have"):
        meet(server.url, Student(), 1.0, longest=101)


def test_an_address_without_a_server_is_told(unused_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with pytest.raises(UserError, match=f"--rm-url http://127.0.0.1:{unused_port}: no teacher answers there") as caught:
        meet(f"http://127.0.0.1:{unused_port}", Student(), 1.0)
    assert "sglang.launch_server" in caught.value.fix


def test_another_server_is_no_teacher(server: Server) -> None:
    server.spoil = lambda entries: []
    with pytest.raises(UserError, match="is no server that scores tokens: it answered with 0 log-probs"):
        meet(server.url, Student(), 1.0)
    with pytest.raises(UserError, match="is no server that scores tokens"):
        meet(f"{server.url}/v1", Student(), 1.0)


def test_requests_are_json() -> None:
    json.dumps(request_of(sample("a", [1, 2], 1), 0.5))
