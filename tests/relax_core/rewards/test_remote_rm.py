"""The reward of a service: what is sent, what is tried again, what it answers."""

import asyncio
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pytest
from effect_probes import Inbox, rollout_table

from data.errors import UserError
from relax_core.config import options_hash, stage_options
from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig
from relax_core.rewards.builtin import remote
from relax_core.rewards.score import score_table


class Service(Inbox):
    """Gives its ``answers`` in turn, the last one for ever: statuses and contents."""

    answers: list[tuple[int, Any]]

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return Service()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits, which take no time."""
    found: list[float] = []

    async def wait(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(remote, "_wait", wait)
    return found


def scored(service: Service, answers: list[tuple[int, Any]], rows: int = 1, **options: Any) -> pa.Table:
    service.answers = answers
    given = {"rm_type": "remote_rm", "rm_url": f"http://{service.address}/score", **options}
    return score_table(rollout_table().slice(0, rows), with_options(RelaxConfig(), given))


def test_prompt_response_and_label_are_sent_and_the_answer_is_the_score(service: Service) -> None:
    table = scored(service, [(200, 0.25)])
    assert table["reward"].to_pylist() == [0.25]
    assert table["rm_type"].to_pylist() == ["remote_rm"]
    assert service.calls == [("/score", {"prompt": "q", "response": "2", "label": "2"})]


def test_an_object_is_scored_by_its_key_and_null_is_no_score(service: Service) -> None:
    table = scored(service, [(200, {"score": 0.5, "why": "short"}), (200, None)], 2, reward_key="score")
    assert table.sort_by("reward")["reward"].to_pylist() == [0.5, None]
    assert set(table["outcome"].to_pylist()) == {"scored", "no_score"}
    with pytest.raises(UserError, match="Name the key of the score with --reward-key"):
        scored(service, [(200, {"score": 0.5})])
    with pytest.raises(UserError, match="returned 'good', a str, for sample 000000-0000-000"):
        scored(service, [(200, "good")])


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_service_that_is_away_for_a_while_is_asked_again(service: Service, waits: list[float], status: int) -> None:
    assert scored(service, [(status, "busy")] * 7 + [(200, 1)])["reward"].to_pylist() == [1]
    assert len(service.calls) == 8
    # min(2^k, 30) and up to one second more
    assert all(least <= wait < least + 1 for wait, least in zip(waits, [1, 2, 4, 8, 16, 30, 30], strict=True))


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Texts that are read in place of the service's next answers."""
    real, texts = remote.json.loads, list[str]()

    def loads(text: str) -> Any:
        return real(texts.pop(0) if texts else text)

    monkeypatch.setattr(remote, "json", type("json", (), {"loads": staticmethod(loads)}))
    return texts


def test_what_is_no_json_is_asked_for_once_more(service: Service, waits: list[float], pages: list[str]) -> None:
    pages += ["<html>"]
    assert scored(service, [(200, 1)])["reward"].to_pylist() == [1]
    assert len(service.calls) == 2
    pages += ["<html>"] * 9
    with pytest.raises(UserError, match=r"answers sample 000000-0000-000 with no JSON.*Is --rm-url its address"):
        scored(service, [(200, 1)])
    assert len(service.calls) == 4


def test_a_page_between_failures_counts_on_its_own(service: Service, waits: list[float], pages: list[str]) -> None:
    pages += ["<html>"]
    assert scored(service, [(503, "busy"), (200, 1), (503, "busy"), (200, 1)])["reward"].to_pylist() == [1]
    assert len(service.calls) == 4


@pytest.mark.parametrize(("policy", "score"), [("fail", None), ("zero", 0.0), ("no_score", None)])
def test_a_service_that_never_answers_is_given_up_after_ten_tries(
    service: Service, waits: list[float], policy: str, score: float | None
) -> None:
    if policy == "fail":
        with pytest.raises(UserError, match=r"no score for sample 000000-0000-000 in 10 tries; .* status 500, '\"down"):
            scored(service, [(500, "down")], reward_error_policy=policy)
    else:
        table = scored(service, [(500, "down")], reward_error_policy=policy)
        assert table["reward"].to_pylist() == [score]
        assert table["outcome"].to_pylist() == ["failed"]
    assert (len(service.calls), len(waits)) == (10, 9)


