"""Asking a judge over HTTP: what is sent, tried again, refused; and the whole way from a rollout to its rewards."""

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from effect_probes import Inbox, rollout_table

from data.errors import UserError
from relax_core import aio
from relax_core.config.options import with_options
from relax_core.config.sections import RelaxConfig
from relax_core.rewards.judge import client, judge
from relax_core.rewards.judge.client import ONGOING, Answer, JudgeService, service_environment, service_of_environment
from relax_core.rewards.outcome import MAX_TEXT
from relax_core.rewards.pools import Pools
from relax_core.rewards.score import check_reward, score_table
from relax_core.rewards.sources import reward_source_hash

ASK = [{"role": "user", "content": "Is it good?"}]


def said(text: str | None, reason: str = "stop") -> tuple[int, Any]:
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": reason}]}


class Engine(Inbox):
    """Gives its ``answers`` in turn, the last one for ever. ``most`` is how many it answered at a time."""

    def __init__(self, *answers: tuple[int, Any], seconds: float = 0.0) -> None:
        super().__init__()
        self.answers, self.seconds, self.most, self._now, self._lock = list(answers), seconds, 0, 0, threading.Lock()

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
            found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        time.sleep(self.seconds)
        with self._lock:
            self._now -= 1
        return found


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits, which take no time."""
    found: list[float] = []

    async def wait(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(client, "_wait", wait)
    return found


def ask(*urls: str, **sampling: Any) -> Answer:
    return aio.run(JudgeService(urls, {"top_p": 0.9}).ask(ASK, **sampling))


def test_a_question_is_asked_as_chat_models_take_it() -> None:
    engine = Engine(said("[[7]]"))
    assert ask(engine.url, seed=3, temperature=0.5, stop=["!"]) == Answer("[[7]]", False)
    [(path, body)] = engine.calls
    assert path == "/v1/chat/completions"
    assert body == {
        "model": "default",
        "messages": ASK,
        "temperature": 0.5,  # the call's
        "top_p": 0.9,  # the run's
        "top_k": -1,  # the default
        "max_tokens": 4096,
        "seed": 3,
        "stop": ["!"],
    }


def test_an_answer_that_was_cut_off_says_so_and_one_without_text_is_empty() -> None:
    assert ask(Engine(said("[[1", "length")).url) == Answer("[[1", True)
    assert ask(Engine(said(None)).url) == Answer("", False)


@pytest.mark.parametrize("first", [(503, {}), (500, "no"), (429, {}), (408, {}), (200, {"choices": []}), (200, 3)])
def test_an_engine_that_fails_is_asked_again_after_a_wait(first: tuple[int, Any], waits: list[float]) -> None:
    engine = Engine(first, first, said("yes"))
    assert ask(engine.url).text == "yes"
    assert len(engine.calls) == 3
    assert 0.5 <= waits[0] <= 1.0 <= waits[1] <= 2.0


def test_after_three_tries_the_last_failure_is_told(waits: list[float]) -> None:
    engine = Engine((500, {}), (503, {"error": "loading"}))
    with pytest.raises(UserError, match=r"gave no answer in 3 tries; .* ended with status 503, .*loading") as caught:
        ask(engine.url)
    assert "genrm-0.log" in caught.value.fix
    assert len(engine.calls) == 3


def test_another_engine_is_asked_where_one_is_dead(waits: list[float], unused_port: int) -> None:
    engine = Engine(said("here"))
    dead = f"http://127.0.0.1:{unused_port}"
    assert ask(dead, engine.url).text == "here"
    assert len(waits) <= 1
    with pytest.raises(UserError, match="ClientConnectorError"):
        ask(dead)


def test_an_engine_that_is_silent_counts_as_lost(waits: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "TRY_SECONDS", 0.05)
    with pytest.raises(UserError, match="ended with TimeoutError"):
        ask(Engine(said("late"), seconds=0.3).url)


def test_what_an_engine_refuses_is_not_asked_again() -> None:
    engine = Engine((400, {"message": "The input is longer than the context"}))
    with pytest.raises(UserError, match=r"refuses a question: status 400, .*longer than the context") as caught:
        ask(engine.url)
    assert "max_context_len" in caught.value.fix
    assert len(engine.calls) == 1


def test_questions_are_shared_out_and_never_more_are_open_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ONGOING == 256
    monkeypatch.setattr(client, "ONGOING", 4)
    engines = Engine(said("a"), seconds=0.05), Engine(said("b"), seconds=0.05)
    service = JudgeService(tuple(engine.url for engine in engines))

    async def many() -> list[Answer]:
        return list(await asyncio.gather(*(service.ask(ASK) for _ in range(16))))

    assert len(aio.run(many())) == 16
    assert all(0 < engine.most <= 4 for engine in engines)
    assert sum(len(engine.calls) for engine in engines) == 16


def test_a_process_learns_of_the_judge_from_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in service_environment(["http://a", "http://b"], {"top_k": 5}).items():
        monkeypatch.setenv(name, value)
    assert service_of_environment() == JudgeService(("http://a", "http://b"), {"top_k": 5})
    assert service_environment([], None) == {}
    monkeypatch.setenv(client.SAMPLING, "hot")
    with pytest.raises(UserError, match="RELAX_GENRM_SAMPLING is no JSON object"):
        service_of_environment()


def test_without_a_judge_asking_one_says_how_to_start_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(client.URLS, raising=False)
    with pytest.raises(UserError, match="A judge is asked, and none runs") as caught:
        aio.run(judge("Is it good?"))
    assert "--genrm-model-path" in caught.value.fix


# Rewards


def config(**options: Any) -> RelaxConfig:
    return with_options(RelaxConfig(), {"genrm_model_path": "judge", "rm_type": "judge", **options})


def scored(engine: Engine, pools: Pools | None = None, **options: Any) -> pa.Table:
    return score_table(rollout_table(), config(**options), pools, {"genrm": [engine.url]})


def test_question_and_answer_are_columns_whole() -> None:
    long = "because " * 100 + "[[7]]"
    table = scored(Engine(said(long)), genrm_sampling_config={"max_response_len": 100})
    assert table["reward"].to_pylist() == pytest.approx([0.7] * 4)
    assert len(long) > MAX_TEXT
    assert table["judge_output"].to_pylist() == [long] * 4
    assert all("<task " in text for text in table["judge_prompt"].to_pylist())
    assert [json.loads(text) for text in table["components"].to_pylist()] == [{"verdict": 7.0}] * 4


def test_no_verdict_no_score_and_no_judge_are_told_apart(waits: list[float]) -> None:
    table = scored(Engine(said("[[0]]"), said("hm"), said("[[85]]"), said("[[10]]")), reward_max_concurrency=1)
    assert table["reward"].to_pylist() == [0.0, None, None, 1.0]
    assert table["outcome"].to_pylist() == ["scored", "no_score", "no_score", "scored"]
    assert json.loads(table["components"][1].as_py())["verdict_error"] == "no verdict"
    assert table["judge_output"][1].as_py() == "hm"
    table = scored(Engine((500, {})), reward_error_policy="no_score")
    assert table["outcome"].to_pylist() == ["failed"] * 4
    with pytest.raises(UserError, match="A judge is asked, and none runs"):
        score_table(rollout_table(), config())


def test_a_silent_judge_costs_the_time_limit_of_its_samples_alone() -> None:
    table = scored(Engine(said("[[7]]"), seconds=1.0), reward_timeout=0.2)
    assert table["outcome"].to_pylist() == ["failed"] * 4
    assert "longer than 0.2 s" in table["error"][0].as_py()


def test_a_judge_may_be_part_of_a_sum() -> None:
    engine = Engine(said("[[5]]"))
    mix = {"judge": 2, "format": 1}
    with Pools(with_options(RelaxConfig(), {"reward_num_workers": 1})) as pools:
        table = scored(engine, pools, rm_type="mix", reward_mix=mix)
    assert table["reward"].to_pylist() == pytest.approx([1.0] * 4)
    assert table["judge_output"].to_pylist() == ["[[5]]"] * 4
    assert json.loads(table["components"][0].as_py())["judge/verdict"] == 5.0


def test_rewards_of_the_user_may_ask_the_judge_also_after_it_has_moved(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from relax_core.rewards.judge import judge\n"
        "from relax_core.rewards.judge.verdict import number\n\n\n"
        "async def ask(sample):\n"
        "    text = await judge(f'Grade {sample.response}', temperature=0.7)\n"
        "    return {'score': number(text, 0, 4).value, 'judge_output': text}\n\n\n"
        "def plain(sample):\n"
        "    import asyncio\n\n"
        "    return len(asyncio.run(judge('Say something')))\n"
    )
    options = {"rm_type": None, "custom_rm_path": f"{mine}:ask", "reward_key": "score", "reward_num_workers": 1}
    first, second = Engine(said("[[3]]")), Engine(said("[[4]]"))
    with Pools(config(genrm_sampling_config={"top_k": 7})) as pools:
        table = scored(first, pools, **options)
        assert table["reward"].to_pylist() == [3.0] * 4
        assert table["judge_output"].to_pylist() == ["[[3]]"] * 4
        _, body = first.calls[0]
        assert (body["top_k"], body["temperature"]) == (7, 0.7)
        assert body["messages"][0]["content"].startswith("Grade ")
        assert scored(second, pools, **options)["reward"].to_pylist() == [4.0] * 4
        assert (
            scored(second, pools, **{**options, "custom_rm_path": f"{mine}:plain", "reward_key": None})[
                "reward"
            ].to_pylist()
            == [5.0] * 4
        )
        with pytest.raises(UserError, match="A judge is asked, and none runs"):
            score_table(rollout_table(), config(**options), pools)


def test_another_template_is_another_reward_and_a_wrong_one_is_told_at_the_start(tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text("{{ prompt }}")
    mine = config(genrm_template=str(file))
    first = reward_source_hash(mine)
    assert first != reward_source_hash(config())
    file.write_text("{{ response }}")
    assert first != reward_source_hash(mine)
    with pytest.raises(UserError, match="--genrm-model-path judge: there is no model"):
        check_reward(mine)
    (tmp_path / "config.json").write_text("{}")
    mine = config(genrm_template=str(file), genrm_model_path=str(tmp_path))
    check_reward(mine)
    file.write_text("{{ response")
    with pytest.raises(UserError, match="--genrm-template"):
        check_reward(mine)
