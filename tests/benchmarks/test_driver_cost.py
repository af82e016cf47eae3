"""What the measurement of the driver's cost stands on: an engine that answers as SGLang does, asked in two ways."""

import asyncio
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from relax_core.engines.client import parse_completion
from relax_core.weights.label import version_of


@pytest.fixture
def cost(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))  # its engine's process too
    import driver_cost

    return driver_cost


def test_the_engine_answers_as_sglang_does(cost: ModuleType) -> None:
    found = parse_completion(json.loads(cost.answer(3, tokens=5, vocabulary=7)), "the engine")
    assert len(found.output_ids) == len(found.log_probs) == 5
    assert set(found.output_ids.tolist()) <= set(range(7))
    assert (found.log_probs <= 0).all()
    assert version_of(found.weight_version) == 0


def test_both_clients_get_every_token(cost: ModuleType) -> None:
    body = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 4}, "return_logprob": True}
    bodies = [json.dumps(body).encode()] * 10
    with cost.immediate_engine(tokens=4, vocabulary=7) as url:
        for ask in (cost.alone, cost.client):
            tokens, seconds, _ = asyncio.run(ask(url, bodies, concurrency=3))
            assert tokens == 10 * 4
            assert seconds > 0


def test_a_phase_ends_where_the_next_begins(cost: ModuleType) -> None:
    def of(**marks: float) -> Any:
        found = cost.Round()
        found.marks = marks
        return found

    # marks 1, 3 and 7 s after the begin: phases of 1, 2 and 4 s; in the other round 1, 4 and 5 s
    rounds = [of(sent=1.0, done=3.0, stored=7.0), of(sent=1.0, done=5.0, stored=10.0)]
    assert rounds[0].phases == {"sent": 1.0, "done": 2.0, "stored": 4.0}
    assert cost.median_phases(rounds) == {"sent": 1000.0, "done": 3000.0, "stored": 4500.0}
