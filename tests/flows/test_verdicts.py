"""A run whose rewards are a judge's real verdicts: real engines, a judge that was taught its rule, a real kill."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from judging import TEMPLATE, make_judge, right

from data.store import RunStore
from flows.cli.main import main
from relax_core.rewards.judge import client
from relax_core.rewards.judge.question import plain

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.sglang,
    pytest.mark.megatron,
    pytest.mark.ray,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("ray_head", "prefect_server"),
]

OWN = f"""
from relax_core.rewards.judge import judge
from relax_core.rewards.judge.question import question
from relax_core.rewards.judge.verdict import yes_no


async def asks(sample):
    answer = await judge(question(sample, {TEMPLATE!r}).messages, temperature=0)
    return {{"score": yes_no(answer).value, "judge_output": answer}}
"""


@pytest.fixture(scope="session")
def judge_model(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A judge of what ``tiny_model`` writes."""
    return make_judge(tmp_path_factory.mktemp("models") / "judge", tiny_model)


def verdicts(table: pa.Table, rollout: pa.Table) -> list[float]:
    """The rewards, and that they are the judge's and right."""
    assert table["sample_id"].equals(rollout["sample_id"])
    expected = [float(right(response)) for response in rollout["response"].to_pylist()]
    assert table["reward"].to_pylist() == expected
    assert table["judge_output"].to_pylist() == [f"[[{'yes' if score else 'no'}]]" for score in expected]
    return expected


def test_rewards_are_the_verdicts_of_a_judge_also_where_its_server_is_killed(
    tmp_path: Path, tiny_model: Path, judge_model: Path, sums: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 1 kills the judge's server when five of its sixteen samples have a verdict."""
    run = tmp_path / "run"
    own = tmp_path / "own.py"
    own.write_text(OWN)
    sets = tmp_path / "sets.json"
    evaluated = {"name": "sums", "path": str(sums), "custom_rm_path": f"{own}:asks", "reward_key": "score"}
    sets.write_text(json.dumps({"datasets": [evaluated]}))
    options = {
        "run-dir": run,
        "hf-checkpoint": tiny_model,
        "prompt-data": sums,
        "label-key": "label",
        "num-rollout": 3,
        "rollout-batch-size": 4,
        "n-samples-per-prompt": 4,
        "rollout-max-response-len": 4,
        "rollout-max-context-len": 64,
        "lr": 1e-3,
        "rm-type": "dapo-genrm",
        "genrm-model-path": judge_model,
        "genrm-engine-config": json.dumps({"max_context_len": 1024}),
        "genrm-sampling-config": json.dumps({"max_response_len": 8}),
        "reward-max-concurrency": 4,
        "eval-interval": 3,
        "eval-config": sets,
    }
    answered: list[str] = []
    asked = client._asked

    async def counted(session: Any, url: str, body: Any) -> client.Answer:
        answer = await asked(session, url, body)
        answered.append(url)
        if len(answered) == 16 + 5:
            os.kill(server_at(url), signal.SIGKILL)
        return answer

    monkeypatch.setattr(client, "_asked", counted)
    words = [f"--{name}={value}" for name, value in options.items()]
    assert main(["train", *words, "--skip-eval-before-train"]) == 0

    store = RunStore(str(run))
    seen = set()
    for step in range(3):
        rewards, rollout = (store.read_table(f"steps/{step:06d}/{name}.parquet") for name in ("reward", "rollout"))
        seen |= set(verdicts(rewards, rollout))
        assert set(rewards["outcome"].to_pylist()) == {"scored"}
        for question, response in zip(
            rewards["judge_prompt"].to_pylist(), rollout["response"].to_pylist(), strict=True
        ):
            assert question.startswith("[system]\nYou compare")
            assert plain(response).strip() in question
        assert store.read_json(f"steps/{step:06d}/train.json")["metrics"]["grad_norm"] > 0
    assert seen == {0.0, 1.0}
    evaluated = store.read_table("steps/000002/eval/sums.parquet")
    verdicts(evaluated, evaluated)

    first, _ = dict.fromkeys(answered)  # the server that was killed, and the one in its place
    # Verdicts that were there before the kill are kept, save those of calls that failed together with others.
    needed, made = 3 * 16, len(answered)  # those of the evaluation are asked in a process of their own
    assert answered.count(first) >= 21
    assert needed <= made <= needed + 4
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert [event["kind"] for event in events if event["who"] == "genrm-0"].count("actor_started") == 2


def server_at(url: str) -> int:
    """The process that listens there."""
    import psutil

    port = int(url.rsplit(":", 1)[1])
    [pid] = {c.pid for c in psutil.net_connections("tcp") if c.status == "LISTEN" and c.laddr.port == port}
    return int(pid)