def test_a_service_that_is_away_is_told_of_once_and_at_once(
    service: Service, waits: list[float], monkeypatch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(remote, "_told", set())
    scored(service, [(500, "down")] * 5 + [(200, 1)] * 3, 3)
    assert [text for text in caplog.messages if "remote_rm" in text and "asked again: status 500" in text] == [
        caplog.messages[0]
    ]


def test_a_refusal_is_not_asked_again(service: Service, waits: list[float]) -> None:
    with pytest.raises(UserError, match="refuses sample 000000-0000-000: status 422"):
        scored(service, [(422, "no such field")])
    assert (len(service.calls), waits) == (1, [])


def test_nobody_listens(service: Service, waits: list[float]) -> None:
    with pytest.raises(UserError, match="ClientConnectorError"):
        scored(service, [], rm_url="http://127.0.0.1:1/")
    assert len(waits) == 9


def test_a_slow_try_ends_and_is_repeated(service: Service, waits: list[float], monkeypatch: Any) -> None:
    monkeypatch.setattr(remote, "TRY_SECONDS", 0.3)
    slow = iter([True, False])

    def answer(path: str, body: Any) -> tuple[int, Any]:
        if next(slow):
            time.sleep(1)
        return 200, 1

    service.answer = answer  # type: ignore[method-assign]
    assert scored(service, [])["reward"].to_pylist() == [1]
    assert len(waits) == 1


def test_the_time_limit_of_other_rewards_does_not_cut_its_tries(service: Service, monkeypatch: Any) -> None:
    async def wait(seconds: float) -> None:
        await asyncio.sleep(0.2)

    monkeypatch.setattr(remote, "_wait", wait)
    table = scored(service, [(500, "down"), (500, "down"), (200, 1)], reward_timeout=0.1)
    assert table["reward"].to_pylist() == [1]


def test_no_more_are_asked_at_once_than_allowed(service: Service) -> None:
    running, most, lock = [0], [0], threading.Lock()

    def answer(path: str, body: Any) -> tuple[int, Any]:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.1)
        with lock:
            running[0] -= 1
        return 200, 1

    service.answer = answer  # type: ignore[method-assign]
    assert scored(service, [], 4, reward_max_concurrency=2)["reward"].to_pylist() == [1] * 4
    assert most == [2]


def test_without_an_address_the_sample_is_named() -> None:
    config = with_options(RelaxConfig(), {"rm_type": "remote_rm"})
    with pytest.raises(UserError, match=r"-000 is to be scored by remote_rm, and there is no service\..*--rm-url"):
        score_table(rollout_table(), config)


def test_no_password_is_told(service: Service, waits: list[float]) -> None:
    url = f"http://me:hidden@{service.address}/score"
    with pytest.raises(UserError) as error:
        scored(service, [(404, "nothing here")], rm_url=url)
    assert "hidden" not in str(error.value)


@pytest.fixture
def proxy() -> Iterator[tuple[str, list[str]]]:
    """A proxy that answers every request itself, and what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            asked.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "1")
            self.end_headers()
            self.wfile.write(b"7")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()


def test_a_service_outside_is_reached_through_the_proxy(service: Service, proxy: tuple[str, list[str]]) -> None:
    address, asked = proxy
    table = scored(service, [], rm_url="http://service.invalid/score", http_proxy=address)
    assert table["reward"].to_pylist() == [7]
    assert asked == ["http://service.invalid/score"]
    assert scored(service, [(200, 1)], http_proxy=address)["reward"].to_pylist() == [1]  # one on this machine is not


def test_another_address_is_another_identity_where_the_service_may_score() -> None:
    def keys(**options: Any) -> dict[str, str]:
        config = with_options(RelaxConfig(), options)
        return {stage: options_hash(stage_options(config, stage)) for stage in ("reward", "evaluate")}

    named, unnamed, own = {"rm_type": "remote_rm"}, {}, {"custom_rm_path": "mine.reward"}
    for options, differs in ((named, True), (unnamed, True), (own, False)):
        one, other = (keys(**options, rm_url=url) for url in ("http://a/", "http://b/"))
        assert all((one[stage] != other[stage]) is differs for stage in one)
